// A small model of embedding tables: three tables of unlike size, and what their rows' sums say of
// three labels a sample.
#ifndef FSDP_TRAIN_TESTS_TESTING_TOY_TABLES_H_
#define FSDP_TRAIN_TESTS_TESTING_TOY_TABLES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/autograd/tape.h"
#include "trainer/core/batch.h"
#include "trainer/data/synthetic/synthetic.h"
#include "trainer/nn/class_losses.h"
#include "trainer/nn/layers.h"
#include "trainer/nn/model.h"

namespace fsdp::testing {

//   e = pooled rows Ws + bs          (stem)
//   h = e + gelu(e Wu) Wd            (h.0)
//   loss = binary cross-entropy of h w + b with the labels
class ToyTables final : public Model {
 public:
  static constexpr int64_t kTables = 3, kWidth = 8, kInner = 12, kSlots = 6;

  struct Options {
    DType dtype = DType::kFloat32;
    double capacity = 2;
    Init init = {0, 0.5f};
    float stem = 0.4f;           // Standard deviation of Ws.
    bool stem_is_block = false;  // So it may be recomputed.
    int64_t words = 300;         // Rows of the largest table.
  };

  ToyTables() : ToyTables(Options()) {}
  explicit ToyTables(const Options& options) {
    const Init normal{0, 0.4f}, zeros{0, 0};
    const auto add = [&](const std::string& name, const Shape& shape, Init init) {
      parameters_.push_back(std::make_unique<Parameter>(name, shape, init, shape.rank() == 2));
      return parameters_.back().get();
    };
    stem_w_ = add("stem.weight", Shape{kInner, kWidth}, Init{0, options.stem});
    stem_b_ = add("stem.bias", Shape{kInner}, zeros);
    up_ = add("h.0.up", Shape{20, kInner}, normal);
    down_ = add("h.0.down", Shape{kInner, 20}, normal);
    head_w_ = add("head.weight", Shape{1, kInner}, normal);
    head_b_ = add("head.bias", Shape{1}, zeros);
    segments_ = {{"stem", options.stem_is_block, {stem_w_, stem_b_}},
                 {"h.0", true, {up_, down_}},
                 {"head", false, {head_w_, head_b_}}};
    const auto table = [&](const char* name, int64_t rows, int64_t bag) {
      tables_.push_back({name, rows, kWidth, bag, options.init, options.dtype, options.capacity});
    };
    table("tables.user", 50, 2);
    table("tables.item", 7, 1);
    table("tables.word", options.words, 3);
  }

  static BatchSpec Spec() {
    using Role = BatchInput::Role;
    return {.inputs = {{kTableIds, DType::kInt32, Shape{kSlots, 2}, Role::kInput, 1000},
                       {"label", DType::kFloat32, Shape{kTables}, Role::kTarget},
                       {"weight", DType::kFloat32, Shape{kTables}, Role::kWeight}},
            .targets = kTables};
  }
  static std::shared_ptr<const RowSource> Rows();

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  BatchSpec Inputs(int64_t) const override { return Spec(); }
  std::vector<EmbeddingTable> tables() const override { return tables_; }

  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override {
    const Var e = tape.Segment(0, Var(), segments_[0].is_block, [&](Tape& t, const Var&) {
      return Linear(t, PooledVectors(t, batch), *stem_w_, linear_layout(), stem_b_);
    });
    const Var h = tape.Segment(1, e, /*recomputable=*/true, [this](Tape& t, const Var& x) {
      const Var inner = Gelu(t, Linear(t, x, *up_, linear_layout(), nullptr));
      return LinearResidual(t, inner, *down_, linear_layout(), nullptr, x);
    });
    tape.Segment(2, h, /*recomputable=*/false, [&](Tape& t, const Var& x) {
      const Var logits = Linear(t, x, *head_w_, linear_layout(), head_b_);
      BinaryLoss(t, logits, batch.inputs[1], batch.inputs[2], scale, loss);
      return Var{};
    });
  }

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  Parameter *stem_w_, *stem_b_, *up_, *down_, *head_w_, *head_b_;
  std::vector<ModelSegment> segments_;
  std::vector<EmbeddingTable> tables_;
};

// Ids below 2^42, a third of them of a few that all samples share, some absent; a table's label is
// whether its first id is odd.
class ToyIds final : public RowSource {
 public:
  // `stride`: the ids of the largest table are multiples of it.
  explicit ToyIds(int32_t stride = 1) : stride_(stride) {}

  const Mixture& mixture() const override { return rows_.mixture(); }
  int64_t sources() const override { return rows_.sources(); }
  int64_t Rows(int64_t source) const override { return rows_.Rows(source); }
  std::string Describe() const override { return rows_.Describe(); }
  void CheckViews(const Batch& out, int64_t rows) const override { rows_.CheckViews(out, rows); }
  int64_t Targets(int64_t begin, int64_t end) const override { return rows_.Targets(begin, end); }
  std::string WhyNoTargets(const std::string& of) const override { return rows_.WhyNoTargets(of); }
  void Fill(int64_t sample, int64_t row, const Batch& out) const override {
    rows_.Fill(sample, row, out);
    int32_t* const ids = out.inputs[0].As<int32_t>() + row * ToyTables::kSlots * 2;
    for (int64_t slot = 0; slot < ToyTables::kSlots; ++slot) {
      int32_t &low = ids[2 * slot], &high = ids[2 * slot + 1];
      if (low % 3 == 0) {
        low %= 4, high = 0;
      } else if (low % 5 == 0) {
        low = high = -1;
      }
      if (slot >= 3 && low >= 0) low *= stride_, high = 0;
    }
    constexpr int64_t kFirst[] = {0, 2, 3};
    float* const label = out.inputs[1].As<float>() + row * ToyTables::kTables;
    for (int64_t t = 0; t < ToyTables::kTables; ++t) {
      label[t] = ids[2 * kFirst[t]] % 2 != 0 ? 1.0f : 0.0f;
    }
  }

 private:
  const int32_t stride_;
  const SyntheticRows rows_{ToyTables::Spec(), {{.seed = 5}}, /*seed=*/0};
};

inline std::shared_ptr<const RowSource> ToyTables::Rows() { return std::make_shared<ToyIds>(); }

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_TOY_TABLES_H_
