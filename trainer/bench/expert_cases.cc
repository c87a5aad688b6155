#include "trainer/bench/expert_cases.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "trainer/ops/expert_rows.h"
#include "trainer/ops/grouped_linear.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/router.h"
#include "trainer/ops/swiglu.h"

namespace fsdp {
namespace {

using Call = OpCase::Call;

constexpr int64_t kExperts = 16, kPerToken = 4;

struct Sizes {
  int64_t samples, tokens, hidden, inner;

  int64_t rows() const { return tokens * kPerToken; }
};

// Offsets of equal loads, or of loads that fall as 1 / (e + 1), none above the number of tokens.
std::vector<int32_t> Offsets(const Sizes& s, bool zipf) {
  std::vector<int32_t> offsets{0};
  double sum = 0, shares = 0;
  for (int64_t e = 0; e < kExperts; ++e) sum += zipf ? 1.0 / static_cast<double>(e + 1) : 1;
  for (int64_t e = 0; e < kExperts; ++e) {
    shares += (zipf ? 1.0 / static_cast<double>(e + 1) : 1) / sum;
    offsets.push_back(static_cast<int32_t>(shares * static_cast<double>(s.rows()) + 0.5));
  }
  return offsets;
}

View OffsetsOf(BenchTensors& t, const Sizes& s, bool zipf) {
  const std::vector<int32_t> offsets = Offsets(s, zipf);
  return t.Int({kExperts + 1}, [&](int64_t i) { return offsets[i]; });
}

// As GroupRows() would leave it: an expert's tokens rise, with gaps.
View TokensOf(BenchTensors& t, const Sizes& s) {
  return t.Int({s.rows()}, [&](int64_t i) {
    return static_cast<int32_t>(i * kPerToken % s.tokens + i * kPerToken / s.tokens % kPerToken) %
           static_cast<int32_t>(s.tokens);
  });
}

// The products of x [tokens, in] with weights for `out` outputs, rows gathered on the way to the
// first layer (up), and those of dy on the way back from the second.
void AddProducts(std::vector<OpCase>& cases, const std::string& name, const Sizes& s, int64_t in,
                 int64_t out, bool up, bool zipf) {
  const Shape x_shape{up ? s.tokens : s.rows(), in}, dy_shape{up ? s.rows() : s.tokens, out};
  const Shape w_shape{kExperts * out, in};
  const auto sources = [=](BenchTensors& t, bool gathered) -> std::optional<ConstView> {
    if (!gathered) return std::nullopt;
    return TokensOf(t, s);
  };
  cases.push_back({name + ", forward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values(x_shape), w = t.Values(w_shape),
                                y = t.Values({s.rows(), out}), offsets = OffsetsOf(t, s, zipf);
                     const auto of = sources(t, up);
                     return [=](Stream& stream) { GroupedForward(stream, x, of, w, offsets, y); };
                   }});
  cases.push_back({name + ", dx", [=](BenchTensors& t) -> Call {
                     const View dy = t.Values(dy_shape), w = t.Values(w_shape),
                                dx = t.Values({s.rows(), in}), offsets = OffsetsOf(t, s, zipf);
                     const auto of = sources(t, !up);
                     return [=](Stream& stream) { GroupedDx(stream, dy, of, w, offsets, dx); };
                   }});
  cases.push_back({name + ", dw", [=](BenchTensors& t) -> Call {
                     const View x = t.Values(x_shape), dy = t.Values(dy_shape),
                                dw = t.Values(w_shape), offsets = OffsetsOf(t, s, zipf);
                     const auto of_dy = sources(t, !up), of_x = sources(t, up);
                     return [=](Stream& stream) {
                       GroupedDw(stream, dy, of_dy, x, of_x, offsets, dw);
                     };
                   }});
}

// The same products where all rows are of one expert.
void AddOne(std::vector<OpCase>& cases, const std::string& name, int64_t rows, int64_t in,
            int64_t out) {
  constexpr auto kLayout = WeightLayout::kOutIn;
  cases.push_back(
      {name + ", forward", [=](BenchTensors& t) -> Call {
         const View x = t.Values({rows, in}), w = t.Values({out, in}), y = t.Values({rows, out});
         return [=](Stream& s) { LinearForward(s, x, w, kLayout, {}, y); };
       }});
  cases.push_back({name + ", backward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({rows, in}), w = t.Values({out, in}),
                                dy = t.Values({rows, out}), dx = t.Values({rows, in}),
                                dw = t.Values({out, in});
                     return [=](Stream& s) { LinearBackward(s, x, w, kLayout, dy, dx, dw, {}); };
                   }});
}

// Operands of a router's ops: choices that are the same for each token but for their begin.
struct Routing {
  View logits, lengths, choices, places, weights;
};

