#include "trainer/nn/buffer.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/testing/on_tape.h"
#include "trainer/autograd/tape.h"

namespace fsdp {
namespace {

class BufferTest : public testing::OnTape {
 protected:
  // The state that a body sees in each pass over its segment.
  struct Seen {
    bool training, writes;
    bool operator==(const Seen&) const = default;
  };
  std::vector<Seen> SeenBy(bool record, Recompute recompute) {
    std::vector<Seen> seen;
    const TensorPtr x = Random({2, 3}, "x");
    Tape tape(*stream_, allocator_, journal_, record, recompute);
    const Var input(x, record ? std::make_shared<TensorPtr>() : nullptr);
    const Var y = tape.Segment(0, input, /*recomputable=*/true, [&](Tape& t, const Var& in) {
      seen.push_back({t.training(), t.writes_buffers()});
      Var out = t.NewVar(in.shape, in.dtype);
      t.Push([&t, grad = out.grad, in = in.grad] { t.Add(in, Tape::Take(grad)); });
      return out;
    });
    if (record) *y.grad = Random({2, 3}, "dy");
    tape.Backward();
    stream_->Synchronize();
    return seen;
  }
};

TEST_F(BufferTest, ForwardOfATrainingStepWrites) {
  EXPECT_EQ(SeenBy(false, Recompute::kNone), (std::vector<Seen>{{false, false}}));
  EXPECT_EQ(SeenBy(true, Recompute::kNone), (std::vector<Seen>{{true, true}}));
  EXPECT_EQ(SeenBy(true, Recompute::kFull), (std::vector<Seen>{{true, true}, {true, false}}));
}

using BufferDeathTest = BufferTest;

TEST_F(BufferDeathTest, OthersMayNot) {
  ModelBuffer buffer("mean", Shape{3}, DType::kFloat32, 0);
  const TensorPtr value = Random({3}, "value");
  Tape train(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
  Tape eval(*stream_, allocator_, journal_, /*record=*/false, Recompute::kNone);
  EXPECT_DEATH((void)buffer.Read(eval), "mean is read outside a step");
  buffer.Bind(value->view(), {});
  EXPECT_EQ(buffer.Read(eval).data, value->view().data);
  EXPECT_EQ(buffer.Write(train).data, value->view().data);
  EXPECT_DEATH((void)buffer.Read(train), "mean is read in a training step");
  EXPECT_DEATH((void)buffer.Write(eval), "mean is written outside the forward");
  EXPECT_DEATH(buffer.Bind(Random({4}, "other")->view(), {}), "mean is fp32 of shape \\[3\\]");
}

// Training reads the tally and the bias of the steps before.
TEST_F(BufferDeathTest, TalliesAndBiasesAreOfTheStepsBefore) {
  ModelBuffer tally("tally", Shape{3}, ModelBuffer::Kind::kTally);
  ModelBuffer bias("bias", Shape{3}, ModelBuffer::Kind::kBias);
  ModelBuffer mean("mean", Shape{3}, DType::kFloat32, 0);
  const TensorPtr value = Random({3}, "value"), before = Random({3}, "before");
  Tape train(*stream_, allocator_, journal_, /*record=*/true, Recompute::kNone);
  EXPECT_DEATH((void)tally.Before(), "tally is read outside a step");
  for (ModelBuffer* buffer : {&tally, &bias, &mean}) buffer->Bind(value->view(), before->view());
  EXPECT_EQ(tally.Before().data, before->view().data);
  EXPECT_EQ(tally.Write(train).data, value->view().data);
  EXPECT_EQ(bias.Before().data, before->view().data);
  EXPECT_DEATH((void)bias.Write(train), "bias is written by forward");
  EXPECT_DEATH((void)mean.Before(), "mean is a statistic");
}

TEST_F(BufferTest, IsAStatisticOrACount) {
  EXPECT_THROW(ModelBuffer("x", Shape{3}, DType::kBFloat16, 0), std::invalid_argument);
  EXPECT_THROW(ModelBuffer("x", Shape{0}, DType::kFloat32, 0), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
