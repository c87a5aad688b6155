#include "trainer/ops/embedding.h"

#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "trainer/core/argsort.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;

struct Case {
  int64_t rows, cols, vocab, max_positions;
};

Values Oracle(const Case& c, const Values& tokens, const Values& positions, const Values& wte,
              const Values& wpe) {
  Values y(c.rows * c.cols);
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.cols; ++j) {
      y[i * c.cols + j] = wte[static_cast<int64_t>(tokens[i]) * c.cols + j] +
                          wpe[static_cast<int64_t>(positions[i]) * c.cols + j];
    }
  }
  return y;
}

class EmbeddingTest : public OpTest {
 protected:
  static constexpr double kBefore = 0.25;

  void Upload(const Case& c, const Values& tokens, const Values& positions) {
    tokens_ = Input({c.rows}, tokens, DType::kInt32);
    order_ = OrderOf(tokens);
    positions_ = Input({c.rows}, positions, DType::kInt32);
  }
  View OrderOf(const Values& tokens) {
    const std::vector<int32_t> ids(tokens.begin(), tokens.end());
    std::vector<int32_t> order(ids.size());
    Argsort(ids, order);
    return Input({static_cast<int64_t>(order.size())}, Values(order.begin(), order.end()),
                 DType::kInt32);
  }
  struct Gradients {
    Values dwte, dwpe;
  };
  Gradients Backward(const Case& c, const Values& dy) {
    const View vdy = Input({c.rows, c.cols}, dy);
    const View dwte = Accumulated({c.vocab, c.cols}, kBefore);
    const View dwpe = Accumulated({c.max_positions, c.cols}, kBefore);
    Run([&](Stream& s) { EmbeddingBackward(s, tokens_, order_, positions_, vdy, dwte, dwpe); });
    return {Get(dwte), Get(dwpe)};
  }

  View tokens_, order_, positions_;
};

TEST_P(EmbeddingTest, ForwardMatchesOracle) {
  Random random(1, dtype());
  for (const Case& c : {Case{1, 1, 1, 1}, {37, 3, 1021, 37}, {130, 65, 256, 64}}) {
    const Values tokens = random.Integers(c.rows, c.vocab);
    const Values positions = random.Integers(c.rows, c.max_positions);
    const Values wte = random.Vector(c.vocab * c.cols);
    const Values wpe = random.Vector(c.max_positions * c.cols);
    Upload(c, tokens, positions);
    const View vwte = Input({c.vocab, c.cols}, wte), vwpe = Input({c.max_positions, c.cols}, wpe);
    const View y = Output({c.rows, c.cols});
    Run([&](Stream& s) { EmbeddingForward(s, tokens_, positions_, vwte, vwpe, y); });
    // One addition, rounded once.
    EXPECT_TRUE(AllNear(Get(y), Oracle(c, tokens, positions, wte, wpe), Epsilon(dtype())));
    EXPECT_EQ(cost().flops, c.rows * c.cols);
  }
}

TEST_P(EmbeddingTest, GradientMatchesFiniteDifferences) {
  Random random(2, dtype());
  const Case c{19, 3, 5, 7};  // More rows than tokens: some repeat.
  const Values tokens = random.Integers(c.rows, c.vocab);
  const Values positions = random.Integers(c.rows, c.max_positions);
  const Values wte = random.Vector(c.vocab * c.cols);
  const Values wpe = random.Vector(c.max_positions * c.cols);
  const Values dy = random.Vector(c.rows * c.cols);
  Upload(c, tokens, positions);
  const Gradients got = Backward(c, dy);
  Values dwte = NumericGradient(
      [&](const Values& v) { return Dot(dy, Oracle(c, tokens, positions, v, wpe)); }, wte);
  Values dwpe = NumericGradient(
      [&](const Values& v) { return Dot(dy, Oracle(c, tokens, positions, wte, v)); }, wpe);
  for (double& v : dwte) v += kBefore;
  for (double& v : dwpe) v += kBefore;
  EXPECT_TRUE(AllNear(got.dwte, dwte, Tolerance(dtype(), c.rows)));
  EXPECT_TRUE(AllNear(got.dwpe, dwpe, Tolerance(dtype(), c.rows)));
}

