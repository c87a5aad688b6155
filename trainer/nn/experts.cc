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

// The rows that forward keeps: u = W_gate_up x, a = weight silu(g) u.
struct KeptRows {
  SavedPtr u, a;
};

}  // namespace

struct ExpertRun {
  Route route;
  bool wants_gradients = false;  // Those of x and of the router.
  bool is_divided = false;       // Over several segments.
  // In forward, until y is there.
  SavedPtr base;
  KeptRows rows;
  TensorPtr made;  // W_down a, by row.
  // In backward: of the weights of choices, and of x by row.
  TensorPtr of_weights, dx_rows;
};

namespace {

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

// A grouped product of a piece. `x`, `y`: the rows of x that rows are made of, and those of dy on
// the way back (grouped_linear.h's sources).
struct GroupedLayer {
  const Parameter& weight;
  ConstView offsets;
  int64_t pieces;
  std::optional<ConstView> x = {}, y = {};

  GroupedOptions options() const { return {.parts = pieces}; }
  GroupedOptions options(const Adapter& adapter) const {
    return {.column = adapter.column, .scale = static_cast<float>(adapter.scale), .parts = pieces};
  }
};

// The products of a piece's experts.
struct Piece {
  const ExpertLayer& mixture;
  const Route& route;
  size_t index;

  ConstView offsets() const {
    const int64_t experts = mixture.router->shape()[0] / std::ssize(mixture.pieces);
    return route.offsets->view().Slice(static_cast<int64_t>(index) * experts, experts + 1);
  }
  GroupedLayer Up() const {
    return {.weight = *mixture.pieces[index].gate_up,
            .offsets = offsets(),
            .pieces = std::ssize(mixture.pieces),
            .x = route.tokens->view()};
  }
  GroupedLayer Down() const {
    return {.weight = *mixture.pieces[index].down,
            .offsets = offsets(),
            .pieces = std::ssize(mixture.pieces),
            .y = route.tokens->view()};
  }
  bool is_last() const { return index + 1 == mixture.pieces.size(); }
};

// Without y only the adapters' parts are made. Returns what the adapters' A make of x, for the way
// back.
std::vector<TensorPtr> Forward(Tape& tape, const GroupedLayer& layer, const View& x,
                               const std::optional<View>& y) {
  Stream& stream = tape.stream();
  if (y) {
    GroupedForward(stream, x, layer.x, MatrixOf(tape, layer.weight), layer.offsets, *y,
                   layer.options());
  }
  std::vector<TensorPtr> inner;
  const int64_t rows = layer.x ? layer.x->NumElements() : x.shape[0];
  for (const Adapter& adapter : layer.weight.adapters()) {
    inner.push_back(tape.New(Shape{rows, adapter.b->shape()[1]}, x.dtype));
    const View u = inner.back()->view();
    GroupedForward(stream, x, layer.x, adapter.a->value(), layer.offsets, u, layer.options());
    if (!y) continue;
    GroupedOptions of_y = layer.options(adapter);
    of_y.add = true;
    GroupedForward(stream, u, std::nullopt, adapter.b->value(), layer.offsets, *y, of_y);
  }
  return inner;
}

void Backward(Tape& tape, const GroupedLayer& layer, const std::vector<TensorPtr>& inner,
              const View& x, const View& dy, const std::optional<View>& dx) {
  Stream& stream = tape.stream();
  const ConstView& offsets = layer.offsets;
  const GroupedOptions plain = layer.options();
  if (const std::optional<View> dw = GradOf(layer.weight)) {
    GroupedDw(stream, dy, layer.y, x, layer.x, offsets, *dw, plain);
  }
  if (dx) GroupedDx(stream, dy, layer.y, MatrixOf(tape, layer.weight), offsets, *dx, plain);
  for (size_t i = 0; i < inner.size(); ++i) {
    const Adapter& adapter = layer.weight.adapters()[i];
    const View u = inner[i]->view();
    const GroupedOptions of_y = layer.options(adapter);
    const TensorPtr v = tape.New(u.shape, u.dtype);
    GroupedDx(stream, dy, layer.y, adapter.b->value(), offsets, v->view(), of_y);
    GroupedDw(stream, v->view(), std::nullopt, x, layer.x, offsets, adapter.a->grad(), plain);
    GroupedDw(stream, dy, layer.y, u, std::nullopt, offsets, adapter.b->grad(), of_y);
    if (!dx) continue;
    GroupedOptions adds = plain;
    adds.add = true;
    GroupedDx(stream, v->view(), std::nullopt, adapter.a->value(), offsets, *dx, adds);
  }
}

// The way back of x and of the router, behind that of all pieces.
void RouteBackward(Tape& tape, const Var& x, const ExpertLayer& m, const MixtureBatch& batch,
                   ExpertRun& run) {
  const ExpertRun done = std::exchange(run, {});
  TensorPtr dx;
  if (x.grad) dx = tape.New(x.shape, x.dtype);
  RouterGradients(tape, x.view(), m, batch, done.route, done.of_weights->view(),
                  dx ? std::optional(dx->view()) : std::nullopt);
  if (!dx) return;
  CombineRows(tape.stream(), done.dx_rows->view(), done.route.places->view(), dx->view(),
              dx->view());
  tape.Add(x.grad, std::move(dx));
}

// A piece's part of the way back: adds to its weights' gradients, and writes its rows of the run's.
void PieceBackward(Tape& tape, const Var& x, const Piece& piece, KeptRows kept,
                   const std::vector<TensorPtr>& of_up, const std::vector<TensorPtr>& of_down,
                   const View& dy, ExpertRun& run) {
  const View u = kept.u->Get();
  const int64_t rows = u.shape[0];
  if (piece.is_last()) run.of_weights = tape.New(Shape{rows}, DType::kFloat32);
  {
    const View a = kept.a->Get();
    const TensorPtr da = tape.New(a.shape, a.dtype);
    Backward(tape, piece.Down(), of_down, a, dy, da->view());
    WeightedSwigluBackward(tape.stream(), u, run.route.weights->view(), piece.offsets(), da->view(),
                           u, run.of_weights->view(), std::ssize(piece.mixture.pieces));
  }
  kept.a = nullptr;
  if (piece.is_last() && run.wants_gradients) {
    run.dx_rows = tape.New(Shape{rows, x.shape[1]}, x.dtype);
  }
  Backward(tape, piece.Up(), of_up, x.view(), u,  // Holds du by now.
           run.dx_rows ? std::optional(run.dx_rows->view()) : std::nullopt);
}

// RouteToExperts() but for what follows from further segments.
Var BeginRun(Tape& tape, const Var& x, const Var& base, const ExpertLayer& m,
             const MixtureBatch& batch, const std::shared_ptr<ExpertRun>& run) {
  run->route = RouteTokens(tape, x.view(), m, batch);
  if (!tape.again()) run->base = base.value;
  tape.Push([&tape, x, m, batch, run] { RouteBackward(tape, x, m, batch, *run); });
  Var out = x;
  out.grad = base.grad;
  return out;
}

// Adds up what the last piece has made. Returns y.
Var EndRun(Tape& tape, const Var& in, ExpertRun& run) {
  Var y = tape.NewVar(in.shape, in.dtype);
  const Route& route = run.route;
  CombineRows(tape.stream(), run.made->view(), route.places->view(), run.base->Get(), y.view());
  const auto [u, a] = std::exchange(run.rows, {});
  run.made = nullptr;
  if (run.is_divided) tape.Keep(run.base);
  run.base = nullptr;
  tape.Keep(u);
  tape.Keep(a);
  tape.Cheap({a}, [&tape, u = u, route](const std::vector<View>& out) {
    WeightedSwigluForward(tape.stream(), u->Get(), route.weights->view(), route.offsets->view(),
                          out[0]);
  });
  return y;
}

}  // namespace

