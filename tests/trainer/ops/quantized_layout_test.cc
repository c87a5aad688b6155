#include "trainer/ops/quantized_layout.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/trainer/ops/optimizer_blocks.h"

namespace fsdp {
namespace {

using Kind = QuantizedRow::Kind;

std::string Text(const QuantizedRow& row) {
  const auto range = [](int64_t a, int64_t b) {
    return std::to_string(a) + ":" + std::to_string(b) + " ";
  };
  const std::string kinds[] = {"quantized ", "raw ", "gap "};
  return kinds[static_cast<int>(row.kind)] + "unit " + std::to_string(row.unit) + ", elements " +
         range(row.element + row.first, row.element + row.last) + "in " +
         range(row.first, row.last) + "of " + range(row.stored_first, row.stored_last) + "at " +
         std::to_string(row.data) + ", " + std::to_string(row.blocks) + " scales at " +
         std::to_string(row.scales);
}

std::vector<std::string> Texts(const QuantizedLayout& layout) {
  std::vector<std::string> texts;
  for (const QuantizedRow& row : layout.rows) texts.push_back(Text(row));
  return texts;
}

const std::vector<QuantizedPiece> kPieces = {
    {3, 303, 70}, {303, 303, 5}, {303, 320, 0, false}, {325, 390, 0}};

TEST(QuantizedLayout, BlocksAreCountedFromTheParameter) {
  const QuantizedLayout layout = LayOutQuantized(kPieces, 400, {QuantizedForm::kInt8, 128, kF32});
  EXPECT_EQ(Texts(layout),
            (std::vector<std::string>{
                "gap unit 0, elements 0:3 in 0:3 of 0:0 at 0, 0 scales at 0",
                "quantized unit 1, elements 3:303 in 70:370 of 64:384 at 32, 3 scales at 0",
                "raw unit 3, elements 303:320 in 0:17 of 0:24 at 352, 0 scales at 0",
                "gap unit 4, elements 320:325 in 0:5 of 0:0 at 0, 0 scales at 0",
                "quantized unit 5, elements 325:390 in 0:65 of 0:96 at 480, 1 scales at 448",
                "gap unit 6, elements 390:400 in 0:10 of 0:0 at 0, 0 scales at 0"}));
  EXPECT_EQ(layout.sizes.bytes, 576);
  EXPECT_EQ(layout.sizes.units, 7);
  EXPECT_EQ(layout.sizes.n, 400);
  EXPECT_EQ(layout.sizes.quantized, 365);
  EXPECT_EQ(layout.sizes.raw, 17);
}

TEST(QuantizedLayout, TwoElementsAByte) {
  const QuantizedLayout layout = LayOutQuantized(kPieces, 400, {QuantizedForm::kInt4, 64, kBF16});
  EXPECT_EQ(Text(layout.rows[1]),
            "quantized unit 1, elements 3:303 in 6:306 of 0:320 at 32, 5 scales at 0");
  EXPECT_EQ(Text(layout.rows[2]),
            "raw unit 3, elements 303:320 in 0:17 of 0:32 at 192, 0 scales at 0");
  EXPECT_EQ(Text(layout.rows[4]),
            "quantized unit 5, elements 325:390 in 0:65 of 0:128 at 288, 2 scales at 256");
  EXPECT_EQ(layout.sizes.bytes, 352);
}

TEST(QuantizedLayout, ShardsLieBehindEachOther) {
  const QuantizedOptions options{QuantizedForm::kInt8, 256, kBF16};
  const QuantizedLayout all =
      LayOutQuantizedShards({{{0, 300, 0}}, {}, {{0, 7, 1000}}}, 300, options);
  EXPECT_EQ(Texts(all),
            (std::vector<std::string>{
                "quantized unit 0, elements 0:300 in 0:300 of 0:320 at 32, 2 scales at 0",
                "gap unit 2, elements 300:600 in 0:300 of 0:0 at 352, 0 scales at 352",
                "raw unit 4, elements 600:600 in 0:0 of 0:176 at 352, 0 scales at 352",
                "quantized unit 5, elements 600:607 in 232:239 of 224:256 at 736, 1 scales at 704",
                "gap unit 6, elements 607:900 in 0:293 of 0:0 at 704, 0 scales at 704",
                "raw unit 8, elements 900:900 in 0:0 of 0:144 at 768, 0 scales at 704"}));
  EXPECT_EQ(all.sizes.bytes, 3 * 352);
  EXPECT_EQ(all.sizes.n, 900);
  EXPECT_EQ(all.sizes.units, 9);
  EXPECT_EQ(all.sizes.quantized, 307);
  EXPECT_EQ(LayOutQuantizedShards({}, 300, options).sizes.bytes, 0);
}

TEST(QuantizedLayout, ShardsLieInAnyOrder) {
  const std::vector<std::vector<QuantizedPiece>> shards = {{{0, 10, 0}}, {}, {{2, 10, 0}}};
  const QuantizedOptions options{QuantizedForm::kInt8, 256, kBF16};
  EXPECT_EQ(Texts(LayOutQuantizedShards(shards, 10, options, {2, 0, 1})),
            (std::vector<std::string>{
                "gap unit 0, elements 20:22 in 0:2 of 0:0 at 0, 0 scales at 0",
                "quantized unit 1, elements 22:30 in 0:8 of 0:32 at 32, 1 scales at 0",
                "quantized unit 2, elements 0:10 in 0:10 of 0:32 at 96, 1 scales at 64",
                "gap unit 3, elements 10:20 in 0:10 of 0:0 at 128, 0 scales at 128",
                "raw unit 4, elements 20:20 in 0:0 of 0:32 at 128, 0 scales at 128"}));
  EXPECT_THROW(LayOutQuantizedShards(shards, 10, options, {2, 0}), std::invalid_argument);
  EXPECT_THROW(LayOutQuantizedShards(shards, 10, options, {2, 0, 0}), std::invalid_argument);
}

TEST(QuantizedLayout, PartsMayDifferInSize) {
  const QuantizedOptions options{QuantizedForm::kInt4, 64, kBF16};
  const std::vector<QuantizedPart> parts = {
      {0, 64, {{0, 64, 0}}}, {64, 10, {{0, 10, 64}}}, {74, 0, {}}};
  EXPECT_EQ(Texts(LayOutQuantizedParts(parts, options)),
            (std::vector<std::string>{
                "quantized unit 0, elements 0:64 in 0:64 of 0:64 at 32, 1 scales at 0",
                "quantized unit 1, elements 64:74 in 0:10 of 0:64 at 96, 1 scales at 64",
                "raw unit 2, elements 74:74 in 0:0 of 0:32 at 128, 0 scales at 128"}));
  const QuantizedSizes sizes = LayOutQuantizedParts(parts, options, 128).sizes;
  EXPECT_EQ(sizes.bytes, 3 * 128);
  EXPECT_EQ(sizes.n, 74);
}

// The shares of bf16's bytes that issue and page speak of.
TEST(QuantizedLayout, IsSmall) {
  const int64_t n = 65536;
  const auto share = [&](QuantizedForm form, int block) {
    return static_cast<double>(LayOutQuantized({{0, n, 0}}, n, {form, block, kBF16}).sizes.bytes) /
           static_cast<double>(2 * n);
  };
  EXPECT_LE(share(QuantizedForm::kInt8, 256), 0.508);
  EXPECT_LE(share(QuantizedForm::kFp8, 256), 0.508);
  EXPECT_LE(share(QuantizedForm::kInt4, 256), 0.258);
  EXPECT_LE(share(QuantizedForm::kInt8, 64), 0.532);
  // A shard that begins and ends within blocks.
  const QuantizedLayout part = LayOutQuantized({{5, 65541, 777}}, 65600, {QuantizedForm::kInt4});
  EXPECT_LE(part.sizes.bytes, 0.26 * 2 * 65536);
}

TEST(QuantizedLayout, RefusesDisorder) {
  const auto refusal = [](const std::vector<QuantizedPiece>& pieces, QuantizedOptions options) {
    try {
      LayOutQuantized(pieces, 10, options);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({{0, 4}, {4, 10}}, {}), "");
  EXPECT_EQ(refusal({{-1, 4}}, {}),
            "[lay_out_quantized] piece [-1, 4) is not in order inside [0, 10)");
  EXPECT_EQ(refusal({{0, 4}, {3, 5}}, {}),
            "[lay_out_quantized] piece [3, 5) is not in order inside [4, 10)");
  EXPECT_NE(refusal({{4, 3}}, {}), "");
  EXPECT_NE(refusal({{0, 11}}, {}), "");
  EXPECT_EQ(refusal({{0, 4, -1}}, {}), "[lay_out_quantized] element of a piece, want >= 0");
  EXPECT_EQ(refusal({}, {.block = 32}), "[lay_out_quantized] block, want 64, 128 or 256");
  EXPECT_NE(refusal({}, {.raw = DType::kUInt8}).find("raw is uint8"), std::string::npos);
}

class QuantizedRowsTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(QuantizedRowsTest, kF32);

// More than travel at once.
TEST_P(QuantizedRowsTest, AreWritten) {
  for (const int64_t count : {0, 1, 150}) {
    std::vector<QuantizedPiece> pieces;
    for (int64_t i = 0; i < count; ++i) pieces.push_back({i, i + 1, 3 * i, i % 3 != 0});
    const std::vector<QuantizedRow> rows =
        LayOutQuantized(pieces, count, {QuantizedForm::kInt8, 64, kF32}).rows;
    const View table = Output(QuantizedRowsShape(rows.size()), DType::kUInt8);
    Run([&](Stream& stream) { WriteQuantizedRows(stream, rows, table); });
    EXPECT_EQ(Get(table), BytesOf(rows.data(), rows.size()));
    Clear();
  }
}

TEST_P(QuantizedRowsTest, RefusesAnotherTable) {
  const View table = Output(QuantizedRowsShape(1), DType::kUInt8);
  ExpectRefused([=](Stream& s) { WriteQuantizedRows(s, std::vector<QuantizedRow>(2), table); },
                "[write_quantized_rows] table is uint8");
}

}  // namespace
}  // namespace fsdp
