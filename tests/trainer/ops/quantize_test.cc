#include "trainer/ops/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/optimizer_blocks.h"
#include "tests/trainer/ops/quantize_model.h"

namespace fsdp {
namespace {

constexpr DType kByte = DType::kUInt8;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<double> Doubles(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}
std::vector<float> Floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

// Equal, NaNs to NaNs and zeros to those of their sign.
::testing::AssertionResult Same(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << got.size() << " elements";
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = std::isnan(want[i])
                          ? std::isnan(got[i])
                          : got[i] == want[i] && std::signbit(got[i]) == std::signbit(want[i]);
    if (!same) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << got[i] << ", want " << want[i];
    }
  }
  return ::testing::AssertionSuccess();
}

class QuantizeTest : public OpTest {
 protected:
  QuantizedTable TableOf(const QuantizedLayout& layout) {
    return {layout.sizes, Input(QuantizedRowsShape(layout.rows.size()),
                                BytesOf(layout.rows.data(), layout.rows.size()), kByte)};
  }

  // Runs the ops on x, of the dtype under test, and compares their bytes, and their values in all
  // three dtypes, with the model. Returns the values in fp32.
  std::vector<double> RoundTrip(const std::vector<QuantizedPiece>& pieces,
                                const QuantizedOptions& options, const std::vector<double>& x,
                                int64_t skipped = 0) {
    const auto n = static_cast<int64_t>(x.size());
    const QuantizedLayout layout = LayOutQuantized(pieces, n, options);
    const QuantizedTable table = TableOf(layout);
    std::vector<double> longer(skipped, kNaN);
    longer.insert(longer.end(), x.begin(), x.end());
    const View in = Input({skipped + n}, longer).Slice(skipped, n);
    const View packed = Output({layout.sizes.bytes}, kByte);
    Run([&](Stream& stream) { Quantize(stream, in, table, packed); });
    const ModelShard model = QuantizeModel(pieces, options, Floats(x));
    const bool raw_nan = std::ranges::any_of(pieces, [&](const QuantizedPiece& piece) {
      return !piece.quantized && std::any_of(x.begin() + piece.begin, x.begin() + piece.end,
                                             [](double v) { return std::isnan(v); });
    });
    if (!raw_nan) {  // Which NaN is not said.
      EXPECT_EQ(Get(packed), Doubles(model.packed));
    }
    std::vector<double> values;
    for (const DType to : {kBF16, kF16, kF32}) {
      const View out = Accumulated({skipped + n}, 7, to).Slice(skipped, n);
      Run([&](Stream& stream) { Dequantize(stream, packed, table, out); });
      values = Get(out);
      std::vector<double> want;
      for (const float v : model.values) want.push_back(RoundTo(to, v));
      EXPECT_TRUE(Same(values, want)) << Name(to);
    }
    Clear();
    return values;
  }

  std::vector<double> Whole(const QuantizedOptions& options, const std::vector<double>& x) {
    return RoundTrip({{0, static_cast<int64_t>(x.size())}}, options, x);
  }
};
FSDP_INSTANTIATE_OP_TEST(QuantizeTest, kF32, kBF16, kF16);

// The error that the contract allows to each element of one piece.
void ExpectNear(QuantizedForm form, int64_t block, const std::vector<double>& got,
                const std::vector<double>& x, int64_t element) {
  const auto n = static_cast<int64_t>(x.size());
  for (int64_t i = 0; i < n;) {
    const int64_t end = std::min(n, i + block - (element + i) % block);
    double most = 0;
    for (int64_t j = i; j < end; ++j) most = std::max(most, std::fabs(x[j]));
    const double scale = std::max(most / LevelsOf(form), 0x1p-94);
    for (; i < end; ++i) {
      const double allowed =
          form == QuantizedForm::kFp8 ? std::max(std::fabs(x[i]) / 16, scale * 0x1p-10) : scale / 2;
      ASSERT_LE(std::fabs(got[i] - x[i]), allowed * (1 + 0x1p-14)) << i << ": " << x[i];
    }
  }
}

TEST_P(QuantizeTest, IsAsNearAsItsFormAllows) {
  Random random(/*seed=*/3, dtype());
  for (const QuantizedForm form : kForms) {
    for (const int block : kBlocks) {
      for (const int64_t n : {1, 63, 64, 255, 256, 257, 600}) {
        const auto x = random.Vector(n, -3, 3);
        const int64_t element = random.Integer(0, 1000);
        const auto got = RoundTrip({{0, n, element}}, {form, block, dtype()}, x);
        ExpectNear(form, block, got, x, element);
      }
    }
  }
}

