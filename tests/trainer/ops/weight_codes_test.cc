#include "trainer/ops/weight_codes.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

constexpr DType kByte = DType::kUInt8;
constexpr WeightCode kCodes[] = {WeightCode::kNf4, WeightCode::kNf4Nested, WeightCode::kInt8};

// Records of n random numbers, whose scales are of all sizes.
struct Coded {
  Coded(WeightCode code, int64_t n, Random& random) : records(CodedBytes(code, n)) {
    std::vector<float> x;
    for (const double value : random.Vector(n)) x.push_back(static_cast<float>(value));
    for (int64_t i = 0; i < n; ++i) x[i] *= static_cast<float>(1 + i / kWeightBlock * 7 % 11);
    std::vector<float> scales((n + kWeightBlock - 1) / kWeightBlock);
    EncodeRecords(code, x, records.data(), scales);
    if (code == WeightCode::kNf4Nested) EncodeScales(4.7f, scales, records.data());
    values.resize(n);
    DecodeRecords(code, records.data(), values);
  }

  std::vector<double> bytes() const { return {records.begin(), records.end()}; }
  std::vector<double> values_in(DType dtype) const {
    return RoundTo(dtype, std::vector<double>(values.begin(), values.end()));
  }

  std::vector<uint8_t> records;
  std::vector<float> values;  // Held to float64 by weight_records_test.cc.
};

class WeightCodesTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(WeightCodesTest, kF32, kBF16, kF16);

// Ends of blocks, of units and of records, and weights that begin anywhere.
TEST_P(WeightCodesTest, ValuesAreRoundedOnce) {
  Random random(/*seed=*/1, kF32);
  for (const WeightCode code : kCodes) {
    for (const int64_t n : {1, 7, 63, 64, 65, 255, 257, 8192, 16383, 16384, 16385, 35001}) {
      const Coded coded(code, n, random);
      const View records = Input({std::ssize(coded.records)}, coded.bytes(), kByte);
      for (const int64_t skipped : {0, 3}) {
        if (skipped > 0 && n > 257 && n < 35001) continue;
        const View w = Output({skipped + n}).Slice(skipped, n);
        Run([&](Stream& stream) { DecodeWeight(stream, records, code, w); });
        EXPECT_EQ(Get(w), coded.values_in(dtype())) << n;
      }
      Clear();
    }
  }
}

TEST_P(WeightCodesTest, CostsWhatMoves) {
  for (const WeightCode code : kCodes) {
    Random random(/*seed=*/2, kF32);
    const Coded coded(code, 1000, random);
    const View records = Input({std::ssize(coded.records)}, coded.bytes(), kByte);
    const View w = Output({10, 100});
    Run([&](Stream& stream) { DecodeWeight(stream, records, code, w); });
    EXPECT_EQ(cost().bytes_read, static_cast<double>(RecordBytes(code)));
    EXPECT_EQ(cost().bytes_written, 1000 * static_cast<double>(SizeOf(dtype())));
    EXPECT_EQ(costs().size(), 1u);
    Clear();
  }
}

TEST_P(WeightCodesTest, Nothing) {
  const View records = Output({0}, kByte), w = Output({0});
  EXPECT_NO_THROW(Run([&](Stream& stream) { DecodeWeight(stream, records, WeightCode::kNf4, w); }));
}

TEST_P(WeightCodesTest, RefusesWrongArguments) {
  constexpr WeightCode kNf4 = WeightCode::kNf4;
  const View records = Output({9216 + 16}, kByte), whole = records.Slice(0, 9216);
  const View w = Output({100});
  ExpectRefused([&](Stream& s) { DecodeWeight(s, whole, WeightCode::kNone, w); },
                "[decode_weight] code is none");
  ExpectRefused([&](Stream& s) { DecodeWeight(s, records, kNf4, w); }, "[decode_weight] records");
  ExpectRefused([&](Stream& s) { DecodeWeight(s, whole, WeightCode::kInt8, w); },
                "[decode_weight] records");
  ExpectRefused([&](Stream& s) { DecodeWeight(s, whole, kNf4, Output({16385})); },
                "[decode_weight] records");
  ExpectRefused([&](Stream& s) { DecodeWeight(s, records.Slice(8, 9216), kNf4, w); },
                "multiple of 16 bytes");
  ExpectRefused([&](Stream& s) { DecodeWeight(s, whole, kNf4, View(whole.data, dtype(), {100})); },
                "overlap");
  ExpectDTypesRefused("decode_weight", [&](Stream& s) {
    const View elements = Output({100});
    DecodeWeight(s, Output({9216}, kByte), kNf4, elements);
  });
}

TEST_P(WeightCodesTest, SameBitsForAnyNumberOfThreads) {
  Random random(/*seed=*/3, kF32);
  for (const WeightCode code : kCodes) {
    const Coded coded(code, 20001, random);
    const View records = Input({std::ssize(coded.records)}, coded.bytes(), kByte);
    const View w = Output({20001});
    ExpectSameBits([&](Stream& s) { DecodeWeight(s, records, code, w); }, {w});
    Clear();
  }
}

}  // namespace
}  // namespace fsdp
