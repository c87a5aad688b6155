#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/numeric.h"
#include "tests/trainer/ops/quantize_model.h"
#include "trainer/core/dtype.h"
#include "trainer/ops/nf4.h"
#include "trainer/ops/state_codes.h"
#include "trainer/ops/weight_codes.h"

namespace fsdp {
namespace {

// Written by tools/reference/weight_codes.py, which describes it. By name: "3.codes".
const std::map<std::string, std::vector<uint32_t>>& Fixture() {
  static const auto lines = [] {
    std::ifstream file("tests/fixtures/weight_codes/nf4.txt");
    std::map<std::string, std::vector<uint32_t>> read;
    std::string line, name;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      words >> name >> std::hex;
      for (uint32_t word; words >> word;) read[name].push_back(word);
    }
    return read;
  }();
  return lines;
}

float Mixed(uint64_t i, uint64_t seed) {
  auto word = static_cast<uint32_t>(i * 2654435761u + seed * 40503 + 12345);
  word = (word ^ (word >> 15)) * 2246822519u;
  return (static_cast<float>(word >> 16) - 32768) / 32768;
}

// Tensor `name` of the fixture, whose values are listed or follow a formula.
std::vector<float> TensorOf(const std::string& name) {
  const auto& about = Fixture().at(name + ".tensor");
  const auto listed = Fixture().find(name + ".x");
  std::vector<float> x(about[0]);
  for (size_t i = 0; i < x.size(); ++i) {
    if (listed != Fixture().end()) {
      x[i] = std::bit_cast<float>(listed->second[i]);
      continue;
    }
    const float product = Mixed(i, about[1]) * Mixed(i, about[1] + 1);
    x[i] = std::ldexp(product, -static_cast<int>(i / kWeightBlock % 5));
    if (about[2] == 1) x[i] = static_cast<float>(BFloat16(x[i]));
  }
  return x;
}

int64_t Blocks(int64_t elements) { return (elements + kWeightBlock - 1) / kWeightBlock; }

struct Encoded {
  Encoded(WeightCode code, const std::vector<float>& x)
      : code(code), n(std::ssize(x)), records(CodedBytes(code, n), 0xee), scales(Blocks(n), -1) {
    EncodeRecords(code, x, records.data(), scales);
  }

  uint8_t* record(int64_t r) { return records.data() + r * RecordBytes(code); }
  NestedScales& nested(int64_t r) {
    return *reinterpret_cast<NestedScales*>(record(r) + RecordCodeBytes(code));
  }
  // As it lies in a record that has its own.
  float scale(int64_t block) {
    float scale;
    const int64_t at = block % kRecordBlocks * int64_t{sizeof(float)};
    std::memcpy(&scale, record(block / kRecordBlocks) + RecordCodeBytes(code) + at, sizeof(float));
    return scale;
  }
  std::vector<float> Decoded() const {
    std::vector<float> x(n, -7);
    DecodeRecords(code, records.data(), x);
    return x;
  }