Routing RoutingOf(BenchTensors& t, const Sizes& s) {
  const Shape choices{s.tokens, kPerToken};
  const auto in_sample = static_cast<int32_t>(s.tokens / s.samples);
  return {t.Float({s.tokens, kExperts}), t.Int({s.samples}, [=](int64_t) { return in_sample; }),
          t.Int(choices,
                [](int64_t i) {
                  return static_cast<int32_t>((i / kPerToken + 3 * (i % kPerToken)) % kExperts);
                }),
          t.Int(choices, [](int64_t i) { return static_cast<int32_t>(i); }),
          t.Constant({s.samples}, 1)};
}

void AddRouter(std::vector<OpCase>& cases, const Sizes& s) {
  constexpr RouterOptions kOptions{.experts_per_token = kPerToken, .normalize = true};
  cases.push_back({"choose experts", [=](BenchTensors& t) -> Call {
                     const Routing r = RoutingOf(t, s);
                     return [=](Stream& stream) {
                       ChooseExperts(stream, r.logits, {}, r.lengths, kOptions, r.choices);
                     };
                   }});
  cases.push_back({"router weights", [=](BenchTensors& t) -> Call {
                     const Routing r = RoutingOf(t, s);
                     const View weights = t.Float({s.rows()});
                     return [=](Stream& stream) {
                       RouterWeights(stream, r.logits, r.choices, r.places, kOptions, weights);
                     };
                   }});
  cases.push_back({"tally routing", [=](BenchTensors& t) -> Call {
                     const Routing r = RoutingOf(t, s);
                     const View shares = t.Float({s.samples, kExperts}),
                                losses = t.Float({s.samples, 2}),
                                tally = t.Constant({2 * kExperts + 3}, 0);
                     return [=](Stream& stream) {
                       TallyRouting(stream, r.logits, r.choices, r.lengths, r.weights, {}, kOptions,
                                    shares, losses, tally);
                     };
                   }});
  cases.push_back({"router, backward", [=](BenchTensors& t) -> Call {
                     const Routing r = RoutingOf(t, s);
                     const View gradients = t.Float({s.rows()}), shares = t.Float({kExperts}),
                                dlogits = t.Float({s.tokens, kExperts});
                     return [=](Stream& stream) {
                       RouterBackward(stream, r.logits, r.choices, r.places, gradients, r.lengths,
                                      r.weights, shares, {.aux = 0.01, .z = 0.001}, {}, kOptions,
                                      dlogits);
                     };
                   }});
  cases.push_back({"group rows", [=](BenchTensors& t) -> Call {
                     const Routing r = RoutingOf(t, s);
                     const View offsets = OffsetsOf(t, s, false), tokens = TokensOf(t, s);
                     return [=](Stream& stream) {
                       GroupRows(stream, r.choices, offsets, tokens, r.places);
                     };
                   }});
  cases.push_back(
      {"combine rows", [=](BenchTensors& t) -> Call {
         const Routing r = RoutingOf(t, s);
         const View rows = t.Values({s.rows(), s.hidden}), base = t.Values({s.tokens, s.hidden});
         return [=](Stream& stream) { CombineRows(stream, rows, r.places, base, base); };
       }});
}

}  // namespace

void AddExperts(std::vector<OpCase>& cases, const OpShapes& shapes) {
  const Sizes s{shapes.batch, shapes.batch * shapes.seq, shapes.hidden,
                std::max<int64_t>(1, shapes.intermediate / 8)};
  AddRouter(cases, s);
  AddOne(cases, "one expert up", s.rows(), s.hidden, 2 * s.inner);
  AddProducts(cases, "experts up", s, s.hidden, 2 * s.inner, /*up=*/true, /*zipf=*/false);
  AddProducts(cases, "experts up, zipf", s, s.hidden, 2 * s.inner, /*up=*/true, /*zipf=*/true);
  AddOne(cases, "one expert down", s.rows(), s.inner, s.hidden);
  AddProducts(cases, "experts down", s, s.inner, s.hidden, /*up=*/false, /*zipf=*/false);
  AddProducts(cases, "experts down, zipf", s, s.inner, s.hidden, /*up=*/false, /*zipf=*/true);
  cases.push_back({"weighted swiglu, forward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({s.rows(), 2 * s.inner}), w = t.Float({s.rows()}),
                                y = t.Values({s.rows(), s.inner});
                     return [=](Stream& stream) { WeightedSwigluForward(stream, x, w, {}, y); };
                   }});
  cases.push_back({"weighted swiglu, backward", [=](BenchTensors& t) -> Call {
                     const View x = t.Values({s.rows(), 2 * s.inner}), w = t.Float({s.rows()}),
                                dy = t.Values({s.rows(), s.inner}),
                                dx = t.Values({s.rows(), 2 * s.inner}), dw = t.Float({s.rows()});
                     return [=](Stream& stream) {
                       WeightedSwigluBackward(stream, x, w, {}, dy, dx, dw);
                     };
                   }});
}

}  // namespace fsdp