// From the smallest number that there is to the largest: below levels * 2^-94 the scale stays.
TEST_P(QuantizeTest, BlocksAreOfAnySize) {
  Random random(/*seed=*/4, dtype());
  const int lowest = dtype() == kF16 ? -24 : -149, highest = dtype() == kF16 ? 15 : 127;
  for (const QuantizedForm form : kForms) {
    std::vector<double> x;
    for (int exponent = lowest; exponent <= highest; exponent += 4) {
      for (const double v : random.Vector(64)) {
        x.push_back(RoundTo(dtype(), std::ldexp(v, exponent)));
      }
    }
    ExpectNear(form, 64, Whole({form, 64, dtype()}, x), x, 0);
  }
}

TEST_P(QuantizeTest, SmallestScale) {
  if (dtype() == kF16) return;  // Has no such numbers.
  for (const QuantizedForm form : kForms) {
    const double levels = LevelsOf(form);
    // Just enough for a larger scale, as much as the smallest one is for, subnormal, and nothing.
    for (const double most : {levels * 0x1p-93, levels * 0x1p-94, 0x1p-94, 0x1p-95, 0x1p-130}) {
      const auto got = Whole({form, 64, dtype()}, {most, -most, most / 2, 0});
      const bool lost = form == QuantizedForm::kFp8 ? most < 0x1p-104 : most <= 0x1p-95;
      EXPECT_EQ(got[0], lost ? 0 : most);
      EXPECT_EQ(got[1], lost ? 0 : -most);
      EXPECT_EQ(got[3], 0);
    }
  }
}

TEST_P(QuantizeTest, ZerosStayZeros) {
  for (const QuantizedForm form : kForms) {
    EXPECT_EQ(Whole({form, 64, dtype()}, std::vector<double>(150)), std::vector<double>(150));
  }
}

// Its whole block, and no other one's.
TEST_P(QuantizeTest, WhatIsNotFiniteMakesItsBlockNaN) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto x = Random(/*seed=*/6, dtype()).Vector(700);
  for (const QuantizedForm form : kForms) {
    for (const int block : kBlocks) {
      for (const double bad : {kNaN, kInfinity, -kInfinity}) {
        for (const int64_t at : {0, 299, 699}) {
          constexpr int64_t kElement = 30;
          auto with = x;
          with[at] = bad;
          const auto got = RoundTrip({{0, 700, kElement}}, {form, block, dtype()}, with);
          for (int64_t i = 0; i < 700; ++i) {
            const bool same_block = (i + kElement) / block == (at + kElement) / block;
            ASSERT_EQ(std::isnan(got[i]), same_block) << i;
          }
        }
      }
    }
  }
}

// Gaps, raw pieces of every dtype, blocks cut by both ends, in tensors that begin anywhere.
TEST_P(QuantizeTest, LayoutsOfAllKinds) {
  const int turns = kernel_type() == DeviceType::kCpu ? 60 : 12;
  Random random(/*seed=*/7, dtype());
  for (int turn = 0; turn < turns; ++turn) {
    std::vector<QuantizedPiece> pieces;
    int64_t n = 0;
    for (int64_t i = random.Integer(0, 5); i > 0; --i) {
      n += random.Integer(0, 2) * random.Integer(0, 300);
      const int64_t size =
          random.Integer(0, 1) == 0 ? random.Integer(0, 70) : random.Integer(0, 900);
      pieces.push_back(
          {n, n + size, random.Integer(0, 1) * random.Integer(0, 5000), random.Integer(0, 2) > 0});
      n += size;
    }
    n += random.Integer(0, 1) * random.Integer(0, 600);
    const QuantizedOptions options{kForms[turn % 3], kBlocks[random.Integer(0, 2)],
                                   std::vector{kF32, kBF16, kF16}[random.Integer(0, 2)]};
    RoundTrip(pieces, options, random.Vector(n), random.Integer(0, 1) * random.Integer(0, 9));
    if (HasFailure()) return;
  }
}

// Raw elements are rounded as by a cast, and one that is not finite changes no others.
TEST_P(QuantizeTest, RawElementsAreThemselves) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  auto x = Random(/*seed=*/8, dtype()).Vector(300);
  x[3] = kInfinity, x[5] = kNaN, x[6] = SmallestNormal(dtype()), x[7] = -0.0;
  const auto got = RoundTrip({{0, 300, 0, false}}, {QuantizedForm::kInt8, 64, dtype()}, x);
  EXPECT_TRUE(Same(got, x));
}