std::shared_ptr<ExpertRun> NewExpertRun() { return std::make_shared<ExpertRun>(); }
void WantGradients(ExpertRun& run, bool wanted) { run.wants_gradients = wanted; }

Var RouteToExperts(Tape& tape, const Var& x, const Var& base, const ExpertLayer& m,
                   const MixtureBatch& batch, const std::shared_ptr<ExpertRun>& run) {
  run->is_divided = true;
  Var out = BeginRun(tape, x, base, m, batch, run);
  tape.Share(x.value);
  tape.Share(base.value);
  return out;
}

Var RunExperts(Tape& tape, const Var& in, const ExpertLayer& m, size_t index,
               const std::shared_ptr<ExpertRun>& run) {
  const Piece piece{m, run->route, index};
  const int64_t rows = run->route.tokens->view().NumElements();
  const int64_t inner = m.pieces[index].down->shape()[1];
  const bool again = tape.again();  // Then each piece has rows of its own, for a while.
  const auto tensor = [&](int64_t cols) { return tape.New(Shape{rows, cols}, in.dtype); };
  KeptRows kept = run->rows;
  if (index == 0 || again) {
    kept = {std::make_shared<Saved>(tensor(2 * inner)), std::make_shared<Saved>(tensor(inner))};
  }
  std::vector<TensorPtr> of_up = Forward(tape, piece.Up(), in.view(), kept.u->Get());
  const View a = kept.a->Get();
  WeightedSwigluForward(tape.stream(), kept.u->Get(), run->route.weights->view(), piece.offsets(),
                        a, std::ssize(m.pieces));
  if (index == 0 && !again) {
    run->rows = kept;
    run->made = tensor(in.shape[1]);
  }
  std::vector<TensorPtr> of_down =
      Forward(tape, piece.Down(), a, again ? std::nullopt : std::optional(run->made->view()));
  Var y = in;
  if (piece.is_last() && !again) {
    y = EndRun(tape, in, *run);
  } else if (tape.recording()) {
    y.grad = std::make_shared<TensorPtr>();
  }
  tape.Push([&tape, x = in, m, index, run, kept = std::move(kept), of_up = std::move(of_up),
             of_down = std::move(of_down), grad = y.grad]() mutable {
    TensorPtr dy = Tape::Take(grad);
    PieceBackward(tape, x, {m, run->route, index}, std::move(kept), of_up, of_down, dy->view(),
                  *run);
    tape.Add(x.grad, std::move(dy));
  });
  return y;
}

Var Experts(Tape& tape, const Var& x, const Var& base, const ExpertLayer& mixture,
            const MixtureBatch& batch) {
  const std::shared_ptr<ExpertRun> run = NewExpertRun();
  Var y = BeginRun(tape, x, base, mixture, batch, run);
  WantGradients(*run, x.grad != nullptr);
  for (size_t i = 0; i < mixture.pieces.size(); ++i) y = RunExperts(tape, y, mixture, i, run);
  return y;
}

MixtureBatch BatchOfMixtures(Tape& tape, const TokenBatch& batch, float scale, int64_t mixtures) {
  MixtureBatch made{
      .lengths = batch.lengths, .sample_weights = nullptr, .scale = scale, .mixtures = mixtures};
  if (!tape.training()) return made;
  made.sample_weights = tape.New(batch.lengths.shape, DType::kFloat32);
  SampleWeights(tape.stream(), batch.weights, made.sample_weights->view());
  return made;
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
