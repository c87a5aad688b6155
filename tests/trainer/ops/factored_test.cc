// Adafactor's passes against the formulas in float64: tensors in pieces, as shards have them.
#include "trainer/ops/factored.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/optimizer_blocks.h"

namespace fsdp {
namespace {

constexpr double kLr = 0.125, kCoefficient = 0.5;
constexpr int64_t kUpdate = 4;

// A tensor of `matrices` matrices, or a vector where height is 0, and the part of it in the shard.
struct Part {
  int64_t matrices, height, columns, first, count;
};

class FactoredTest : public OpTest {
 protected:
  // Parts lie one behind the other, an element of padding between them.
  void Make(const std::vector<Part>& parts, DType p_dtype = kF32,
            double coefficient = kCoefficient) {
    pieces.clear();
    int64_t values = 0, at = 1;
    for (const Part& part : parts) {
      FactoredTensor t;
      t.matrix_rows = part.height;
      t.rows = part.height == 0 ? 1 : part.matrices * part.height;
      t.columns = part.columns;
      t.at = values;
      t.index = static_cast<int64_t>(pieces.size());
      t.lr_scale = pieces.size() % 2 == 0 ? 1 : 8;  // The second is held by 1 / sqrt(t).
      values += t.values();
      pieces.push_back({t, part.first, part.count, at});
      at += part.count + 1;
    }
    n = at;
    Random of_g(21, dtype()), of_p(22, p_dtype), other(23, kF32);
    grads = of_g.Vector(n), weights = of_p.Vector(n);
    for (int64_t i = 0; i < n; ++i) grads[i] *= i % 3 == 0 ? 4 : 1;  // Exact.
    v_before = other.Vector(n, 0, 1);
    moments_before = other.Vector(std::max<int64_t>(values, 1), 0, 1);
    sums_before = std::vector<double>(moments_before.size(), 0.25);  // Other ranks' rows.
    const auto tensors = static_cast<int64_t>(pieces.size());
    const UpdateFactors of_step = FactorsAt(kLr, 0, 0, kUpdate);
    factors = Input(BlockShape<UpdateFactors>(), BytesOf(&of_step, 1), DType::kUInt8);
    c = Input({1}, {coefficient}, kF32);
    g = Input({n}, grads);
    p = Input({n}, weights, p_dtype);
    v = Input({n}, v_before, kF32);
    u = Accumulated({n}, 7, kF32);
    const Shape all{static_cast<int64_t>(moments_before.size())};
    s = {.sums = Input(all, sums_before, kF32),
         .weights = Accumulated({tensors}, 3, kF32),
         .updates = Accumulated({tensors}, 3, kF32),
         .moments = Input(all, moments_before, kF32),
         .fresh = Input({1}, {0.75}, kF32)};
    workspace = Workspace(4 * FactoredWorkspaceElements(pieces));
  }

  void Sums() {
    Run([&](Stream& stream) { FactorSums(stream, pieces, c, g, p, s, workspace); });
  }
  void Fold() {
    std::vector<FactoredTensor> tensors;
    for (const FactoredPiece& piece : pieces) tensors.push_back(piece.tensor);
    Run([&](Stream& stream) { FoldFactors(stream, tensors, options, factors, c, s); });
  }
  void Squares() {
    Run([&](Stream& stream) { UpdateSquares(stream, pieces, options, c, g, v, s, workspace); });
  }
  void Update() {
    Run([&](Stream& stream) { FactoredUpdate(stream, pieces, options, factors, c, g, v, s, u); });
  }