  WeightCode code;
  int64_t n;
  std::vector<uint8_t> records;
  std::vector<float> scales;
};

uint32_t Bits(float x) { return std::isnan(x) ? 0x7fc00000u : std::bit_cast<uint32_t>(x); }
std::vector<uint32_t> Bits(const std::vector<float>& x) {
  std::vector<uint32_t> bits;
  for (const float value : x) bits.push_back(Bits(value));
  return bits;
}

std::vector<uint8_t> BytesOf(const std::vector<uint32_t>& words, int64_t bytes) {
  const auto* const first = reinterpret_cast<const uint8_t*>(words.data());
  return {first, first + bytes};
}

TEST(WeightRecords, CodesAndScalesAreBitsandbytes) {
  EXPECT_EQ(Bits(std::vector<float>(kNf4Values.begin(), kNf4Values.end())), Fixture().at("values"));
  int tensors = 0;
  for (; Fixture().contains(std::to_string(tensors) + ".tensor"); ++tensors) {
    const std::string name = std::to_string(tensors);
    SCOPED_TRACE(name);
    const std::vector<float> x = TensorOf(name);
    const int64_t bytes = (std::ssize(x) + 1) / 2;
    const auto codes = BytesOf(Fixture().at(name + ".codes"), bytes);
    Encoded plain(WeightCode::kNf4, x), nested(WeightCode::kNf4Nested, x);
    for (Encoded* own : {&plain, &nested}) {
      EXPECT_EQ(std::vector<uint8_t>(own->record(0), own->record(0) + bytes), codes);
    }
    std::vector<float> scales;
    for (int64_t b = 0; b < Blocks(plain.n); ++b) scales.push_back(plain.scale(b));
    EXPECT_EQ(Bits(scales), Fixture().at(name + ".scales"));
    EXPECT_EQ(Bits(nested.scales), Fixture().at(name + ".scales"));
    EXPECT_EQ(plain.scales, std::vector<float>(scales.size(), -1));
    if (Fixture().contains(name + ".decoded")) {
      EXPECT_EQ(Bits(plain.Decoded()), Fixture().at(name + ".decoded"));
    }
  }
  EXPECT_GE(tensors, 40);
}

float MeanOf(const std::vector<float>& scales) {
  double sum = 0;
  for (int64_t b = 0; b < std::ssize(scales); b += kRecordBlocks) {
    const int64_t count = std::min<int64_t>(kRecordBlocks, std::ssize(scales) - b);
    sum += SumScales(std::span(scales).subspan(b, count));
  }
  return static_cast<float>(sum / static_cast<double>(scales.size()));
}

// bitsandbytes sums the scales in fp32, and its kernel does not always choose the nearest value.
TEST(WeightRecords, NestedScalesAreNearBitsandbytes) {
  int64_t all = 0, others = 0;
  for (const char* name : {"nested0", "nested1", "nested2", "nested3", "nested4"}) {
    SCOPED_TRACE(name);
    const auto of = [&](const char* what) { return Fixture().at(std::string(name) + what); };
    Encoded own(WeightCode::kNf4Nested, TensorOf(name));
    const float mean = MeanOf(own.scales), theirs = std::bit_cast<float>(of(".mean")[0]);
    EXPECT_NEAR(mean, theirs, 4 * Epsilon(DType::kFloat32) * theirs);
    EncodeScales(mean, own.scales, own.records.data());
    const auto codes = BytesOf(of(".codes"), std::ssize(own.scales));
    for (int64_t b = 0; b < std::ssize(own.scales); ++b) {
      const NestedScales& nested = own.nested(b / kRecordBlocks);
      EXPECT_EQ(nested.mean, mean);
      const float maximum = std::bit_cast<float>(of(".maxima")[b / kRecordBlocks]);
      EXPECT_NEAR(nested.maximum, maximum, 4 * Epsilon(DType::kFloat32) * theirs);
      const int code = nested.codes[b % kRecordBlocks];
      EXPECT_LE(std::abs(code - codes[b]), 3) << b;
      all += 1, others += code != codes[b];
    }
  }
  EXPECT_GT(all, 2500);
  EXPECT_LE(static_cast<double>(others), 0.003 * static_cast<double>(all));
}

// From its own codes, maxima and mean. Elements of the value 1 arrive as their scales.
TEST(WeightRecords, NestedScalesArriveAsBitsandbytes) {
  int64_t all = 0;
  for (const char* name : {"nested0", "nested1", "nested2"}) {
    const auto of = [&](const char* what) { return Fixture().at(std::string(name) + what); };
    const auto& decoded = of(".decoded");
    const int64_t blocks = std::ssize(decoded);
    Encoded own(WeightCode::kNf4Nested, std::vector<float>(blocks * kWeightBlock, 1.0f));
    const auto codes = BytesOf(of(".codes"), blocks);
    for (int64_t b = 0; b < blocks; ++b) {
      NestedScales& nested = own.nested(b / kRecordBlocks);
      nested.codes[b % kRecordBlocks] = codes[b];
      nested.maximum = std::bit_cast<float>(of(".maxima")[b / kRecordBlocks]);
      nested.mean = std::bit_cast<float>(of(".mean")[0]);
    }
    const std::vector<float> x = own.Decoded();
    for (int64_t b = 0; b < blocks; ++b, ++all) {
      EXPECT_EQ(Bits(x[b * kWeightBlock]), decoded[b]) << name << " " << b;
    }
  }
  EXPECT_GT(all, 500);
}

// By comparison with all values, in float64.
TEST(WeightRecords, NestedCodesAreTheNearest) {
  std::vector<float> values, scales;
  for (int i = 0; i < 256; ++i) values.push_back(kSignedCodes.values[(i - 127) & 255]);
  EXPECT_TRUE(std::ranges::is_sorted(values));
  for (const double value : Random(1, DType::kFloat32).Vector(600, 0, 2)) {
    scales.push_back(static_cast<float>(value));
  }
  const float mean = 0.75f;
  Encoded own(WeightCode::kNf4Nested, std::vector<float>(std::ssize(scales) * kWeightBlock));
  EncodeScales(mean, scales, own.records.data());
  for (int64_t first = 0; first < std::ssize(scales); first += kRecordBlocks) {
    const NestedScales& nested = own.nested(first / kRecordBlocks);
    const int64_t count = std::min<int64_t>(kRecordBlocks, std::ssize(scales) - first);
    float maximum = 0;
    for (int64_t b = 0; b < count; ++b) {
      maximum = std::max(maximum, std::abs(scales[first + b] - mean));
    }
    EXPECT_EQ(nested.maximum, maximum);
    for (int64_t b = 0; b < count; ++b) {
      const double quotient = (scales[first + b] - mean) / maximum;
      const auto off = [&](float value) { return std::abs(value - quotient); };
      const auto nearest = std::ranges::min_element(values, {}, off);  // The first of two.
      ASSERT_EQ(nested.codes[b], nearest - values.begin()) << quotient;
    }
    for (int64_t b = count; b < kRecordBlocks; ++b) EXPECT_EQ(nested.codes[b], 0);
  }
}

TEST(WeightRecords, EqualScalesAreTheirMean) {
  Encoded own(WeightCode::kNf4Nested, std::vector<float>(130, -0.3f));
  EXPECT_EQ(MeanOf(own.scales), 0.3f);
  EncodeScales(0.3f, own.scales, own.records.data());
  EXPECT_EQ(own.nested(0).maximum, 0);
  EXPECT_EQ(own.nested(0).codes[2], 127);
  EXPECT_EQ(own.Decoded(), std::vector<float>(130, -0.3f));
}

TEST(WeightRecords, ScalesAreSummedInOrderInFloat64) {
  const std::vector<float> scales = {0x1p53f, 1, 1}, backwards = {1, 1, 0x1p53f};
  EXPECT_EQ(SumScales(scales), 0x1p53);
  EXPECT_EQ(SumScales(backwards), 0x1p53 + 2);
}

TEST(WeightRecords, Int8IsThatOfQuantize) {
  Random random(2, DType::kFloat32);
  for (const int64_t n : {1, 64, 100, 256, 300, 16384, 16500}) {
    std::vector<float> x;
    for (const double value : random.Vector(n)) x.push_back(static_cast<float>(value));
    x[n / 2] = 0x1p-120f;
    Encoded own(WeightCode::kInt8, x);
    const std::vector<float> decoded = own.Decoded();
    for (int64_t first = 0; first < n; first += kWeightBlock) {
      const std::vector<float> block(x.begin() + first,
                                     x.begin() + std::min(n, first + kWeightBlock));
      const float scale = ModelScale(QuantizedForm::kInt8, block);
      ASSERT_EQ(own.scale(first / kWeightBlock), scale);
      for (int64_t i = 0; i < std::ssize(block); ++i) {
        const int code = ModelCode(QuantizedForm::kInt8, block[i], scale);
        const int64_t at = first + i;
        ASSERT_EQ(own.record(at / kWeightRecord)[at % kWeightRecord], code) << at;
        ASSERT_EQ(decoded[at], ModelValue(QuantizedForm::kInt8, code, scale)) << at;
      }
    }
  }
}

// All codes, from random bytes. Products and sums of two floats, rounded from float64, are those of
// fp32.
TEST(WeightRecords, ValuesAreThoseOfFloat64) {
  const auto fp32 = [](double value) { return RoundTo(DType::kFloat32, value); };
  Random random(3, DType::kFloat32);
  const int64_t n = kWeightRecord + 333;
  for (const WeightCode code : {WeightCode::kNf4, WeightCode::kNf4Nested, WeightCode::kInt8}) {
    Encoded own(code, std::vector<float>(n, 0.0f));
    for (uint8_t& byte : own.records) byte = static_cast<uint8_t>(random.Integer(0, 255));
    for (int64_t r = 0; r < 2; ++r) {
      if (code == WeightCode::kNf4Nested) {
        own.nested(r).maximum = static_cast<float>(random.Vector(1)[0]);
        own.nested(r).mean = 0.7f;
        continue;
      }
      auto* const scales = reinterpret_cast<float*>(own.record(r) + RecordCodeBytes(code));
      for (int64_t b = 0; b < kRecordBlocks; ++b) {
        scales[b] = static_cast<float>(random.Vector(1)[0]);
      }
    }
    const std::vector<float> x = own.Decoded();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t r = i / kWeightRecord, at = i % kWeightRecord, b = at / kWeightBlock;
      double scale, value;
      if (code == WeightCode::kNf4Nested) {
        const NestedScales& nested = own.nested(r);
        const double of_map = kSignedCodes.values[(nested.codes[b] - 127) & 255];
        scale = fp32(fp32(of_map * nested.maximum) + nested.mean);
      } else {
        scale = own.scale(i / kWeightBlock);
      }
      if (code == WeightCode::kInt8) {
        value = static_cast<int8_t>(own.record(r)[at]);
      } else {
        const uint8_t pair = own.record(r)[at / 2];
        value = kNf4Values[at % 2 == 0 ? pair >> 4 : pair & 15];
      }
      ASSERT_EQ(x[i], fp32(value * scale)) << i;
    }
  }
}

