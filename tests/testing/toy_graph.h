// A model that is no chain of equal blocks: float images, an encoder's output that four segments
// read, a table that two of them multiply with, units of very different size, and running means.
#ifndef FSDP_TRAIN_TESTS_TESTING_TOY_GRAPH_H_
#define FSDP_TRAIN_TESTS_TESTING_TOY_GRAPH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/autograd/tape.h"
#include "trainer/data/synthetic/synthetic.h"
#include "trainer/nn/layer_tools.h"
#include "trainer/nn/layers.h"
#include "trainer/nn/model.h"
#include "trainer/ops/batch_norm.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/running_statistics.h"

namespace fsdp::testing {

inline constexpr float kCentredMomentum = 0.25f;

// x [rows, columns] itself in training, which adds its mean to the running one; otherwise x less
// that.
inline Var Centred(Tape& t, const Var& x, ConstView weight, ModelBuffer& mean) {
  const int64_t columns = x.shape[1];
  if (t.writes_buffers()) {
    const TensorPtr part = t.New(Shape{1 + 2 * columns}, DType::kFloat32);
    const TensorPtr statistics = t.New(Shape{1 + 2 * columns}, DType::kFloat32);
    const TensorPtr variance = t.New(Shape{columns}, DType::kFloat32);  // Read by nobody.
    const Workspace workspace(t, BatchNormWorkspaceBytes(x.shape));
    BatchMoments(t.stream(), x.view(), weight, part->view(), workspace.view());
    Fill(t.stream(), 0, variance->view());
    JoinMoments(t.stream(), part->view().Reshape(Shape{1, 1 + 2 * columns}), /*eps=*/1,
                statistics->view(),
                RunningMoments{mean.Write(t), variance->view(), kCentredMomentum});
  }
  if (t.training()) return x;
  const TensorPtr less = t.New(Shape{columns}, DType::kFloat32);
  const TensorPtr cast = t.New(Shape{columns}, x.dtype);
  Copy(t.stream(), mean.Read(t), less->view());
  Scale(t.stream(), -1, less->view());
  if (x.dtype == DType::kFloat32) {
    Copy(t.stream(), less->view(), cast->view());
  } else {
    Cast(t.stream(), less->view(), cast->view());
  }
  Var y = t.NewVar(x.shape, x.dtype);
  Copy(t.stream(), x.view(), y.view());
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    Accumulate(t.stream(), cast->view(), y.view().Slice(row * columns, columns));
  }
  return y;
}

//   e  = image W0 + b0                       (stem)
//   h1 = gelu(e T) Wn                        (h.0; T is h.2's, too)
//   h2 = h1 + gelu(e Wu) Wd                  (h.1: Wu, Wd are 20 times as large as the others)
//   h3 = h2 + gelu(h2 T) + e                 (h.2)
//   loss = cross-entropy of norm(h3 + e) C^T (head)
// In evaluations the stem is fed the image less its running mean, and h.2 the same of h2.
class ToyGraph final : public Model {
 public:
  static constexpr int64_t kWidth = 12, kInner = 252, kClasses = 7;

  // `inner`: columns inside h.1.
  explicit ToyGraph(int64_t inner = kInner) {
    const Init normal{0, 0.3f}, ones{1, 0}, zeros{0, 0};
    stem_w_ = New("stem.weight", Shape{15, kWidth}, normal);
    stem_b_ = New("stem.bias", Shape{kWidth}, zeros);
    table_ = New("h.0.table", Shape{kWidth, kWidth}, normal);
    narrow_ = New("h.0.narrow", Shape{kWidth, kWidth}, normal);
    up_ = New("h.1.up", Shape{kWidth, inner}, normal);
    down_ = New("h.1.down", Shape{inner, kWidth}, normal);
    bias_ = New("h.2.bias", Shape{kWidth}, zeros);
    norm_w_ = New("norm.weight", Shape{kWidth}, ones);
    norm_b_ = New("norm.bias", Shape{kWidth}, zeros);
    classes_ = New("classes", Shape{kClasses, kWidth}, normal);
    segments_ = {{"stem", false, {stem_w_, stem_b_}, /*own_unit=*/true},
                 {"h.0", true, {table_, narrow_}},
                 {"h.1", true, {up_, down_}},
                 {"h.2", true, {bias_}, /*own_unit=*/false, /*read_in_backward=*/true, {table_}},
                 {"head", false, {norm_w_, norm_b_, classes_}}};
    segments_[0].buffers = {&stem_mean_, &stem_count_};
    segments_[3].buffers = {&block_mean_};
  }