  // The steps of the formulas that follow.
  struct Oracle {
    std::vector<double> sums, weights, moments, updates, v, u;
  };
  Oracle Compute() const {
    Oracle o{.sums = sums_before,
             .weights = {},
             .moments = moments_before,
             .updates = {},
             .v = v_before,
             .u = std::vector<double>(n, 7)};
    const double fresh = std::pow(kUpdate, options.beta2_decay);
    for (const FactoredPiece& piece : pieces) {
      const FactoredTensor& t = piece.tensor;
      const auto row_of = [&](int64_t i) { return t.at + i / t.columns; };
      const auto column_of = [&](int64_t i) {
        return t.at + t.rows + i / t.columns / t.matrix_rows * t.columns + i % t.columns;
      };
      double weight = 0, update = 0;
      std::vector<bool> begun(o.sums.size());
      for (int64_t e = 0; e < piece.count; ++e) {
        const double w = weights[piece.at + e], x = kCoefficient * grads[piece.at + e];
        weight += w * w;
        if (t.matrix_rows == 0) continue;
        for (const int64_t i : {row_of(piece.first + e), column_of(piece.first + e)}) {
          o.sums[i] = (begun[i] ? o.sums[i] : 0) + x * x;
          begun[i] = true;
        }
      }
      // Columns of a matrix that the piece touches are set, also those without an element.
      for (int64_t i = 0; t.matrix_rows > 0 && i < t.matrices() * t.columns; ++i) {
        const int64_t matrix = i / t.columns, first = piece.first / t.columns / t.matrix_rows;
        const int64_t last = (piece.first + piece.count - 1) / t.columns / t.matrix_rows;
        const int64_t at = t.at + t.rows + i;
        if (matrix >= first && matrix <= last && !begun[at]) o.sums[at] = 0;
      }
      o.weights.push_back(weight);
      for (int64_t m = 0; m < t.matrices(); ++m) {
        double mean = 0;
        for (int64_t r = t.at + m * t.matrix_rows; r < t.at + (m + 1) * t.matrix_rows; ++r) {
          o.moments[r] += fresh * (o.sums[r] / t.columns - o.moments[r]);
          mean += o.moments[r] / t.matrix_rows;
        }
        for (int64_t r = t.at + m * t.matrix_rows; r < t.at + (m + 1) * t.matrix_rows; ++r) {
          folded.push_back({r, o.moments[r] / std::max(mean, options.eps1)});
        }
        for (int64_t i = t.at + t.rows + m * t.columns; i < t.at + t.rows + (m + 1) * t.columns;
             ++i) {
          o.moments[i] += fresh * (o.sums[i] / t.matrix_rows - o.moments[i]);
        }
      }
      const auto scaled_row = [&](int64_t r) {
        return std::ranges::find(folded, r, &std::pair<int64_t, double>::first)->second;
      };
      for (int64_t e = 0; e < piece.count; ++e) {
        const int64_t at = piece.at + e;
        const double x = kCoefficient * grads[at];
        double moment;
        if (t.matrix_rows > 0) {
          moment = scaled_row(row_of(piece.first + e)) * o.moments[column_of(piece.first + e)];
        } else {
          moment = o.v[at] += fresh * (x * x - o.v[at]);
        }
        o.u[at] = x / std::sqrt(std::max(moment, options.eps1 * options.eps1));
        update += o.u[at] * o.u[at];
      }
      o.updates.push_back(update);
      const double count = static_cast<double>(t.rows * t.columns);
      const double lr = kLr * t.lr_scale;
      const double scale = std::max(options.eps2, std::sqrt(weight / count)) *
                           std::min(1.0, 1 / (lr * std::sqrt(kUpdate))) /
                           std::max(1.0, std::sqrt(update / count) / options.d);
      for (int64_t e = 0; e < piece.count; ++e) o.u[piece.at + e] *= scale;
      folded.clear();
    }
    return o;
  }

  FactoredOptions options;
  std::vector<FactoredPiece> pieces;
  int64_t n = 0;
  std::vector<double> grads, weights, v_before, moments_before, sums_before;
  View factors, c, g, p, v, u, workspace;
  FactoredSums s;