// Codes of 0, and zeros for scales.
TEST(WeightRecords, NothingIsBehindTheEnd) {
  EXPECT_EQ(RecordBytes(WeightCode::kNf4), 9216);
  EXPECT_EQ(RecordBytes(WeightCode::kNf4Nested), 8464);
  EXPECT_EQ(RecordBytes(WeightCode::kInt8), 17408);
  for (const WeightCode code : {WeightCode::kNf4, WeightCode::kNf4Nested, WeightCode::kInt8}) {
    const int64_t scale_bytes = code == WeightCode::kNf4Nested ? 1 : sizeof(float);
    for (const int64_t n : {1, 65, 300, 16384, 16385}) {
      Encoded own(code, std::vector<float>(n, 1.0f));
      ASSERT_EQ(CodedBytes(code, n), (n + 16383) / 16384 * RecordBytes(code));
      const int64_t in_last = (n - 1) % kWeightRecord + 1;
      const uint8_t* const last = own.record((n - 1) / kWeightRecord);
      for (int64_t i = in_last; i < kWeightRecord; ++i) {
        const int code_of_i = code == WeightCode::kInt8 ? last[i]
                              : i % 2 == 0              ? last[i / 2] >> 4
                                                        : last[i / 2] & 15;
        ASSERT_EQ(code_of_i, code == WeightCode::kInt8 ? 0 : 7) << i;
      }
      if (code == WeightCode::kNf4Nested) EncodeScales(0.5f, own.scales, own.records.data());
      const uint8_t* const scales = last + RecordCodeBytes(code);
      for (int64_t i = Blocks(in_last) * scale_bytes; i < kRecordBlocks * scale_bytes; ++i) {
        ASSERT_EQ(scales[i], 0) << i;
      }
    }
  }
}

// All of its block; where scales lie around a mean, all of its tensor.
TEST(WeightRecords, SpecialValuesMakeNaN) {
  for (const WeightCode code : {WeightCode::kNf4, WeightCode::kNf4Nested, WeightCode::kInt8}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      std::vector<float> x(200, 0.5f);
      x[70] = bad;
      Encoded own(code, x);
      if (code == WeightCode::kNf4Nested) {
        EncodeScales(MeanOf(own.scales), own.scales, own.records.data());
      }
      const auto decoded = own.Decoded();
      for (int64_t i = 0; i < 200; ++i) {
        const bool same_block = i / kWeightBlock == 1;
        EXPECT_EQ(std::isnan(decoded[i]), same_block || code == WeightCode::kNf4Nested) << i;
      }
    }
  }
}

}  // namespace
}  // namespace fsdp
