#include "trainer/fsdp/factor_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"
#include "tests/testing/tiny_run.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/model.h"

namespace fsdp {
namespace {

using testing::TinyRun;

// Whatever F is, pieces of all shards, in whichever parts, hold every element of every tensor once.
TEST(FactorLayout, PiecesCoverTensors) {
  const Llama llama(TinyRun::TinyLlama());
  const Gpt2 gpt2(TinyRun::TinyConfig());
  for (const Model* const model :
       {static_cast<const Model*>(&llama), static_cast<const Model*>(&gpt2)}) {
    for (const int shards : {1, 2, 3, 5}) {
      const Layout layout = LayoutFor({}, *model, shards);
      const FactorLayout factors(*model, layout);
      std::vector<std::vector<int>> times;
      for (const FactorLayout::Tensor& t : factors.tensors()) {
        times.emplace_back(t.shape.rows * t.shape.columns);
      }
      for (int f = 0; f < std::ssize(layout.flat_parameters); ++f) {
        for (int shard = 0; shard < shards; ++shard) {
          for (const ShardPart& part : Parts(f, layout.flat_parameters[f].shard_size, 768)) {
            int64_t end = 0;
            for (const FactoredPiece& p :
                 factors.Pieces(layout, f, shard, part.begin, part.count)) {
              EXPECT_GE(p.at, end);
              end = p.at + p.count;
              for (int64_t i = p.first; i < p.first + p.count; ++i) ++times[p.tensor.index][i];
            }
            EXPECT_LE(end, part.count);
          }
        }
      }
      for (const std::vector<int>& of : times) EXPECT_EQ(of, std::vector<int>(of.size(), 1));
    }
  }
}

TEST(FactorLayout, TensorsAreThoseOfTheFiles) {
  const Llama llama(TinyRun::TinyLlama());
  const FactorLayout of_llama(llama, LayoutFor({}, llama, 2),
                              [](const std::string& name) { return name.size() % 7; });
  std::map<std::string, FactoredTensor> tensors;
  int64_t values = 0;
  for (const FactorLayout::Tensor& t : of_llama.tensors()) {
    tensors[t.name] = t.shape;
    EXPECT_EQ(t.shape.lr_scale, t.name.size() % 7);
    EXPECT_EQ(t.shape.at, values);
    values += t.shape.values();
  }
  EXPECT_EQ(of_llama.values(), values);
  EXPECT_EQ(of_llama.FirstSum(), values + of_llama.SecondSum());
  const FactoredTensor& q = tensors.at("model.layers.0.self_attn.q_proj.weight");
  const FactoredTensor& k = tensors.at("model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(q.columns, 24);
  EXPECT_EQ(k.columns, 24);
  EXPECT_EQ(q.rows, 60);
  EXPECT_EQ(k.rows, 30);
  EXPECT_EQ(k.matrix_rows, 30);
  EXPECT_EQ(tensors.at("model.norm.weight").values(), 0);
  const Gpt2 gpt2(TinyRun::TinyConfig());
  const FactorLayout of_gpt2(gpt2, LayoutFor({}, gpt2, 2));
  for (const FactorLayout::Tensor& t : of_gpt2.tensors()) {
    if (t.name != "transformer.h.0.attn.c_attn.weight") continue;
    EXPECT_EQ(t.shape.rows, 24);
    EXPECT_EQ(t.shape.columns, 72);
  }
}

}  // namespace
}  // namespace fsdp