 private:
  mutable std::vector<std::pair<int64_t, double>> folded;
};
FSDP_INSTANTIATE_OP_TEST(FactoredTest, kF32, kBF16, kF16);

// A whole matrix of several tiles; a part of one whose first row has no element in the first tile;
// one that begins and ends in the middle of rows; a vector; rows of small matrices, of which the
// piece has one and a half; and matrices taller than a block.
const std::vector<std::vector<Part>> kCases = {
    {{1, 131, 1027, 0, 131 * 1027}},
    {{1, 3, 1100, 1050, 1200}},
    {{1, 9, 33, 40, 150}, {0, 0, 70, 3, 60}, {4, 3, 5, 8, 24}},
    {{1, 300, 3, 0, 900}, {2, 260, 2, 0, 1040}, {0, 0, 1, 0, 1}}};

TEST_P(FactoredTest, FollowsTheFormulas) {
  for (const DType p_dtype : {kF32, kBF16}) {
    for (const std::vector<Part>& parts : kCases) {
      if (parts.size() == 1 && kernel_type() != DeviceType::kCpu && dtype() != kF32) continue;
      for (const double d : {1.0, 1e6}) {
        options.d = d;
        options.eps2 = d > 1 ? 2 : 1e-3;
        Make(parts, p_dtype);
        const Oracle want = Compute();
        // A sum of squares has no cancellation: its error is that of its length.
        const double tolerance = Tolerance(kF32, 2000);
        Sums();
        EXPECT_TRUE(AllNear(Get(s.sums), want.sums, tolerance));
        EXPECT_TRUE(AllNear(Get(s.weights), want.weights, tolerance));
        Fold();
        EXPECT_TRUE(AllNear(Get(s.moments), want.moments, tolerance));
        Squares();
        EXPECT_TRUE(AllNear(Get(s.updates), want.updates, tolerance));
        EXPECT_EQ(Get(v), v_before);
        Update();
        EXPECT_TRUE(AllNear(Get(u), want.u, 2 * tolerance));
        EXPECT_TRUE(AllNear(Get(v), want.v, tolerance));
        Clear();
      }
    }
  }
}

TEST_P(FactoredTest, SameBitsOfAnyThreads) {
  Make(kCases[2]);
  ExpectSameBits([&](Stream& stream) { FactorSums(stream, pieces, c, g, p, s, workspace); },
                 {s.sums, s.weights});
  Fold();
  ExpectSameBits(
      [&](Stream& stream) { UpdateSquares(stream, pieces, options, c, g, v, s, workspace); },
      {s.updates});
}

TEST_P(FactoredTest, SkipsWhereTheCoefficientIsNoNumber) {
  for (const double coefficient :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Make(kCases[2], kF32, coefficient);
    Sums();
    Fold();
    Squares();
    Update();
    EXPECT_EQ(Get(s.sums), sums_before);
    EXPECT_EQ(Get(s.moments), moments_before);
    EXPECT_EQ(Get(s.fresh), std::vector<double>{0.75});
    EXPECT_EQ(Get(s.updates), std::vector<double>(3, 3));
    EXPECT_EQ(Get(v), v_before);
    EXPECT_EQ(Get(u), std::vector<double>(n, 7));
    Clear();
  }
}

// From a state of zero, as in a first step.
TEST_P(FactoredTest, ZeroGradientsGiveUpdatesOfZero) {
  Make(kCases[2]);
  for (const View& view : {g, v, s.moments}) {
    Set(view, std::vector<double>(view.NumElements(), 0));
  }
  Sums();
  Fold();
  Squares();
  Update();
  const std::vector<double> updates = Get(u), after = Get(v);
  for (const FactoredPiece& piece : pieces) {
    for (int64_t i = piece.at; i < piece.at + piece.count; ++i) EXPECT_EQ(updates[i], 0) << i;
    if (piece.tensor.matrix_rows > 0) continue;
    for (int64_t i = piece.at; i < piece.at + piece.count; ++i) EXPECT_EQ(after[i], 0) << i;
  }
}

TEST_P(FactoredTest, RefusesWrongArguments) {
  Make(kCases[2]);
  const auto refused = [&](auto change, const char* message) {
    std::vector<FactoredPiece> changed = pieces;
    FactoredOptions other = options;
    change(changed, other);
    ExpectRefused(
        [=, this](Stream& stream) {
          FactorSums(stream, changed, c, g, p, s, workspace);
          FactoredUpdate(stream, changed, other, factors, c, g, v, s, u);
        },
        message);
  };
  using Pieces = std::vector<FactoredPiece>;
  using Options = FactoredOptions;
  refused([](Pieces& x, Options&) { x[0].count = 9 * 33; }, "leaves its tensor");
  refused([](Pieces& x, Options&) { x[2].at += 2; }, "leaves the shard");
  refused([](Pieces& x, Options&) { x[0].tensor.matrix_rows = 2; }, "whole matrices");
  refused([](Pieces& x, Options&) { x[2].tensor.at += 1; }, "leaves sums");
  refused([](Pieces& x, Options&) { x[2].tensor.index = 3; }, "leaves weights");
  ExpectRefused(
      [&](Stream& stream) { UpdateSquares(stream, pieces, {.eps1 = 0}, c, g, v, s, workspace); },
      "eps1");
  ExpectRefused(
      [&](Stream& stream) {
        UpdateSquares(stream, pieces, options, c, g, p.Slice(1, 5), s, workspace);
      },
      "v is fp32 [5]");
  ExpectRefused([&](Stream& stream) { FoldFactors(stream, {}, {.d = 0.5}, factors, c, s); },
                "d, want");
  ExpectRefused([&](Stream& stream) { FoldFactors(stream, {}, {.beta2_decay = 1}, factors, c, s); },
                "beta2_decay");
}

}  // namespace
}  // namespace fsdp
