// Which parts of parameters are matrices, who owns them, and whether all elements travel once.
#include "trainer/fsdp/matrix_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <stdexcept>
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

Layout LayoutOf(const Model& model, int shards, AutoWrap wrap = AutoWrap::kTransformerBlock) {
  ExecutorOptions options;
  options.auto_wrap.policy = wrap;
  options.whole = [](const ModelSegment& segment, const Parameter& p) {
    return segment.is_block && p.shape().rank() == 2;
  };
  return LayoutFor(options, model, shards);
}

std::string Sides(const WholeMatrix& m) {
  return m.name + " " + std::to_string(m.outputs) + " x " + std::to_string(m.inputs);
}

TEST(MatrixLayout, Gpt2sAttentionIsThreeMatricesByColumns) {
  const Gpt2 model(TinyRun::TinyConfig());
  const MatrixLayout layout(model, LayoutOf(model, 1), 1);
  ASSERT_EQ(layout.matrices().size(), 3u * 6);
  const std::vector<std::string> want = {
      "transformer.h.0.attn.c_attn.weight 24 x 24", "transformer.h.0.attn.c_attn.weight 24 x 24",
      "transformer.h.0.attn.c_attn.weight 24 x 24", "transformer.h.0.attn.c_proj.weight 24 x 24",
      "transformer.h.0.mlp.c_fc.weight 52 x 24",    "transformer.h.0.mlp.c_proj.weight 24 x 52"};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(Sides(layout.matrices()[i]), want[i]);
  const WholeMatrix& k = layout.matrices()[1];
  EXPECT_EQ(k.begin - layout.matrices()[0].begin, 24);
  EXPECT_EQ(k.pitch, 72);
  EXPECT_EQ(k.Before(k.begin + 72 + 5), 24 + 5);
  EXPECT_EQ(k.Before(k.begin + 30), 24);
}

TEST(MatrixLayout, LlamasSlicesAreMatrices) {
  const Llama model(TinyRun::TinyLlama());
  const MatrixLayout layout(model, LayoutOf(model, 1), 1);
  std::set<std::string> first;
  for (const WholeMatrix& m : layout.matrices()) {
    if (m.name.starts_with("model.layers.0.")) first.insert(Sides(m).substr(15));
  }
  EXPECT_EQ(first, (std::set<std::string>{
                       "self_attn.q_proj.weight 60 x 24", "self_attn.k_proj.weight 30 x 24",
                       "self_attn.v_proj.weight 30 x 24", "self_attn.o_proj.weight 24 x 60",
                       "mlp.gate_proj.weight 40 x 24", "mlp.up_proj.weight 40 x 24",
                       "mlp.down_proj.weight 24 x 40"}));
}

TEST(MatrixLayout, OwnersDoNotDependOnWrappingAndAreBalanced) {
  const Gpt2 model(TinyRun::TinyConfig());
  for (const int world : {1, 2, 3, 5, 8}) {
    const MatrixLayout layout(model, LayoutOf(model, world), world);
    std::vector<double> work(world);
    double largest = 0;
    for (const WholeMatrix& m : layout.matrices()) {
      work[m.owner] += m.Work();
      largest = std::max(largest, m.Work());
    }
    // Whoever is given the largest matrix had least before.
    EXPECT_LE(std::ranges::max(work) - std::ranges::min(work), largest) << world;
  }
  // The first matrix is dealt out where nobody has any: to who holds most of it.
  for (const int world : {2, 3, 5, 8}) {
    const MatrixLayout layout(model, LayoutOf(model, world, AutoWrap::kNone), world);
    const auto largest = std::ranges::max_element(layout.matrices(), {}, &WholeMatrix::Work);
    std::vector<int64_t> held(world);
    for (int rank = 0; rank < world; ++rank) {
      for (const MatrixPiece& p : layout.Held(0, rank)) {
        if (&layout.matrices()[p.matrix] == &*largest) held[rank] += p.count;
      }
    }
    EXPECT_EQ(largest->owner, std::ranges::max_element(held) - held.begin()) << world;
  }
}

// Follows each element, by its number, through both exchanges.
TEST(MatrixLayout, EveryElementReachesItsOwnerOnceAndComesBackToAll) {
  const Gpt2 model(TinyRun::TinyConfig());
  for (const auto& [shards, world] : {std::pair(1, 1), {1, 3}, {2, 2}, {2, 4}, {3, 3}, {5, 5}}) {
    const Layout flats = LayoutOf(model, shards);
    const MatrixLayout layout(model, flats, world);
    for (int unit = 0; unit < static_cast<int>(flats.units.size()); ++unit) {
      const ExchangeLayout there = layout.ToOwners(unit), back = layout.FromOwners(unit);
      using Packed = std::vector<std::pair<int, int64_t>>;  // Matrix and element.
      std::vector<Packed> held, owned;
      const auto unpack = [](const std::vector<MatrixPiece>& pieces, int64_t most) {
        Packed packed;
        for (const MatrixPiece& p : pieces) {
          EXPECT_EQ(p.packed, std::ssize(packed));
          for (int64_t i = 0; i < p.count; ++i) packed.emplace_back(p.matrix, p.first + i);
        }
        EXPECT_LE(std::ssize(packed), most);
        return packed;
      };
      for (int rank = 0; rank < world; ++rank) {
        held.push_back(unpack(layout.Held(unit, rank), layout.MostHeld()));
        owned.push_back(unpack(layout.Owned(unit, rank), layout.MostOwned()));
        EXPECT_EQ(there.OutElements(rank), std::ssize(owned.back()));
        EXPECT_EQ(back.OutElements(rank), std::ssize(held.back()));
      }
      for (int from = 0; from < world; ++from) {
        for (int to = 0; to < world; ++to) {
          for (int64_t i = 0; i < there.Sent(from, to).count; ++i) {
            const auto element = held[from].at(there.Sent(from, to).begin + i);
            EXPECT_EQ(owned[to].at(there.Arrived(to, from).begin + i), element);
            EXPECT_EQ(layout.matrices()[element.first].owner, to);
          }
          for (int64_t i = 0; i < back.Sent(from, to).count; ++i) {
            EXPECT_EQ(held[to].at(back.Arrived(to, from).begin + i),
                      owned[from].at(back.Sent(from, to).begin + i));
          }
        }
      }
    }
  }
}

// A number for each pair of ranks would be 3 GB an exchange.
TEST(MatrixLayout, RanksWithoutWorkForEachOtherTakeNoMemory) {
  constexpr int kShards = 4, kWorld = 20'000;
  const Gpt2 model(TinyRun::TinyConfig());
  const Layout flats = LayoutOf(model, kShards);
  const MatrixLayout layout(model, flats, kWorld);
  for (int unit = 0; unit < std::ssize(flats.units); ++unit) {
    int64_t elements = 0;
    for (const WholeMatrix& m : layout.matrices()) elements += m.unit == unit ? m.size() : 0;
    const ExchangeLayout there = layout.ToOwners(unit), back = layout.FromOwners(unit);
    EXPECT_EQ(there.total(), elements);
    EXPECT_EQ(back.total(), elements * (kWorld / kShards));
    int64_t arrived = 0;
    for (int rank = 0; rank < kWorld; ++rank) arrived += back.OutElements(rank);
    EXPECT_EQ(arrived, back.total());
  }
}

TEST(ExchangeLayout, RefusesPairsThatAreNone) {
  const auto expect_refused = [](const std::vector<ExchangeLayout::Pair>& pairs) {
    EXPECT_THROW(ExchangeLayout(2, pairs), std::invalid_argument);
  };
  expect_refused({{0, 2, 0, 1}});
  expect_refused({{-1, 0, 0, 1}});
  expect_refused({{0, 1, -1, 1}});
  expect_refused({{0, 1, 0, -1}});
  expect_refused({{0, 1, 0, 1}, {0, 0, 0, 1}});
  expect_refused({{0, 1, 0, 1}, {0, 1, 1, 1}});
  const std::vector<ExchangeLayout::Pair> pairs = {{0, 1, 3, 2}, {1, 1, 0, 4}};
  EXPECT_EQ(ExchangeLayout(2, pairs).Arrived(1, 1).begin, 2);
}

}  // namespace
}  // namespace fsdp
