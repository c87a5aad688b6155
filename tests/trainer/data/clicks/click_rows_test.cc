#include "trainer/data/clicks/click_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/data/clicks/click_store.h"

namespace fsdp::testing {
namespace {

// Click i has i as its number, i + 2^32 as its id, and label i mod 2.
class Counted final : public ClickStore {
 public:
  explicit Counted(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  float Read(int64_t i, std::span<float> dense, std::span<int32_t> ids) const override {
    dense[0] = static_cast<float>(i);
    std::fill(ids.begin(), ids.end(), -1);
    WriteId(static_cast<uint64_t>(i) + (uint64_t{1} << 32), ids.first<2>());
    return static_cast<float>(i % 2);
  }
  std::string Describe() const override { return "counted"; }
  const ClickColumns& columns() const override { return columns_; }
  std::vector<std::string> Names() const override { return {"number", "id"}; }
  std::vector<DataFile> Files() const override { return {}; }

 private:
  const ClickColumns columns_{1, {2}, {1}};
  const int64_t size_;
};

// Memory for a batch, poisoned.
struct Memory {
  explicit Memory(int64_t rows)
      : bytes(static_cast<size_t>(BatchBytes(kSpec, rows)), std::byte{0x5a}),
        batch(CarveBatch(kSpec, rows, bytes.data())) {}
  static inline const BatchSpec kSpec = ClickInputs(1, 2);
  std::vector<std::byte> bytes;
  Batch batch;
};

ClickSource Whole(int64_t n) { return ClickRows::Whole(std::make_shared<const Counted>(n)); }

TEST(ClickBatch, IsKnown) {
  EXPECT_TRUE(IsOfClicks(ClickInputs(3, 5)));
  BatchSpec other = ClickInputs(3, 5);
  other.inputs[kClick].dtype = DType::kInt32;
  EXPECT_FALSE(IsOfClicks(other));
  other = ClickInputs(3, 5);
  other.inputs.pop_back();
  EXPECT_FALSE(IsOfClicks(other));
}

TEST(ClickRows, FillARowOfAnEpoch) {
  const ClickRows rows(Memory::kSpec, {Whole(10)}, /*shuffle=*/true, /*seed=*/5);
  Memory memory(2);
  rows.CheckViews(memory.batch, 2);
  std::set<float> seen;
  for (int64_t sample = 0; sample < 10; ++sample) {
    rows.Fill(sample, 1, memory.batch);
    const float number = memory.batch.inputs[kDense].As<float>()[1];
    const int32_t* ids = memory.batch.inputs[kIds].As<int32_t>() + 4;
    EXPECT_EQ(ids[0], static_cast<int32_t>(number));
    EXPECT_EQ(ids[1], 1);
    EXPECT_EQ(ids[2], -1);
    EXPECT_EQ(memory.batch.inputs[kClick].As<float>()[1], static_cast<int>(number) % 2);
    EXPECT_EQ(memory.batch.inputs[kClickWeight].As<float>()[1], 1);
    seen.insert(number);
  }
  EXPECT_EQ(seen.size(), 10u);
  rows.Fill(kNoSample, 0, memory.batch);
  EXPECT_EQ(memory.batch.inputs[kDense].As<float>()[0], 0);
  EXPECT_EQ(memory.batch.inputs[kIds].As<int32_t>()[0], -1);
  EXPECT_EQ(memory.batch.inputs[kIds].As<int32_t>()[3], -1);
  EXPECT_EQ(memory.batch.inputs[kClickWeight].As<float>()[0], 0);
}

// Inputs without memory are left alone: ids can be read by themselves.
TEST(ClickRows, FillIdsAlone) {
  const ClickRows rows(Memory::kSpec, {Whole(10)}, /*shuffle=*/false, /*seed=*/5);
  Memory memory(1);
  for (const ClickInput input : {kDense, kClick, kClickWeight}) {
    memory.batch.inputs[input].data = nullptr;
  }
  rows.Fill(7, 0, memory.batch);
  EXPECT_EQ(memory.batch.inputs[kIds].As<int32_t>()[0], 7);
}

TEST(ClickRows, HoldOutAShareForAllRuns) {
  const ClickRows::Parts parts = ClickRows::HoldOut(Whole(100), 0.2);
  EXPECT_EQ(parts.train.clicks.size(), 80u);
  EXPECT_EQ(parts.valid.clicks.size(), 20u);
  std::set<int64_t> all(parts.train.clicks.begin(), parts.train.clicks.end());
  all.insert(parts.valid.clicks.begin(), parts.valid.clicks.end());
  EXPECT_EQ(all.size(), 100u);
  EXPECT_TRUE(std::is_sorted(parts.train.clicks.begin(), parts.train.clicks.end()));
  EXPECT_NE(parts.valid.clicks.front(), 80) << "anywhere, not at the end";
  EXPECT_EQ(ClickRows::HoldOut(Whole(100), 0.2).valid.clicks, parts.valid.clicks);
  EXPECT_THROW(ClickRows::HoldOut(Whole(4), 0.2), DataError);
}

TEST(ClickRows, RefuseOtherModels) {
  BatchSpec other = Memory::kSpec;
  other.inputs.pop_back();
  EXPECT_THROW(ClickRows(other, {Whole(4)}, false, 0), std::invalid_argument);
  Memory memory(2);
  const ClickRows rows(Memory::kSpec, {Whole(4)}, false, 0);
  EXPECT_THROW(rows.CheckViews(memory.batch, 3), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp::testing
