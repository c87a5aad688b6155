#include "trainer/weights/initial_weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/family.h"
#include "models/shape.h"
#include "tests/testing/error_of.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/saved_checkpoint.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FreshDirectory;
using testing::SavedCheckpoint;

// As an executor with several compute threads asks for them.
TEST(InitialWeights, ACheckpointIsReadFromAnyThread) {
  const std::string checkpoint = SavedCheckpoint("initial");
  const auto model = MakeModel(ReadInitialShape(checkpoint));
  const FillParameter fill = OpenInitialWeights(checkpoint).parameters;
  ThreadPool pool(4, /*spin=*/false);
  for (const ModelSegment& segment : model->segments()) {
    for (const Parameter* p : segment.parameters) {
      const int64_t n = p->shape().NumElements();
      std::vector<float> want(n), got(n);
      fill(*p, 0, want);
      // Each of the threads reads all of it, from either file in turn.
      pool.Run([&](int t) {
        std::vector<float> own(n);
        for (int64_t i = 0; i < 200; ++i) {
          const int64_t at = (i % 2 == 0 ? i / 2 : 199 - i / 2) * n / 200;
          const int64_t end = (i % 2 == 0 ? i / 2 + 1 : 200 - i / 2) * n / 200;
          fill(*p, at, std::span(own).subspan(at, end - at));
        }
        if (t == 0) got = std::move(own);
      });
      EXPECT_EQ(got, want) << p->name();
    }
  }
}

// Whatever units its experts were in, and are in now.
TEST(InitialWeights, ExpertsAreReadInOtherPieces) {
  const std::string moe =
      "model={family: moe, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, "
      "num_key_value_heads: 2, head_dim: 4, intermediate_size: 8, num_experts: 6, "
      "num_experts_per_tok: 2, "
      "vocab_size: 256, "
      "max_position_embeddings: 64}";
  for (const std::string wrap : {"{policy: experts, expert_pieces: 3}", "{policy: size}"}) {
    const std::string saved = SavedCheckpoint("pieces", {moe, "fsdp.auto_wrap=" + wrap});
    const FillParameter fill = OpenInitialWeights(saved).parameters;
    std::map<std::string, std::vector<float>> whole;
    for (const int64_t pieces : {0, 1, 2, 6}) {
      ModelShape shape = ReadInitialShape(saved);
      shape.family().CutBlocks(shape, {.expert_pieces = pieces});
      std::map<std::string, std::vector<float>> slices;
      const auto model = MakeModel(shape);
      for (const ModelSegment& segment : model->segments()) {
        for (const Parameter* p : segment.parameters) {
          for (const ParameterSlice& slice : p->slices()) {
            std::vector<float>& values = slices[slice.name];
            values.resize(slice.shape.NumElements());
            fill(*p, slice.begin, values);
          }
        }
      }
      if (pieces == 0) whole = slices;
      EXPECT_EQ(slices, whole) << pieces;
    }
    EXPECT_NE(whole.at("model.layers.0.mlp.experts.1.gate_proj.weight"),
              whole.at("model.layers.0.mlp.experts.3.gate_proj.weight"));
  }
}

// A run that starts from one with adapters starts from what those made of the weights.
TEST(InitialWeights, AdaptersAreMerged) {
  const std::string base = SavedCheckpoint("base");
  const std::string adapted = SavedCheckpoint(
      "adapted", {"model.init_from=" + base, "model.lora={rank: 2, targets: ['*k_proj*']}",
                  "optimizer.lr=0.5", "schedule={name: constant}"});
  const auto model = MakeModel(ReadInitialShape(adapted));
  const FillParameter before = OpenInitialWeights(base).parameters,
                      after = OpenInitialWeights(adapted).parameters;
  int changed = 0;
  for (const ModelSegment& segment : model->segments()) {
    for (const Parameter* p : segment.parameters) {
      std::vector<float> old(p->shape().NumElements()), now(old.size());
      before(*p, 0, old);
      after(*p, 0, now);
      for (const ParameterSlice& slice : p->slices()) {
        const auto part = [&](const std::vector<float>& v) {
          return std::vector<float>(v.begin() + slice.begin,
                                    v.begin() + slice.begin + slice.shape.NumElements());
        };
        const bool adapted_slice = slice.name.find("k_proj.weight") != std::string::npos;
        EXPECT_EQ(part(old) != part(now), adapted_slice) << slice.name;
        changed += adapted_slice;
      }
    }
  }
  EXPECT_EQ(changed, 2);
}

