#include "trainer/loop/initialize.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>

#include "models/family.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/comm/store/together.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/fsdp/executor.h"
#include "trainer/loop/failure_protocol.h"
#include "trainer/loop/setup.h"
#include "trainer/nn/initial_values.h"
#include "trainer/recipe/recipe.h"
#include "trainer/weights/coded_base.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

void DescribeFiles(const Recipe& recipe, const ModelShape& shape, Recorder& recorder) {
  const std::string& directory = *recipe.model.init_from;
  std::string keys, rates;
  for (const std::string& key : IgnoredKeys(recipe.model)) keys += (keys.empty() ? "" : ", ") + key;
  for (const Field& field : shape.family().fields()) {
    const std::string key = "model." + field.name;
    if (!field.is_dropout || recipe.places.count(key) > 0) continue;
    const FieldValue rate = *shape.Find(field.name);
    if (std::get<double>(rate) == 0) continue;
    rates += (rates.empty() ? "" : ", ") + key + " " + Show(rate, field);
  }
  if (!rates.empty()) recorder.Line(Printable(directory + ": taken over: " + rates));
  if (!keys.empty()) {
    const std::string base = FindBaseWeights(recipe.model);
    recorder.Line(Printable(base + "/config.json: not looked at: " + keys));
  }
}

void DescribeHead(const HeadToDraw& to_draw, const ModelShape& shape, const ModelRecipe& model,
                  Recorder& recorder) {
  const std::string& from = *model.init_from;
  const ModelHead& head = to_draw.head;
  const auto classes = [&](const ModelShape& of) {
    return std::to_string(std::get<int64_t>(*of.Find(head.field)));
  };
  if (to_draw.is_missing) {
    recorder.Line(Printable(from + ": has no " + std::string(head.tensors[0]) + ": a head" +
                            (head.field.empty() ? "" : " for " + classes(shape) + " classes") +
                            " is drawn"));
    return;
  }
  recorder.Line(Printable(from + ": its head is for " + classes(ReadInitialShape(model)) +
                          " classes: one for " + classes(shape) + " is drawn anew"));
}

bool HasRecords(const Layout& layout) {
  return std::ranges::any_of(layout.flat_parameters, &FlatParameter::HasRecords);
}

}  // namespace

uint64_t InitializeBase(const RecordSource& records, const Job& job, Executor& executor) {
  if (!HasRecords(executor.layout())) return 0;
  const auto share = [&job](const std::string& name, const std::function<std::string()>& work) {
    return Together(*job.store, "base/" + name, job.rank, job.world, work);
  };
  return executor.InitializeRecords(records, share);
}

std::optional<CheckpointMeta::Base> InitializeBase(const Recipe& recipe, const Job& job,
                                                   Executor& executor, Recorder& recorder,
                                                   std::optional<ResumedBase> resumed) {
  if (!HasRecords(executor.layout())) return std::nullopt;
  CheckpointMeta::Base base;
  RecordSource records;
  EveryRank(job, "base", [&] {
    const HeadToDraw to_draw = FindHeadToDraw(ShapeFor(recipe), recipe.model);
    base.files = std::filesystem::absolute(FindInitialWeights(recipe.model)).lexically_normal();
    records = RecordsOf(RequireFinite(OpenInitialWeights(recipe.model, to_draw.head),
                                      "model.init_from: " + base.files, "trained"));
  });
  base.hash = InitializeBase(records, job, executor);
  if (resumed && resumed->meta.base) {
    EveryRank(job, "same base",
              [&] { RequireBase(*resumed->meta.base, base, resumed->checkpoint); });
  }
  int64_t weights = 0, bytes = 0;
  for (const FlatParameter& flat : executor.layout().flat_parameters) {
    for (const Placement& p : flat.parameters) {
      weights += p.coded_bytes > 0 ? p.parameters() : 0;
      bytes += p.coded_bytes;
    }
  }
  recorder.Line(Printable(base.files + ": " + HumanCount(static_cast<double>(weights)) +
                          " frozen weights are kept as " +
                          std::string(Name(recipe.model.lora->base)) + ", " + HumanBytes(bytes) +
                          " on all ranks together"));
  return base;
}

std::optional<CheckpointMeta::Base> InitializeWeights(const Recipe& recipe, const ModelShape& shape,
                                                      const Job& job, uint64_t seed,
                                                      Session& session, Recorder& recorder) {
  Executor& executor = session.executor();
  const auto draw = [seed](const Parameter& p, int64_t begin, std::span<float> values) {
    FillInitial(p, seed, begin, values);
  };
  const auto draw_rows = [seed](const EmbeddingTable& table, int64_t begin,
                                std::span<float> values) {
    FillInitial(table, seed, begin, values);
  };
  if (recipe.model.init_from) {
    DescribeFiles(recipe, shape, recorder);
    const std::string& from = *recipe.model.init_from;
    const HeadToDraw to_draw = FindHeadToDraw(shape, recipe.model);
    const ModelHead& head = to_draw.head;
    if (!head.tensors.empty()) DescribeHead(to_draw, shape, recipe.model, recorder);
    EveryRank(job, "initial weights", [&] {
      const WeightSource read = RequireFinite(OpenInitialWeights(recipe.model, head),
                                              "model.init_from: " + from, "trained");
      const auto fill = [draw, head, stored = read.parameters](const Parameter& p, int64_t begin,
                                                               std::span<float> values) {
        p.is_adapter() || head.Has(p.name()) ? draw(p, begin, values) : stored(p, begin, values);
      };
      executor.Initialize(fill, read.buffers, read.rows);
      executor.Synchronize();
    });
  } else {
    executor.Initialize(draw, nullptr, draw_rows);
  }
  session.InitializeEma();
  executor.Synchronize();
  return InitializeBase(recipe, job, executor, recorder);
}

}  // namespace fsdp