// One float32 sum an element, in the order of the rows, rounded once: known to the bit, whatever
// the threads.
TEST_P(EmbeddingTest, BackwardAddsInOrderOfRows) {
  Random random(3, dtype());
  for (const Case& c : {Case{515, 67, 11, 103}, {4100, 8, 5, 4}}) {
    const Values tokens = random.Integers(c.rows, c.vocab);
    const Values positions = random.Integers(c.rows, c.max_positions);
    const Values dy = random.Vector(c.rows * c.cols);
    std::vector<float> dwte(c.vocab * c.cols, kBefore), dwpe(c.max_positions * c.cols, kBefore);
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t j = 0; j < c.cols; ++j) {
        const auto d = static_cast<float>(dy[i * c.cols + j]);
        dwte[static_cast<int64_t>(tokens[i]) * c.cols + j] += d;
        dwpe[static_cast<int64_t>(positions[i]) * c.cols + j] += d;
      }
    }
    Upload(c, tokens, positions);
    const Gradients got = Backward(c, dy);
    EXPECT_EQ(got.dwte, RoundTo(dtype(), Values(dwte.begin(), dwte.end())));
    EXPECT_EQ(got.dwpe, RoundTo(dtype(), Values(dwpe.begin(), dwpe.end())));
    Clear();
  }
}

// Whatever the dtypes of the tables and of their gradients: the bits of fp32, rounded once.
TEST_P(EmbeddingTest, IsThatOfFp32RoundedOnce) {
  const Case c{515, 1100, 11, 103};
  Random random(5, dtype());
  Upload(c, random.Integers(c.rows, c.vocab), random.Integers(c.rows, c.max_positions));
  const Values dy = random.Vector(c.rows * c.cols);
  for (const DType weights : WeightDTypes()) {
    Random parameters(6, weights);
    const Values wte = parameters.Vector(c.vocab * c.cols);
    const Values wpe = parameters.Vector(c.max_positions * c.cols);
    const auto forward = [&](DType dtype, DType weights) {
      const View vwte = Input({c.vocab, c.cols}, wte, weights);
      const View vwpe = Input({c.max_positions, c.cols}, wpe, weights);
      const View y = Output({c.rows, c.cols}, dtype);
      Run([&](Stream& s) { EmbeddingForward(s, tokens_, positions_, vwte, vwpe, y); });
      const int64_t tables = c.rows * c.cols * 2 * SizeOf(weights), ids = 2 * 4 * c.rows;
      EXPECT_EQ(cost().bytes_read, static_cast<double>(tables + ids));
      return Get(y);
    };
    EXPECT_EQ(forward(dtype(), weights), RoundTo(dtype(), forward(kF32, kF32)));
  }
  const auto backward = [&](DType dtype, DType tokens, DType positions) {
    const View vdy = Input({c.rows, c.cols}, dy, dtype);
    const View dwte = Accumulated({c.vocab, c.cols}, kBefore, tokens);
    const View dwpe = Accumulated({c.max_positions, c.cols}, kBefore, positions);
    Run([&](Stream& s) { EmbeddingBackward(s, tokens_, order_, positions_, vdy, dwte, dwpe); });
    return Gradients{Get(dwte), Get(dwpe)};
  };
  const Gradients want = backward(kF32, kF32, kF32);
  for (const DType tokens : {kF32, kBF16, kF16}) {
    const DType positions = tokens == kF32 ? kBF16 : tokens == kBF16 ? kF16 : kF32;
    const Gradients got = backward(dtype(), tokens, positions);
    EXPECT_EQ(got.dwte, RoundTo(tokens, want.dwte));
    EXPECT_EQ(got.dwpe, RoundTo(positions, want.dwpe));
  }
}

TEST_P(EmbeddingTest, TokensAlone) {
  Random random(4, dtype());
  const Case c{515, 67, 11, 1};
  const Values tokens = random.Integers(c.rows, c.vocab);
  const Values wte = random.Vector(c.vocab * c.cols), dy = random.Vector(c.rows * c.cols);
  const View ids = Input({c.rows}, tokens, DType::kInt32), vwte = Input({c.vocab, c.cols}, wte);
  const View y = Output({c.rows, c.cols}), vdy = Input({c.rows, c.cols}, dy);
  const View dwte = Accumulated({c.vocab, c.cols}, kBefore);
  const View order = OrderOf(tokens);
  Run([&](Stream& s) {
    EmbeddingForward(s, ids, std::nullopt, vwte, std::nullopt, y);
    EmbeddingBackward(s, ids, order, std::nullopt, vdy, dwte, std::nullopt);
  });
  std::vector<float> want(c.vocab * c.cols, kBefore);
  Values rows;
  for (int64_t i = 0; i < c.rows; ++i) {
    const int64_t row = static_cast<int64_t>(tokens[i]) * c.cols;
    rows.insert(rows.end(), wte.begin() + row, wte.begin() + row + c.cols);
    for (int64_t j = 0; j < c.cols; ++j) want[row + j] += static_cast<float>(dy[i * c.cols + j]);
  }
  EXPECT_EQ(Get(y), rows);
  EXPECT_EQ(Get(dwte), RoundTo(dtype(), Values(want.begin(), want.end())));
  ExpectRefused([&](Stream& s) { EmbeddingForward(s, ids, std::nullopt, vwte, vwte, y); },
                "positions and their table go together");
}

