// The kernels of attention in bf16, against each other: every instruction set gives the same bits.
#include "trainer/ops/cpu/attention/attention_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/flushed_subnormals.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/illegal_tiles.h"
#include "trainer/core/dtype.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/kinds.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {
namespace {

struct Case {
  int64_t seq, head_dim;
  int64_t document = 0;  // Tokens of each; 0: one.
  double rate = 0;       // Dropout's.
  int64_t keys = 0;      // Under a full mask; 0: a causal one.

  int64_t unseen = 0;  // The last of the keys.

  int64_t Keys() const { return keys > 0 ? keys : seq; }
};

std::string Name(const Case& c) {
  return std::to_string(c.seq) + " x " + std::to_string(c.head_dim) + ", documents of " +
         std::to_string(c.document) + ", dropout " + std::to_string(c.rate) + ", keys " +
         std::to_string(c.keys) + " less " + std::to_string(c.unseen);
}

std::vector<uint16_t> RandomBf16(Random& random, int64_t n) {
  std::vector<uint16_t> bits;
  for (const double x : random.Vector(n, -2, 2)) {
    bits.push_back(BFloat16(static_cast<float>(x)).bits);
  }
  return bits;
}

// Everything that a group of two heads leaves.
std::vector<uint16_t> Results(const AttentionKernelsBf16& kernels, const Case& c) {
  constexpr int64_t kHeads = 2;
  Random random(5, DType::kFloat32);
  const int64_t size = c.seq * c.head_dim, stride = kHeads * c.head_dim;
  const int64_t key_size = c.Keys() * c.head_dim;
  const std::vector<uint16_t> q = RandomBf16(random, kHeads * size),
                              k = RandomBf16(random, key_size), v = RandomBf16(random, key_size),
                              dout = RandomBf16(random, kHeads * size);
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < c.seq; ++i) {
    positions.push_back(static_cast<int32_t>(c.document > 0 ? i % c.document : i));
  }
  std::vector<uint16_t> out(kHeads * size), dq(kHeads * size), dk(key_size), dv(key_size);
  std::vector<float> lse(kHeads * c.seq), bias, bias_sums(kHeads * (c.seq + c.Keys() - 1));
  for (size_t i = 0; i < bias_sums.size(); ++i) bias.push_back(static_cast<float>(i % 7) / 5);
  // The kernel must not read the old contents.
  const auto memory = [](int64_t floats) { return std::vector<float>(floats, __builtin_nanf("")); };
  std::vector<float> forward = memory(kernels.forward_memory(c.seq, c.Keys(), c.head_dim));
  std::vector<float> backward = memory(kernels.backward_memory(c.seq, c.Keys(), c.head_dim));
  const auto head = [&](int64_t h) {
    AttentionHeadBf16 head{.q = q.data() + h * c.head_dim,
                           .k = k.data(),
                           .v = v.data(),
                           .positions = c.keys > 0 && c.document == 0 ? nullptr : positions.data(),
                           .q_stride = stride,
                           .k_stride = c.head_dim,
                           .v_stride = c.head_dim,
                           .out_stride = stride,
                           .seq = c.seq,
                           .keys = c.Keys(),
                           .seen = c.Keys() - c.unseen,
                           .head_dim = c.head_dim,
                           .causal = c.keys == 0,
                           .scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                           .drops = c.rate > 0};
    head.drop = {.threshold = static_cast<uint32_t>(c.rate * 0x1p32),
                 .scale = static_cast<float>(1 / (1 - c.rate)),
                 .site = 3,
                 .head = static_cast<uint32_t>(h),
                 .key = {7, 9}};
    if (c.keys > 0) {
      head.bias = bias.data() + h * (c.seq + c.Keys() - 1);
      head.bias_sums = bias_sums.data() + h * (c.seq + c.Keys() - 1);
    }
    return head;
  };
  for (int64_t h = 0; h < kHeads; ++h) {
    kernels.forward(head(h), h == 0, forward.data(), out.data() + h * c.head_dim,
                    lse.data() + h * c.seq);
  }
  for (int64_t h = 0; h < kHeads; ++h) {
    kernels.backward(head(h), h == 0, h + 1 == kHeads, backward.data(), out.data() + h * c.head_dim,
                     lse.data() + h * c.seq, dout.data() + h * c.head_dim,
                     {dq.data() + h * c.head_dim, stride}, {dk.data(), c.head_dim},
                     {dv.data(), c.head_dim});
  }
  lse.insert(lse.end(), bias_sums.begin(), bias_sums.end());
  std::vector<uint16_t> all(2 * lse.size());
  std::memcpy(all.data(), lse.data(), lse.size() * sizeof(float));
  for (const auto* part : {&out, &dq, &dk, &dv}) all.insert(all.end(), part->begin(), part->end());
  return all;
}

// Documents, dropout, biases and keys out of sight, at odd sizes.
std::vector<Case> Cases() {
  return {{131, 64, 50},         {131, 40, 1},           {100, 64, 0, 0.2},
          {75, 33, 30, 0.5},     {61, 40, 0, 0.2, 99},   {99, 16, 0, 0, 50},
          {131, 33, 50, 0, 131}, {61, 40, 0, 0, 99, 40}, {131, 33, 0, 0, 0, 60},
          {61, 40, 0, 0, 99, 99}};
}

TEST(AttentionKernels, EveryInstructionSetGivesTheSameBits) {
  if (!UseAvx512()) GTEST_SKIP() << "this processor has no AVX-512";
  const FlushedSubnormals flushed;
  std::vector<Case> cases = Cases();
  for (const int64_t seq : {1, 2, 5, 31, 47, 48, 49, 97, 150}) {
    for (const int64_t dim : {1, 2, 15, 16, 37, 64, 80, 255, 256}) cases.push_back({seq, dim});
  }
  for (const Case& c : cases) {
    const std::vector<uint16_t> want = Results(kAttentionFloatsAvx2, c);
    EXPECT_EQ(Results(kAttentionFloatsAvx512, c), want) << Name(c);
    if (UseAvx512Bf16()) {
      EXPECT_EQ(Results(kAttentionPairs, c), want) << Name(c);
    }
  }
}

// The instructions are executed by a signal's handler where the processor has none.
TEST(AttentionKernels, TilesGiveTheSameBits) {
  if (!UseAvx512()) GTEST_SKIP() << "this processor has no AVX-512";
  std::unique_ptr<testing::IllegalTiles> illegal;
  bool hardware = UseAvx512Bf16();
  if (!__builtin_cpu_supports("amx-tile")) {
    illegal = std::make_unique<testing::IllegalTiles>();
  } else {
    hardware = ThisIsa().tiles == TileUse::kHardware;
  }
  const FlushedSubnormals flushed;
  std::vector<Case> cases = Cases();
  for (const int64_t seq : {1, 2, 31, 64, 65, 150}) {
    for (const int64_t dim : {1, 15, 33, 64, 255}) cases.push_back({seq, dim});
  }
  for (const Case& c : cases) {
    const std::vector<uint16_t> want = Results(kAttentionTilesAvx2, c);
    EXPECT_EQ(Results(kAttentionTilesAvx512, c), want) << Name(c);
    if (hardware) {
      EXPECT_EQ(Results(kAttentionTilesAmx, c), want) << Name(c);
    }
  }
  EXPECT_FALSE(testing::IllegalTiles::configured());
}

}  // namespace
}  // namespace fsdp