// A run directory means its latest checkpoint, and the tokenizer of its run.
TEST(InitialWeights, ARunDirectoryMeansItsLatestCheckpoint) {
  const std::string text = FreshDirectory("text") + "/t.txt";
  WriteAtomicFile(text, std::string(200, 'a'));
  const std::string checkpoint = SavedCheckpoint(
      "run", {"data.train={source: text, paths: [" + text + "], tokenizer: bytes}"});
  const std::string run = fs::path(checkpoint).parent_path().parent_path();
  for (const std::string& directory : {run, run + "/checkpoints", checkpoint}) {
    EXPECT_EQ(FindInitialWeights(directory), checkpoint);
    EXPECT_EQ(ReadInitialShape(directory), ReadInitialShape(checkpoint));
    EXPECT_EQ(IgnoredKeys(directory), std::vector<std::string>());
    EXPECT_EQ(InitialTokenizer(directory).name, "bytes");
    EXPECT_NO_THROW(OpenInitialWeights(directory));
  }
  const std::string empty = FreshDirectory("empty");
  try {
    FindInitialWeights(empty);
    ADD_FAILURE() << "found";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(std::string(error.what()),
              "model.init_from: " + empty +
                  " holds neither a config.json nor a manifest.json, nor a run to begin from: " +
                  empty + ": holds no manifest.json, and no checkpoint below it");
  }
}

// A copy of a fixture, with each tensor under the name that `rename` gives it; "": left out.
std::string Copied(const std::string& fixture,
                   const std::function<std::string(std::string)>& rename) {
  const std::string from = "tests/fixtures/" + fixture, to = FreshDirectory("copied");
  fs::copy_file(from + "/config.json", to + "/config.json");
  const SafetensorsReader file(from + "/model.safetensors");
  std::vector<SafetensorsEntry> entries;
  for (const std::string& name : file.Names()) {
    const std::string renamed = rename(name);
    if (!renamed.empty()) entries.push_back({renamed, file.Info(name).type, file.Info(name).shape});
  }
  SafetensorsWriter writer(to + "/model.safetensors", entries);
  for (const std::string& name : file.Names()) {
    if (rename(name).empty()) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(file.Info(name).bytes()));
    file.ReadBytes(name, 0, bytes);
    writer.WriteBytes(rename(name), 0, bytes);
  }
  writer.Finish();
  return to;
}