TEST_P(EmbeddingTest, AFrozenTableChangesNothingOfTheOther) {
  tokens_ = Input({3}, {0, 4, 0}, DType::kInt32);
  order_ = OrderOf({0, 4, 0});
  positions_ = Input({3}, {1, 0, 1}, DType::kInt32);
  const View dy = Input({3, 2}, {1, 2, 3, 4, 5, 6});
  const View dwte = Accumulated({5, 2}, 0), dwpe = Accumulated({2, 2}, 0);
  Run([&](Stream& s) {
    EmbeddingBackward(s, tokens_, order_, positions_, dy, dwte, std::nullopt);
  });
  Run([&](Stream& s) {
    EmbeddingBackward(s, tokens_, order_, positions_, dy, std::nullopt, dwpe);
  });
  EXPECT_EQ(Get(dwte), (Values{6, 8, 0, 0, 0, 0, 0, 0, 3, 4}));
  EXPECT_EQ(Get(dwpe), (Values{3, 4, 6, 8}));
}

TEST_P(EmbeddingTest, RefusesWrongArguments) {
  Upload({3, 2, 5, 4}, {0, 1, 2}, {0, 1, 2});
  const View wte = Output({5, 2}), wpe = Output({4, 2}), y = Output({3, 2});
  const auto forward = [&](View tokens, View positions, View vwte, View vwpe, View vy,
                           const std::string& message) {
    ExpectRefused([=](Stream& s) { EmbeddingForward(s, tokens, positions, vwte, vwpe, vy); },
                  "[embedding_forward] " + message);
  };
  const View floats = Output({3});
  forward(floats, positions_, wte, wpe, y, "tokens is $T [3], want int32 [3]");
  forward(tokens_, positions_.Slice(0, 2), wte, wpe, y, "positions is int32 [2], want int32 [3]");
  forward(tokens_, positions_, wte.Reshape({2, 5}), wpe, y, "wte is $T [2, 5], want $T [2, 2]");
  forward(tokens_, positions_, wte, wpe.Reshape({8}), y, "wpe is $T [8], want $T with 2");
  const std::string is_half = " is " + std::string(Name(OtherHalf()));
  forward(tokens_, positions_, Output({5, 2}, OtherHalf()), wpe, y, "wte" + is_half);
  forward(tokens_, positions_, wte, Output({4, 2}, OtherHalf()), y, "wpe" + is_half);
  forward(tokens_, positions_, wte, wpe, wte.Slice(2, 6).Reshape({3, 2}), "y and wte overlap");
  ExpectRefused(
      [=, this](Stream& s) { EmbeddingBackward(s, tokens_, order_, positions_, y, wte, wte); },
      "[embedding_backward] dwte and dwpe overlap");
  ExpectRefused(
      [=, this](Stream& s) {
        EmbeddingBackward(s, tokens_, order_.Slice(0, 2), positions_, y, wte, wpe);
      },
      "[embedding_backward] order is int32 [2], want int32 [3]");
  ExpectRefused(
      [=, this](Stream& s) {
        EmbeddingBackward(s, tokens_, order_, positions_, wpe.Slice(0, 6).Reshape({3, 2}), wte,
                          wpe);
      },
      "[embedding_backward] dwpe and dy overlap");
  ExpectDTypesRefused("embedding_forward", [&](Stream& s) {
    const View tokens = Output({3}, DType::kInt32), positions = Output({3}, DType::kInt32);
    EmbeddingForward(s, tokens, positions, Output({5, 2}), Output({4, 2}), Output({3, 2}));
  });
  ExpectDTypesRefused("embedding_backward", [&](Stream& s) {
    const View tokens = Output({3}, DType::kInt32), positions = Output({3}, DType::kInt32);
    const View order = Output({3}, DType::kInt32);
    EmbeddingBackward(s, tokens, order, positions, Output({3, 2}), Output({5, 2}), Output({4, 2}));
  });
}

FSDP_INSTANTIATE_OP_TEST(EmbeddingTest, kF32, kBF16, kF16);

}  // namespace
}  // namespace fsdp
