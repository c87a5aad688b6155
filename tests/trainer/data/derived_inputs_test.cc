#include "trainer/data/derived_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "trainer/data/synthetic/synthetic.h"
#include "trainer/data/tokens/token_batch.h"

namespace fsdp {
namespace {

using Role = BatchInput::Role;
constexpr DType kInt = DType::kInt32;

BatchSpec Spec() {
  return {.inputs = {{"order", kInt, Shape{4}, Role::kDerived, 0, "tokens"},
                     {"tokens", kInt, Shape{4}, Role::kInput, 9},
                     {"places", kInt, Shape{2, 3}, Role::kDerived, 0, "", true},
                     {"weight", DType::kFloat32, Shape{}, Role::kWeight}}};
}

std::vector<int32_t> Ints(const View& view) {
  return {view.As<int32_t>(), view.As<int32_t>() + view.NumElements()};
}

struct Memory {
  Memory(const BatchSpec& spec, int64_t rows)
      : bytes(static_cast<size_t>(BatchBytes(spec, rows)), std::byte{0x5a}),
        batch(CarveBatch(spec, rows, bytes.data())) {}
  std::vector<std::byte> bytes;
  Batch batch;
};

TEST(DerivedInputs, OrderIsOfAllRowsAndPlacesAreOfEach) {
  const Memory memory(Spec(), 2);
  const std::vector<int32_t> tokens = {5, 0, 5, 2, 0, 8, 2, 5};
  std::copy(tokens.begin(), tokens.end(), memory.batch.inputs[1].As<int32_t>());
  CheckDerived(Spec());
  DeriveInputs(Spec(), memory.batch);
  EXPECT_EQ(Ints(memory.batch.inputs[0]), (std::vector<int32_t>{1, 4, 3, 6, 0, 2, 7, 5}));
  EXPECT_EQ(Ints(memory.batch.inputs[1]), tokens);
  EXPECT_EQ(Ints(memory.batch.inputs[2]),
            (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
}

TEST(DerivedInputs, AreThoseOfTokenBatches) {
  BatchSpec spec = TokenInputs(7, 4);
  spec.inputs[4].order_of = "tokens";
  const Memory ours(spec, 3), theirs(spec, 3);
  for (const Memory* memory : {&ours, &theirs}) {
    int32_t* const tokens = memory->batch.inputs[0].As<int32_t>();
    for (int32_t i = 0; i < 21; ++i) tokens[i] = 5 * i % 4;
  }
  DeriveInputs(spec, ours.batch);
  OrderTokens(TokenBatch(theirs.batch));
  EXPECT_EQ(Ints(ours.batch.inputs[4]), Ints(theirs.batch.inputs[4]));
}

TEST(DerivedInputs, AreRefusedWhereNothingIsKnownOfThem) {
  BatchSpec spec = Spec();
  spec.inputs[0].order_of = "token";
  EXPECT_THROW(CheckDerived(spec), std::invalid_argument);
  spec = Spec();
  spec.inputs[0].sample = Shape{5};
  EXPECT_THROW(CheckDerived(spec), std::invalid_argument);
  spec = Spec();
  spec.inputs[1].dtype = DType::kFloat32;
  EXPECT_THROW(CheckDerived(spec), std::invalid_argument);
  spec = Spec();
  spec.inputs[2].dtype = DType::kFloat32;
  EXPECT_THROW(CheckDerived(spec), std::invalid_argument);
  spec = Spec();
  spec.inputs[2].counts = false;
  EXPECT_THROW(CheckDerived(spec), std::invalid_argument);
}

TEST(DerivedInputs, FollowWhatSyntheticRowsDraw) {
  const SyntheticRows rows(Spec(), {{.seed = 3}}, /*seed=*/0);
  const Memory memory(Spec(), 2);
  rows.CheckViews(memory.batch, 2);
  for (int64_t row = 0; row < 2; ++row) rows.Fill(row, row, memory.batch);
  rows.Derive(memory.batch);
  const std::vector<int32_t> tokens = Ints(memory.batch.inputs[1]);
  std::vector<int32_t> order = Ints(memory.batch.inputs[0]);
  for (size_t i = 1; i < order.size(); ++i) EXPECT_LE(tokens[order[i - 1]], tokens[order[i]]);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

}  // namespace
}  // namespace fsdp
