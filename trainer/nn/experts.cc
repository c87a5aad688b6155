#include "trainer/nn/experts.h"

#include <optional>
#include <utility>
#include <vector>

#include "trainer/nn/layer_tools.h"
#include "trainer/nn/layers.h"
#include "trainer/nn/matrix_of.h"
#include "trainer/ops/activations.h"
#include "trainer/ops/expert_rows.h"
#include "trainer/ops/grouped_linear.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/router.h"
#include "trainer/ops/running_statistics.h"
#include "trainer/ops/swiglu.h"

namespace fsdp {
namespace {

constexpr WeightLayout kLayout = WeightLayout::kOutIn;

// Where a micro-batch's tokens went: what forward keeps for backward. All by value, and shared.
struct Route {
  TensorPtr logits, choices;          // fp32 [T, N]; int32 [T, k].
  TensorPtr offsets, tokens, places;  // As GroupRows() makes them.
  TensorPtr weights;                  // fp32 [T k], by row.
  TensorPtr shares;                   // fp32 [T / length, N] or [N]; null where nothing trains.
};

// The share of tokens that chose each expert in the step before; zeros in the first step.
TensorPtr SharesBefore(Tape& tape, const ExpertLayer& m, int64_t experts) {
  TensorPtr shares = tape.New(Shape{experts}, DType::kFloat32);
  const ConstView sums = m.tally->Before();
  MeanOf(tape.stream(), sums.Slice(experts, experts), sums.Slice(2 * experts, 1), shares->view());
  return shares;
}

// A segment that is run again has the choices, shares and tally of its forward.
Route RouteTokens(Tape& tape, const View& x, const ExpertLayer& m, const MixtureBatch& batch) {
  Stream& stream = tape.stream();
  const int64_t tokens = x.shape[0], experts = m.router->shape()[0];
  const int64_t k = m.options.experts_per_token, samples = batch.lengths.shape[0];
  Route route;
  route.logits = tape.New(Shape{tokens, experts}, DType::kFloat32);
  const View logits = route.logits->view();
  LinearForward(stream, x, m.router->value(), kLayout, std::nullopt, logits);
  route.choices = tape.Once([&] {
    TensorPtr choices = tape.New(Shape{tokens, k}, DType::kInt32);
    std::optional<ConstView> bias;
    if (m.bias != nullptr) bias = m.bias->Before();
    ChooseExperts(stream, logits, bias, batch.lengths, m.options, choices->view());
    return choices;
  });
  const View choices = route.choices->view();
  if (tape.training()) {
    const bool of_step = tape.balance().scope == BalanceScope::kStep;
    route.shares = tape.Once([&] {
      TensorPtr own = tape.New(Shape{samples, experts}, DType::kFloat32);
      const TensorPtr losses = tape.New(Shape{samples, 2}, DType::kFloat32);
      const TensorPtr before = of_step ? SharesBefore(tape, m, experts) : nullptr;
      TallyRouting(stream, logits, choices, batch.lengths, batch.sample_weights->view(),
                   before ? std::optional<ConstView>(before->view()) : std::nullopt, m.options,
                   own->view(), losses->view(), m.tally->Write(tape));
      return before ? before : own;
    });
  }
  const int64_t rows = tokens * k;
  route.offsets = tape.New(Shape{experts + 1}, DType::kInt32);
  route.tokens = tape.New(Shape{rows}, DType::kInt32);
  route.places = tape.New(Shape{tokens, k}, DType::kInt32);
  route.weights = tape.New(Shape{rows}, DType::kFloat32);
  GroupRows(stream, choices, route.offsets->view(), route.tokens->view(), route.places->view());
  RouterWeights(stream, logits, choices, route.places->view(), m.options, route.weights->view());
  return route;
}

// Overwrites dx, which may be left out, with the router's part, and adds to its weight's gradient.
void RouterGradients(Tape& tape, const View& x, const ExpertLayer& m, const MixtureBatch& batch,
                     const Route& route, const View& of_weights, const std::optional<View>& dx) {
  const std::optional<View> dw = GradOf(*m.router);
  if (!dx && !dw) return;
  const BalanceOptions balance = tape.balance();
  const double scale = static_cast<double>(batch.scale) / static_cast<double>(batch.mixtures);
  const TensorPtr dlogits = tape.New(route.logits->view().shape, DType::kFloat32);
  RouterBackward(tape.stream(), route.logits->view(), route.choices->view(), route.places->view(),
                 of_weights, batch.lengths, batch.sample_weights->view(), route.shares->view(),
                 {.aux = scale * balance.aux_loss, .z = scale * balance.z_loss}, tape.loss_scale(),
                 m.options, dlogits->view());
  LinearBackward(tape.stream(), x, m.router->value(), kLayout, dlogits->view(), dx, dw,
                 std::nullopt);
}

// A grouped product of a layer. `x`, `y`: the rows of x that rows are made of, and those of dy on
// the way back (grouped_linear.h's sources).
struct GroupedLayer {
  const Parameter& weight;
  ConstView offsets;
  std::optional<ConstView> x = {}, y = {};
};

// Returns what the adapters' A make of x, for the way back.
std::vector<TensorPtr> Forward(Tape& tape, const GroupedLayer& layer, const View& x,
                               const View& y) {
  Stream& stream = tape.stream();
  GroupedForward(stream, x, layer.x, MatrixOf(tape, layer.weight), layer.offsets, y);
  std::vector<TensorPtr> inner;
  for (const Adapter& adapter : layer.weight.adapters()) {
    const int64_t rank = adapter.b->shape()[1];
    inner.push_back(tape.New(Shape{y.shape[0], rank}, x.dtype));
    const View u = inner.back()->view();
    GroupedForward(stream, x, layer.x, adapter.a->value(), layer.offsets, u);
    GroupedForward(
        stream, u, std::nullopt, adapter.b->value(), layer.offsets, y,
        {.column = adapter.column, .scale = static_cast<float>(adapter.scale), .add = true});
  }
  return inner;
}

void Backward(Tape& tape, const GroupedLayer& layer, const std::vector<TensorPtr>& inner,
              const View& x, const View& dy, const std::optional<View>& dx) {
  Stream& stream = tape.stream();
  const ConstView& offsets = layer.offsets;
  if (const std::optional<View> dw = GradOf(layer.weight)) {
    GroupedDw(stream, dy, layer.y, x, layer.x, offsets, *dw);
  }
  if (dx) GroupedDx(stream, dy, layer.y, MatrixOf(tape, layer.weight), offsets, *dx);
  for (size_t i = 0; i < inner.size(); ++i) {
    const Adapter& adapter = layer.weight.adapters()[i];
    const View u = inner[i]->view();
    const GroupedOptions of_y{.column = adapter.column, .scale = static_cast<float>(adapter.scale)};
    const TensorPtr v = tape.New(u.shape, u.dtype);
    GroupedDx(stream, dy, layer.y, adapter.b->value(), offsets, v->view(), of_y);
    GroupedDw(stream, v->view(), std::nullopt, x, layer.x, offsets, adapter.a->grad());
    GroupedDw(stream, dy, layer.y, u, std::nullopt, offsets, adapter.b->grad(), of_y);
    if (dx) {
      GroupedDx(stream, v->view(), std::nullopt, adapter.a->value(), offsets, *dx, {.add = true});
    }
  }
}

GroupedLayer UpLayer(const ExpertLayer& m, const Route& route) {
  return {.weight = *m.gate_up, .offsets = route.offsets->view(), .x = route.tokens->view()};
}
GroupedLayer DownLayer(const ExpertLayer& m, const Route& route) {
  return {.weight = *m.down, .offsets = route.offsets->view(), .y = route.tokens->view()};
}

// Forward keeps these of the rows: u = W_gate_up x, a = weight silu(g) u, and the adapters' parts.
struct KeptRows {
  SavedPtr u, a;
  std::vector<TensorPtr> of_up = {}, of_down = {};
};

void ExpertsBackward(Tape& tape, const Var& x, const ExpertLayer& m, const MixtureBatch& batch,
                     const Route& route, KeptRows kept, const View& dy) {
  Stream& stream = tape.stream();
  const View u = kept.u->Get();
  const int64_t rows = u.shape[0];
  const TensorPtr of_weights = tape.New(Shape{rows}, DType::kFloat32);
  {
    const View a = kept.a->Get();
    const TensorPtr da = tape.New(a.shape, a.dtype);
    Backward(tape, DownLayer(m, route), kept.of_down, a, dy, da->view());
    WeightedSwigluBackward(stream, u, route.weights->view(), route.offsets->view(), da->view(), u,
                           of_weights->view());
  }
  kept.a = nullptr;
  TensorPtr dx;
  if (x.grad) dx = tape.New(x.shape, x.dtype);
  RouterGradients(tape, x.view(), m, batch, route, of_weights->view(),
                  dx ? std::optional(dx->view()) : std::nullopt);
  const TensorPtr dx_rows = dx ? tape.New(Shape{rows, x.shape[1]}, x.dtype) : nullptr;
  Backward(tape, UpLayer(m, route), kept.of_up, x.view(), u,  // Holds du by now.
           dx ? std::optional(dx_rows->view()) : std::nullopt);
  if (!dx) return;
  CombineRows(stream, dx_rows->view(), route.places->view(), dx->view(), dx->view());
  tape.Add(x.grad, std::move(dx));
}

}  // namespace

MixtureBatch BatchOfMixtures(Tape& tape, const TokenBatch& batch, float scale, int64_t mixtures) {
  MixtureBatch made{
      .lengths = batch.lengths, .sample_weights = nullptr, .scale = scale, .mixtures = mixtures};
  if (!tape.training()) return made;
  made.sample_weights = tape.New(batch.lengths.shape, DType::kFloat32);
  SampleWeights(tape.stream(), batch.weights, made.sample_weights->view());
  return made;
}

Var Experts(Tape& tape, const Var& x, const Var& base, const ExpertLayer& m,
            const MixtureBatch& batch) {
  const Route route = RouteTokens(tape, x.view(), m, batch);
  const int64_t rows = route.tokens->view().NumElements(), inner = m.down->shape()[1];
  KeptRows kept{.u = tape.NewSaved(Shape{rows, 2 * inner}, x.dtype),
                .a = tape.NewSaved(Shape{rows, inner}, x.dtype)};
  kept.of_up = Forward(tape, UpLayer(m, route), x.view(), kept.u->Get());
  const auto activate = [&tape, u = kept.u, route](const View& out) {
    WeightedSwigluForward(tape.stream(), u->Get(), route.weights->view(), route.offsets->view(),
                          out);
  };
  activate(kept.a->Get());
  Var y = tape.NewVar(base.shape, base.dtype);
  {
    const TensorPtr made = tape.New(Shape{rows, x.shape[1]}, x.dtype);
    kept.of_down = Forward(tape, DownLayer(m, route), kept.a->Get(), made->view());
    CombineRows(tape.stream(), made->view(), route.places->view(), base.view(), y.view());
  }
  if (!tape.recording()) return y;
  tape.Cheap({kept.a}, [activate](const std::vector<View>& out) { activate(out[0]); });
  tape.Push([&tape, x, m, batch, route, kept = std::move(kept), base = base.grad,
             grad = y.grad]() mutable {
    TensorPtr dy = Tape::Take(grad);
    ExpertsBackward(tape, x, m, batch, route, std::move(kept), dy->view());
    tape.Add(base, std::move(dy));
  });
  return y;
}

Var GatedSharedExpert(Tape& tape, const Var& x, const Var& base, const GatedMlp& mlp) {
  Stream& stream = tape.stream();
  const Var u = Linear(tape, x, *mlp.gate_up, kLayout, nullptr);
  const int64_t rows = x.shape[0], inner = u.shape[1] / 2;
  const TensorPtr gate = tape.New(Shape{rows, 1}, DType::kFloat32);
  LinearForward(stream, x.view(), mlp.gate->value(), kLayout, std::nullopt, gate->view());
  ActivationForward(stream, Activation::kSigmoid, gate->view(), gate->view());
  const View weights = gate->view().Reshape(Shape{rows});
  Var a = tape.NewVar(Shape{rows, inner}, x.dtype);
  const auto activate = [&tape, u = u.value, gate, weights](const View& out) {
    WeightedSwigluForward(tape.stream(), u->Get(), weights, std::nullopt, out);
  };
  activate(a.view());
  tape.Cheap({a.value}, [activate](const std::vector<View>& out) { activate(out[0]); });
  tape.Push([&tape, x, u, gate, weights, &parameter = *mlp.gate, grad = a.grad] {
    const TensorPtr da = Tape::Take(grad);
    const TensorPtr of_gate = tape.New(gate->view().shape, DType::kFloat32);
    TensorPtr du = tape.New(u.shape, u.dtype);
    WeightedSwigluBackward(tape.stream(), u.view(), weights, std::nullopt, da->view(), du->view(),
                           of_gate->view().Reshape(weights.shape));
    if (u.grad) tape.Add(u.grad, std::move(du));
    ActivationBackward(tape.stream(), Activation::kSigmoid, gate->view(), of_gate->view(),
                       of_gate->view());
    TensorPtr dx = x.grad ? tape.New(x.shape, x.dtype) : nullptr;
    const std::optional<View> dw = GradOf(parameter);
    if (!dx && !dw) return;
    LinearBackward(tape.stream(), x.view(), parameter.value(), kLayout, of_gate->view(),
                   dx ? std::optional(dx->view()) : std::nullopt, dw, std::nullopt);
    if (dx) tape.Add(x.grad, std::move(dx));
  });
  return LinearResidual(tape, a, *mlp.down, kLayout, nullptr, base);
}

}  // namespace fsdp