// All shards of a tensor in one call, each as it would be alone.
TEST_P(QuantizeTest, ShardsTogether) {
  const int64_t n = 333, largest = 384;
  const std::vector<std::vector<QuantizedPiece>> shards = {
      {{0, 333, 0}}, {{0, 40, 333}, {50, 90, 0, false}}, {}, {{300, 333, 77}}};
  const auto x = Random(/*seed=*/9, dtype()).Vector(4 * n);
  const QuantizedOptions options{QuantizedForm::kInt8, 64, dtype()};
  const std::vector<int64_t> order = {2, 3, 0, 1};
  const QuantizedLayout layout = LayOutQuantizedShards(shards, n, options, order);
  ASSERT_EQ(layout.sizes.bytes, 4 * largest);
  const QuantizedTable table = TableOf(layout);
  const View in = Input({4 * n}, x), packed = Output({4 * largest}, kByte),
             out = Output({4 * n}, kF32);
  Run([&](Stream& stream) { Quantize(stream, in, table, packed); });
  Run([&](Stream& stream) { Dequantize(stream, packed, table, out); });
  for (int64_t p = 0; p < 4; ++p) {
    const int64_t r = order[p];
    const std::vector<float> own(x.begin() + r * n, x.begin() + (r + 1) * n);
    const ModelShard model = QuantizeModel(shards[r], options, own, largest);
    EXPECT_EQ(Get(packed.Slice(p * largest, largest)), Doubles(model.packed)) << r;
    EXPECT_TRUE(Same(Get(out.Slice(r * n, n)), {model.values.begin(), model.values.end()})) << r;
  }
}

// In order of ranks, from the first one's values on, whose zeros keep their sign.
TEST_P(QuantizeTest, SumsAreInOrderOfRanks) {
  Random random(/*seed=*/10, dtype());
  const std::vector<QuantizedPiece> pieces = {
      {2, 310, 5}, {310, 350, 0, false}, {360, 700, 256}, {700, 1000, 0, false}};
  const int64_t n = 1003;
  for (const QuantizedForm form : kForms) {
    for (const int64_t ranks : {1, 2, 5}) {
      const QuantizedOptions options{form, kBlocks[ranks % 3], ranks == 5 ? kF32 : dtype()};
      const QuantizedLayout layout = LayOutQuantized(pieces, n, options);
      const QuantizedTable table = TableOf(layout);
      const int64_t stride = layout.sizes.bytes + 16 * ranks;  // More than is needed.
      std::vector<double> packed;
      std::vector<float> sums;
      for (int64_t r = 0; r < ranks; ++r) {
        auto x = random.Vector(n, -4, 4);
        x[311] = -0.0;
        if (r == 1) x[500] = kNaN;
        ModelShard model = QuantizeModel(pieces, options, Floats(x));
        model.packed.resize(stride, 0xff);
        packed.insert(packed.end(), model.packed.begin(), model.packed.end());
        if (r == 0) sums = model.values;
        for (int64_t i = 0; r > 0 && i < n; ++i) {
          const volatile float value = model.values[i];
          sums[i] = sums[i] + value;
        }
      }
      const View in = Input({ranks, stride}, packed, kByte);
      for (const int64_t skipped : {0, 1}) {
        const View out = Output({skipped + n}, kF32).Slice(skipped, n);
        Run([&](Stream& stream) { DequantizeSum(stream, in, table, out); });
        EXPECT_TRUE(Same(Get(out), {sums.begin(), sums.end()}));
      }
      Clear();
    }
  }
}