// ViTModel, RegNetModel, LlamaModel and GPT2Model save no head, and no prefix of the trunk.
TEST(InitialWeights, ABackboneGetsAHead) {
  const struct {
    std::string fixture, trunk, head;
  } cases[] = {{"vit/odd", "vit.", "classifier."},
               {"regnet/odd", "regnet.", "classifier."},
               {"llama/llama_6_2", "model.", "lm_head."},
               {"vit/no_bias", "vit.", "classifier."}};
  for (const auto& c : cases) {
    const std::string whole = "tests/fixtures/" + c.fixture;
    const ModelShape shape = ReadInitialShape(whole);
    EXPECT_TRUE(FindHeadToDraw(shape, whole).head.tensors.empty()) << c.fixture;
    const std::string bare = Copied(c.fixture, [&](std::string name) {
      if (name.starts_with(c.head)) return std::string();
      return name.starts_with(c.trunk) ? name.substr(c.trunk.size()) : name;
    });
    const HeadToDraw drawn = FindHeadToDraw(shape, bare);
    EXPECT_TRUE(drawn.is_missing) << c.fixture;
    const WeightSource before = OpenInitialWeights(whole),
                       after = OpenInitialWeights(bare, drawn.head);
    int heads = 0, others = 0;
    const auto model = MakeModel(shape);
    for (const ModelSegment& segment : model->segments()) {
      for (const Parameter* p : segment.parameters) {
        if (drawn.head.Has(p->name())) {
          ++heads;
          continue;
        }
        std::vector<float> want(p->shape().NumElements()), got(want.size());
        before.parameters(*p, 0, want);
        after.parameters(*p, 0, got);
        EXPECT_EQ(got, want) << p->name();
        ++others;
      }
    }
    EXPECT_TRUE(heads > 0 && others > 0) << c.fixture;
    // Nothing is computed from it as it is.
    const std::string error = testing::ErrorOf([&] { OpenInitialWeights(bare); });
    EXPECT_NE(error.find(", so no head: training begins from such files"), std::string::npos)
        << error;
    // A part of a head is a mistake.
    const std::string half = Copied(c.fixture, [&](std::string name) {
      return name == "classifier.weight" ? std::string() : name;
    });
    EXPECT_FALSE(FindHeadToDraw(shape, half).is_missing);
  }
}

TEST(InitialWeights, WhatIsLeftOutIsSaid) {
  const std::string pooled = Copied("vit/odd", [](std::string name) {
    if (name == "classifier.weight") return std::string("pooler.dense.weight");
    return name == "classifier.bias" ? std::string("pooler.dense.bias") : name;
  });
  EXPECT_EQ(InitialNotes(pooled),
            std::vector<std::string>{"left out, because a classifier has none: "
                                     "pooler.dense.weight, pooler.dense.bias"});
  EXPECT_TRUE(InitialNotes("tests/fixtures/vit/odd").empty());
}

// Beside a tied embedding, under the head's name: kept if it differs.
TEST(InitialWeights, AHeadThatDiffersIsKept) {
  const std::string fixture = "gpt2/one_head", whole = "tests/fixtures/" + fixture;
  const SafetensorsReader file(whole + "/model.safetensors");
  const auto& info = file.Info("transformer.wte.weight");
  for (const bool differs : {false, true}) {
    const std::string directory = FreshDirectory("own_head");
    fs::copy_file(whole + "/config.json", directory + "/config.json");
    fs::copy_file(whole + "/model.safetensors", directory + "/a.safetensors");
    std::vector<float> head(static_cast<size_t>(info.NumElements()));
    file.ReadFloat("transformer.wte.weight", 0, head);
    if (differs) head.back() += 0.5f;
    const SafetensorsEntry entry{"lm_head.weight", SafetensorsType::kF32, info.shape};
    SafetensorsWriter writer(directory + "/b.safetensors", {&entry, 1});
    writer.WriteBytes("lm_head.weight", 0, std::as_bytes(std::span(head)));
    writer.Finish();
    std::string map = R"("lm_head.weight": "b.safetensors")";
    for (const std::string& name : file.Names()) map += ", \"" + name + "\": \"a.safetensors\"";
    WriteAtomicFile(directory + "/model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");

    const ModelShape shape = ReadInitialShape(directory);
    EXPECT_EQ(shape.Find("tie_word_embeddings"), FieldValue(!differs));
    EXPECT_EQ(InitialNotes(directory).size(), differs ? 1u : 0u);
    const auto model = MakeModel(shape);
    const Parameter* const last = model->segments().back().parameters.back();
    EXPECT_EQ(last->name() == "lm_head.weight", differs);
    if (!differs) continue;
    std::vector<float> got(head.size());
    OpenInitialWeights(directory).parameters(*last, 0, got);
    EXPECT_EQ(got, head);
  }
}

}  // namespace
}  // namespace fsdp
