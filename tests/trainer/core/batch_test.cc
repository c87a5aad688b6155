#include "trainer/core/batch.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {
namespace {

BatchSpec Spec() {
  using Role = BatchInput::Role;
  return {.inputs = {{"image", DType::kFloat32, Shape{3, 5, 5}},
                     {"label", DType::kInt32, Shape{}, Role::kTarget, 10},
                     {"weight", DType::kFloat32, Shape{}, Role::kWeight}},
          .targets = 1};
}

TEST(Batch, LiesAsTheSpecSays) {
  const BatchSpec spec = Spec();
  EXPECT_EQ(spec.IndexOf("label"), 1u);
  // 4 x 300 bytes, 16, 16 and 32, each up to a multiple of 64.
  EXPECT_EQ(BatchBytes(spec, 4), 1216 + 64 + 64 + 64);
  auto* const begin = reinterpret_cast<std::byte*>(uintptr_t{4096});
  const Batch batch = CarveBatch(spec, 4, begin);
  ASSERT_EQ(batch.inputs.size(), 3u);
  EXPECT_EQ(batch.rows(), 4);
  EXPECT_EQ(batch.inputs[0].shape, (Shape{4, 3, 5, 5}));
  EXPECT_EQ(batch.inputs[0].data, begin);
  EXPECT_EQ(batch.inputs[1].shape, Shape{4});
  EXPECT_EQ(batch.inputs[1].dtype, DType::kInt32);
  EXPECT_EQ(batch.inputs[1].data, begin + 1216);
  EXPECT_EQ(batch.inputs[2].data, begin + 1216 + 64);
  EXPECT_EQ(batch.sample_keys.shape, (Shape{4, 2}));
  EXPECT_EQ(batch.sample_keys.data, begin + 1216 + 128);
}

TEST(Batch, HasFirstRows) {
  std::vector<std::byte> memory(static_cast<size_t>(BatchBytes(Spec(), 4)));
  const Batch batch = CarveBatch(Spec(), 4, memory.data()), first = batch.First(2);
  EXPECT_EQ(first.rows(), 2);
  EXPECT_EQ(first.inputs[0].shape, (Shape{2, 3, 5, 5}));
  EXPECT_EQ(first.inputs[0].data, batch.inputs[0].data);
  EXPECT_EQ(first.inputs[1].shape, Shape{2});
  EXPECT_EQ(first.sample_keys.shape, (Shape{2, 2}));
}

TEST(BatchDeathTest, NamesWhatIsNotThere) { EXPECT_DEATH(Spec().IndexOf("lable"), "lable"); }

}  // namespace
}  // namespace fsdp