TEST_P(QuantizeTest, CostsWhatMoves) {
  const QuantizedLayout layout =
      LayOutQuantized({{10, 266, 0}, {266, 274, 0, false}}, 300, {QuantizedForm::kInt4, 256, kF32});
  const QuantizedTable table = TableOf(layout);
  const double rows = static_cast<double>(layout.rows.size() * sizeof(QuantizedRow));
  const double bytes = 32 + 128 + 32, size = static_cast<double>(SizeOf(dtype()));
  ASSERT_EQ(static_cast<double>(layout.sizes.bytes), bytes);
  const View x = Input({300}, std::vector<double>(300)), sum = Output({300}, kF32);
  const View packed = Input({3, 208}, std::vector<double>(3 * 208), kByte);
  Run([&](Stream& stream) { Quantize(stream, x, table, packed); });
  EXPECT_EQ(cost().bytes_read, 264 * size + rows);
  EXPECT_EQ(cost().bytes_written, bytes);
  EXPECT_EQ(cost().flops, 2 * 256);
  Run([&](Stream& stream) { Dequantize(stream, packed, table, x); });
  EXPECT_EQ(cost().bytes_read, bytes + rows);
  EXPECT_EQ(cost().bytes_written, 300 * size);
  Run([&](Stream& stream) { DequantizeSum(stream, packed, table, sum); });
  EXPECT_EQ(cost().bytes_read, 3 * bytes + rows);
  EXPECT_EQ(cost().bytes_written, 300 * 4);
  EXPECT_EQ(cost().flops, 5 * 256 + 2 * 8);
}

TEST_P(QuantizeTest, Nothing) {
  const QuantizedTable table = TableOf(LayOutQuantized({}, 0, {}));
  const View x = Input({0}, {}), packed = Output({0}, kByte);
  EXPECT_NO_THROW(Run([&](Stream& stream) { Quantize(stream, x, table, packed); }));
  EXPECT_NO_THROW(Run([&](Stream& stream) { Dequantize(stream, packed, table, x); }));
}

TEST_P(QuantizeTest, RefusesWrongArguments) {
  const QuantizedLayout layout = LayOutQuantized({{0, 100}}, 100, {});
  const QuantizedTable table = TableOf(layout);
  const int64_t bytes = layout.sizes.bytes;
  const View x = Output({100}), packed = Output({bytes}, kByte), y = Output({100}, kF32);
  const View parts = packed.Reshape({1, bytes});
  ExpectRefused([&](Stream& s) { Quantize(s, Output({101}), table, packed); },
                "[quantize] x is $T [101], want $T [100]");
  ExpectRefused([&](Stream& s) { Quantize(s, x, table, packed.Slice(0, bytes - 32)); },
                "[quantize] packed has 128 bytes, want at least 160");
  ExpectRefused(
      [&](Stream& s) { Quantize(s, x, table, Output({bytes + 32}, kByte).Slice(8, bytes)); },
      "[quantize] packed, want its begin at a multiple of 16 bytes");
  ExpectRefused([&](Stream& s) { Quantize(s, View(packed.data, dtype(), {100}), table, packed); },
                "overlap");
  ExpectRefused(
      [&](Stream& s) {
        Dequantize(s, packed, {layout.sizes, packed.Slice(0, 81)}, x);
      },
      "[dequantize] rows");
  ExpectRefused([&](Stream& s) { DequantizeSum(s, packed, table, y); }, "[dequantize_sum] packed");
  ExpectRefused(
      [&](Stream& s) {
        DequantizeSum(s, packed.Reshape({2, bytes / 2}), table, y);
      },
      "[dequantize_sum] packed has 80 bytes");
  ExpectRefused(
      [&](Stream& s) {
        DequantizeSum(s, Output({2, bytes + 8}, kByte), table, y);
      },
      "multiple of 16");
  ExpectRefused(
      [&](Stream& s) {
        DequantizeSum(s, parts.Slice(0, 0).Reshape({0, bytes}), table, y);
      },
      "no rank");
  ExpectDTypesRefused("quantize", [&](Stream& s) {
    const View elements = Output({100});
    Quantize(s, elements, table, Output({bytes}, kByte));
  });
  ExpectDTypesRefused("dequantize", [&](Stream& s) {
    const View elements = Output({100});
    Dequantize(s, Output({bytes}, kByte), table, elements);
  });
  ExpectDTypesRefused("dequantize_sum", [&](Stream& s) {
    const View sums = Output({100}, kF32);
    DequantizeSum(s, Output({1, bytes}, kByte), table, sums);
  });
}

TEST_P(QuantizeTest, SameBitsForAnyNumberOfThreads) {
  const QuantizedLayout layout = LayOutQuantized({{3, 9000, 100}}, 9001, {.raw = kF32});
  const QuantizedTable table = TableOf(layout);
  const View x = Input({9001}, Random(/*seed=*/11, dtype()).Vector(9001));
  const View packed = Output({layout.sizes.bytes}, kByte);
  ExpectSameBits([&](Stream& s) { Quantize(s, x, table, packed); }, {packed});
}

}  // namespace
}  // namespace fsdp