  static BatchSpec Spec() {
    using Role = BatchInput::Role;
    return {.inputs = {{"image", DType::kFloat32, Shape{3, 5}},
                       {"label", DType::kInt32, Shape{}, Role::kTarget, kClasses},
                       {"weight", DType::kFloat32, Shape{}, Role::kWeight}},
            .targets = 1};
  }
  static std::shared_ptr<const RowSource> Rows() {
    return std::make_shared<SyntheticRows>(Spec(), std::vector<SyntheticRows::Source>{{.seed = 5}},
                                           /*seed=*/0);
  }

  const std::vector<ModelSegment>& segments() const override { return segments_; }
  BatchSpec Inputs(int64_t) const override { return Spec(); }
  WeightLayout linear_layout() const override { return kLayout; }

  void Loss(Tape& tape, const Batch& batch, float scale, View loss) const override {
    using Inputs = std::span<const Var>;
    const View image = batch.inputs[0], label = batch.inputs[1], weight = batch.inputs[2];
    const Var e = tape.Segment(0, {}, /*recomputable=*/false,
                               [&](Tape& t, const Var&) {
                                 const Var x = Centred(t, FromBatch(t, image), weight, stem_mean_);
                                 if (t.writes_buffers())
                                   CountBatch(t.stream(), stem_count_.Write(t));
                                 return Linear(t, x, *stem_w_, kLayout, stem_b_);
                               })
                      .ReadUntil(4);
    const Var h1 = tape.Segment(1, e, /*recomputable=*/true, [this](Tape& t, const Var& in) {
      return Linear(t, Gelu(t, Linear(t, in, *table_, kLayout, nullptr)), *narrow_, kLayout,
                    nullptr);
    });
    const Var h2 = tape.Segment(2, {h1, e}, /*recomputable=*/true, [this](Tape& t, Inputs in) {
      const Var inner = LinearGelu(t, in[1], *up_, kLayout, nullptr);
      return LinearResidual(t, inner, *down_, kLayout, nullptr, in[0]);
    });
    const Var h3 =
        tape.Segment(3, {e, h2}, /*recomputable=*/true, [this, weight](Tape& t, Inputs in) {
          const Var x = Centred(t, in[1], weight, block_mean_);
          const Var sum = Residual(t, x, Gelu(t, Linear(t, x, *table_, kLayout, bias_)));
          return Residual(t, sum, in[0]);
        });
    tape.Segment(4, {h3, e}, /*recomputable=*/false, [&](Tape& t, Inputs in) {
      const Var y = LayerNorm(t, Residual(t, in[0], in[1]), *norm_w_, *norm_b_, 1e-5f);
      HeadLoss(t, y, *classes_, label, weight, scale, loss);
      return Var{};
    });
  }

 private:
  static constexpr WeightLayout kLayout = WeightLayout::kInOut;

  Parameter* New(const std::string& name, const Shape& shape, Init init) {
    parameters_.push_back(
        std::make_unique<Parameter>(name, shape, init, /*decay=*/shape.rank() == 2));
    return parameters_.back().get();
  }

  std::vector<std::unique_ptr<Parameter>> parameters_;
  Parameter *stem_w_, *stem_b_, *table_, *narrow_, *up_, *down_, *bias_;
  Parameter *norm_w_, *norm_b_, *classes_;
  mutable ModelBuffer stem_mean_{"stem.running_mean", Shape{15}, DType::kFloat32, 0.5};
  mutable ModelBuffer stem_count_{"stem.num_batches_tracked", Shape{}, DType::kInt64, 0};
  mutable ModelBuffer block_mean_{"h.2.running_mean", Shape{kWidth}, DType::kFloat32, 0};
  std::vector<ModelSegment> segments_;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_TOY_GRAPH_H_
