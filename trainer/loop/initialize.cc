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

bool HasBase(const Layout& layout) {
  return std::ranges::any_of(layout.flat_parameters, &FlatParameter::of_base);
}

WeightSource OpenFor(const Recipe& recipe, const ModelHead& head) {
  return RequireFinite(OpenInitialWeights(recipe.model, head),
                       "model.init_from: " + *recipe.model.init_from, "trained");
}

CheckpointMeta::Base MakeBase(const Recipe& recipe, const WeightSource& weights, const Job& job,
                              Executor& executor, Recorder& recorder) {
  CheckpointMeta::Base base;
  base.files = std::filesystem::absolute(FindInitialWeights(recipe.model)).lexically_normal();
  base.hash = InitializeBase(weights, job, executor);
  int64_t coded = 0, bytes = 0;
  for (const FlatParameter& flat : executor.layout().flat_parameters) {
    for (const Placement& p : flat.parameters) {
      coded += p.coded_bytes > 0 ? p.parameters() : 0;
      bytes += p.coded_bytes;
    }
  }
  recorder.Line(Printable(base.files + ": " + HumanCount(static_cast<double>(coded)) +
                          " frozen weights are kept as " +
                          std::string(Name(recipe.model.lora->base)) + ", " + HumanBytes(bytes) +
                          " on all ranks together"));
  return base;
}

}  // namespace

uint64_t InitializeBase(const WeightSource& weights, const Job& job, Executor& executor) {
  if (!HasBase(executor.layout())) return 0;
  const auto share = [&job](const std::string& name, const std::function<std::string()>& work) {
    return Together(*job.store, "base/" + name, job.rank, job.world, work);
  };
  return executor.InitializeBase(weights.parameters, RecordsOf(weights), share);
}

std::optional<CheckpointMeta::Base> ResumeBase(const Recipe& recipe, const Job& job,
                                               const CheckpointMeta& meta,
                                               const std::string& checkpoint, Executor& executor,
                                               Recorder& recorder) {
  if (!HasBase(executor.layout())) return std::nullopt;
  WeightSource weights;
  EveryRank(job, "base", [&] {
    weights = OpenFor(recipe, FindHeadToDraw(ShapeFor(recipe), recipe.model).head);
  });
  const CheckpointMeta::Base base = MakeBase(recipe, weights, job, executor, recorder);
  if (meta.base) {
    EveryRank(job, "same base", [&] { RequireBase(*meta.base, base, checkpoint); });
  }
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
  WeightSource read;
  if (recipe.model.init_from) {
    DescribeFiles(recipe, shape, recorder);
    const HeadToDraw to_draw = FindHeadToDraw(shape, recipe.model);
    const ModelHead& head = to_draw.head;
    if (!head.tensors.empty()) DescribeHead(to_draw, shape, recipe.model, recorder);
    EveryRank(job, "initial weights", [&] {
      read = OpenFor(recipe, head);
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
  if (!HasBase(executor.layout())) return std::nullopt;
  return MakeBase(recipe, read, job, executor, recorder);
}

}  // namespace fsdp
