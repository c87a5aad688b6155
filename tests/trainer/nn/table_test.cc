#include "trainer/nn/table.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/testing/on_tape.h"
#include "trainer/autograd/tape.h"

namespace fsdp {
namespace {

// Gives out numbers that count the calls, and keeps what comes back.
class FakeTables final : public TableVectors {
 public:
  int64_t tables() const override { return 3; }
  int64_t width() const override { return 2; }
  void Pool(Stream& stream, View out) override {
    ++pooled;
    stream.Synchronize();
    for (int64_t i = 0; i < out.NumElements(); ++i) out.As<float>()[i] = static_cast<float>(i);
  }
  void AddGradient(Stream& stream, ConstView d) override {
    stream.Synchronize();
    gradient.assign(d.As<float>(), d.As<float>() + d.NumElements());
  }

  int pooled = 0;
  std::vector<float> gradient;
};

class TableTest : public testing::OnTape {
 protected:
  static Batch OfRows(int64_t rows) {
    Batch batch;
    batch.sample_keys = {nullptr, DType::kInt32, Shape{rows, 2}};
    return batch;
  }
};

TEST_F(TableTest, PoolsForwardAndHandsTheGradientBack) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    FakeTables tables;
    Tape tape(*stream_, allocator_, journal_, /*record=*/true, recompute);
    tape.LookUpIn(&tables);
    const Var y = tape.Segment(0, Var(), /*recomputable=*/true, [&](Tape& inner, const Var&) {
      return PooledVectors(inner, OfRows(4));
    });
    EXPECT_EQ(y.shape, (Shape{12, 2}));
    const TensorPtr d = Random(y.shape, "d");
    const std::vector<float> want = Values(d);
    tape.Add(y.grad, d);
    tape.Backward();
    EXPECT_EQ(tables.gradient, want);
    EXPECT_EQ(tables.pooled, recompute == Recompute::kFull ? 2 : 1);
  }
}

TEST_F(TableTest, RefusesTablesThatCannotBe) {
  const EmbeddingTable a{.name = "a", .rows = 5, .width = 8, .bag = 2};
  const EmbeddingTable b{.name = "b", .rows = 3, .width = 8};
  BatchSpec spec{.inputs = {{.name = kTableIds, .dtype = DType::kInt32, .sample = {3, 2}}}};
  EXPECT_NO_THROW(CheckTables({a, b}, spec));
  EXPECT_NO_THROW(CheckTables({}, BatchSpec()));
  const auto refused = [&](auto change, const std::string& message) {
    EmbeddingTable other = b;
    change(other);
    EXPECT_THROW(
        {
          try {
            CheckTables({a, other}, spec);
          } catch (const std::invalid_argument& error) {
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
            throw;
          }
        },
        std::invalid_argument);
  };
  refused([](EmbeddingTable& t) { t.name = "a"; }, "two tables are called a");
  refused([](EmbeddingTable& t) { t.rows = 0; }, "b has 0 rows");
  refused([](EmbeddingTable& t) { t.bag = 0; }, "b takes 0 ids");
  refused([](EmbeddingTable& t) { t.width = 7; }, "b is 7 wide");
  refused([](EmbeddingTable& t) { t.dtype = DType::kBFloat16; }, "b has another dtype");
  refused([](EmbeddingTable& t) { t.capacity = 3; }, "b has a capacity");
  refused([](EmbeddingTable& t) { t.rows = int64_t{1} << 57; }, "more than 2^59 elements");
  refused([](EmbeddingTable& t) { t.bag = 2; }, "not int32 [4, 2]");
  EXPECT_THROW(CheckTables({a}, BatchSpec()), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp
