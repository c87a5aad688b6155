// What both optimizers' ops promise of their pass: stochastic rounding, the copy, the average.
#include "trainer/ops/update.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/trainer/ops/optimizer_blocks.h"
#include "trainer/core/philox.h"
#include "trainer/ops/adamw.h"
#include "trainer/ops/cast.h"
#include "trainer/ops/cpu/isa.h"
#include "trainer/ops/cpu/update_kernels.h"
#include "trainer/ops/sgd.h"

namespace fsdp {
namespace {

constexpr uint64_t kSeed = 0x123456789abcdefu, kTensor = 0xfedcba9876543210u;

uint32_t Low(uint64_t x) { return static_cast<uint32_t>(x); }
uint32_t High(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

// trainer/core/philox.cc with a number of rounds.
PhiloxCounter PhiloxOf(int rounds, PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < rounds; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {High(p1) ^ c[1] ^ k[0], Low(p1), High(p0) ^ c[3] ^ k[1], Low(p0)};
    k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
  }
  return c;
}

// The 16 bits of update.h and stochastic_rounding.h.
uint32_t Draw(uint64_t seed, uint64_t update, uint32_t what, uint64_t tensor, uint64_t element) {
  const PhiloxCounter key = Philox({Low(update), High(update), what, 0}, {Low(seed), High(seed)});
  const uint64_t block = element / 64 * 8 + element % 32 / 4;
  const PhiloxCounter words =
      PhiloxOf(7, {Low(block), High(block), Low(tensor), High(tensor)}, {key[0], key[1]});
  const uint32_t word = words[element % 64 / 32 * 2 + element / 2 % 2];
  return element % 2 == 0 ? word & 0xffff : word >> 16;
}

// The nearest bf16 towards zero.
float Truncated(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffff0000u); }
// The next of bf16 away from zero.
float Beyond(float truncated) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(truncated) + 0x10000u);
}

class UpdateTest : public OpTest {
 protected:
  View Rules(const std::vector<ElementRule>& rules) {
    return Input(RuleTableShape(rules.size()), BytesOf(rules.data(), rules.size()), DType::kUInt8);
  }
  View Factors(double lr, int64_t update = 1) {
    const UpdateFactors factors = FactorsAt(lr, 0.9, 0.999, update);
    return Input(BlockShape<UpdateFactors>(), BytesOf(&factors, 1), DType::kUInt8);
  }
  View One() { return Input({1}, {1}, kF32); }

  // Elements of bf16 that a step of SGD makes of these, starting from p = 0: x itself is rounded.
  // `cuts`: where calls begin, as if shards did, the first element being number `first`.
  std::vector<double> Rounded(const std::vector<double>& x, uint64_t seed, int64_t update,
                              uint64_t tensor, int64_t first = 0,
                              const std::vector<int64_t>& cuts = {0}) {
    const int64_t n = static_cast<int64_t>(x.size());
    const View g = Input({n}, x, kF32), p = Accumulated({n}, 0, kBF16), one = One();
    const View factors = Factors(-1, update);
    for (size_t i = 0; i < cuts.size(); ++i) {
      const int64_t begin = cuts[i], count = (i + 1 < cuts.size() ? cuts[i + 1] : n) - begin;
      const View rules = Rules({{0, count, 0, 1, tensor, first + begin}});
      Run([&](Stream& s) {
        Sgd(s, {}, rules, factors, one, g.Slice(begin, count), p.Slice(begin, count), View(),
            {.seed = seed});
      });
    }
    return Get(p);
  }
};
FSDP_INSTANTIATE_OP_TEST(UpdateTest, kF32);  // Of arithmetic.

TEST(UpdateOracle, IsTheHousesPhiloxWithFewerRounds) {
  const PhiloxCounter counter{1, 2, 3, 4};
  EXPECT_EQ(PhiloxOf(10, counter, {5, 6}), Philox(counter, {5, 6}));
  // Random123, tests/kat_vectors.
  EXPECT_EQ(PhiloxOf(7, {}, {}), (PhiloxCounter{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
}

// Each of the three results of a step, of its own draws: a value becomes what its draw says.
TEST_P(UpdateTest, DrawsAreThoseOfTheDefinition) {
  const int64_t n = 1000, first = (int64_t{3} << 36) + 37;
  Random random(1, kF32);
  const auto gradients = random.Vector(n);
  for (const int64_t update : {int64_t{1}, int64_t{7} << 33}) {
    const View g = Input({n}, gradients, kF32), p = Accumulated({n}, 0, kBF16);
    const View m = Accumulated({n}, 0, kBF16), v = Accumulated({n}, 0, kBF16), one = One();
    const View exact_p = Accumulated({n}, 0), exact_m = Accumulated({n}, 0),
               exact_v = Accumulated({n}, 0);
    const View rules = Rules({{0, n, 0, 1, kTensor, first}}), factors = Factors(0.1, update);
    Run([&](Stream& s) {
      AdamW(s, {}, rules, factors, one, g, p, m, v, {.seed = kSeed});
      AdamW(s, {}, rules, factors, one, g, exact_p, exact_m, exact_v);
    });
    uint32_t what = 0;
    for (const auto& [kept, exact] : {std::pair(p, exact_p), {m, exact_m}, {v, exact_v}}) {
      const auto got = Get(kept), from = Get(exact);
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t draw = Draw(kSeed, update, what, kTensor, first + i);
        const auto x = static_cast<float>(from[i]);
        ASSERT_EQ(got[i], Truncated(std::bit_cast<float>(std::bit_cast<uint32_t>(x) + draw)))
            << "element " << i << " of " << what;
      }
      ++what;
    }
  }
}

// 2^16 elements for each distance: the number that goes up is binomial.
TEST_P(UpdateTest, ProbabilityIsTheDistance) {
  constexpr int64_t kN = 1 << 16;
  uint64_t tensor = kTensor;
  for (const uint32_t fraction : {1u, 1000u, 0x4000u, 0x5555u, 0x8000u, 0xc001u, 0xffffu}) {
    for (const float base : {1.0f, -3.0f, 1e-20f}) {
      const float below = Truncated(base);
      const float x = std::bit_cast<float>(std::bit_cast<uint32_t>(below) | fraction);
      const auto got = Rounded(std::vector<double>(kN, x), kSeed, 1, ++tensor);
      int64_t up = 0;
      for (const double y : got) {
        ASSERT_TRUE(y == below || y == Beyond(below)) << y << " of " << x;
        up += y != below;
      }
      const double probability = fraction / 65536.0;
      const double error = std::sqrt(kN * probability * (1 - probability));
      EXPECT_LE(std::abs(static_cast<double>(up) - kN * probability), 5 * error) << x;
    }
  }
}

// Over all of an update's values, in units of the distance between the two neighbours.
TEST_P(UpdateTest, MeanIsTheValue) {
  constexpr int64_t kN = 200000;
  Random random(3, kF32);
  const auto values = random.Vector(kN);
  for (const int64_t update : {1, 2, 3}) {
    const auto got = Rounded(values, kSeed, update, kTensor);
    double bias = 0, variance = 0;
    for (int64_t i = 0; i < kN; ++i) {
      const auto x = static_cast<float>(values[i]);
      const double below = Truncated(x), step = Beyond(Truncated(x)) - below;
      const double fraction = (x - below) / step;
      bias += (got[i] - x) / step;
      variance += fraction * (1 - fraction);
    }
    EXPECT_LE(std::abs(bias), 5 * std::sqrt(variance));
    EXPECT_GT(variance, kN / 8.0);  // There was something to round.
  }
}

// What has one key and not the other: unrelated draws, so half of the values agree.
TEST_P(UpdateTest, EveryPartOfTheKeyCounts) {
  constexpr int64_t kN = 4096;
  const std::vector<double> half(kN, 1 + Epsilon(kBF16) / 2);
  const auto base = Rounded(half, kSeed, 5, kTensor);
  EXPECT_EQ(Rounded(half, kSeed, 5, kTensor), base);
  const auto expect_unrelated = [&](const std::vector<double>& other, const std::string& what) {
    int64_t equal = 0;
    for (int64_t i = 0; i < kN; ++i) equal += base[i] == other[i];
    EXPECT_LE(std::abs(equal - kN / 2), 5 * std::sqrt(kN) / 2) << what;
  };
  expect_unrelated(Rounded(half, kSeed + 1, 5, kTensor), "seed");
  expect_unrelated(Rounded(half, kSeed ^ (uint64_t{1} << 63), 5, kTensor), "seed, upper half");
  expect_unrelated(Rounded(half, kSeed, 6, kTensor), "update");
  expect_unrelated(Rounded(half, kSeed, 5, kTensor + 1), "tensor");
  expect_unrelated(Rounded(half, kSeed, 5, kTensor ^ (uint64_t{1} << 63)), "tensor, upper half");
  expect_unrelated(Rounded(half, kSeed, 5, kTensor, kN), "element");
  expect_unrelated(Rounded(half, kSeed, 5, kTensor, int64_t{1} << 40), "element, upper half");
}

// Of a tensor: whatever shards it is cut into and wherever in a shard it lies.
TEST_P(UpdateTest, BitsDoNotDependOnShards) {
  constexpr int64_t kN = 3000;
  Random random(4, kF32);
  const auto values = random.Vector(kN);
  const auto whole = Rounded(values, kSeed, 1, kTensor);
  EXPECT_EQ(Rounded(values, kSeed, 1, kTensor, 0, {0, 1, 64, 65, 1000, 1512, 2999}), whole);
  EXPECT_EQ(Rounded(values, kSeed, 1, kTensor, 0, {0, 256, 512, 1792}), whole);
  // Behind others, in a table of several rules.
  const int64_t at = 77;
  std::vector<double> behind(at, 0.25);
  behind.insert(behind.end(), values.begin(), values.end());
  const View g = Input({at + kN}, behind, kF32), p = Accumulated({at + kN}, 0, kBF16);
  const View rules = Rules({{0, at - 5, 0, 1, 9, 50},
                            {at, at + 1111, 0, 1, kTensor, 0},
                            {at + 1111, at + kN, 0, 1, kTensor, 1111}});
  const View factors = Factors(-1), one = One();
  ExpectSameBits([&](Stream& s) { Sgd(s, {}, rules, factors, one, g, p, View(), {.seed = kSeed}); },
                 {p});
  EXPECT_EQ(Get(p.Slice(at, kN)), whole);
}

TEST_P(UpdateTest, ValuesOfTheirOwnKindStay) {
  const float largest = static_cast<float>(Largest(kBF16));
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<double> exact;
  for (const float x : {0.0f, 1.0f, -1.5f, 1e-30f, largest, inf}) {
    for (const float sign : {1.0f, -1.0f}) exact.push_back(sign * RoundTo(kBF16, x));
  }
  const std::vector<double> beyond(40, std::numeric_limits<float>::max());
  for (const int64_t update : {1, 2, 3, 4, 5}) {
    EXPECT_EQ(Rounded(exact, kSeed, update, kTensor), exact);
    // Finite values stay finite, NaN is NaN.
    EXPECT_EQ(Rounded(beyond, kSeed, update, kTensor), std::vector<double>(40, largest));
    for (const double y : Rounded(std::vector<double>(40, std::nan("")), kSeed, update, kTensor)) {
      EXPECT_TRUE(std::isnan(y));
    }
  }
}

// A tensor for the kernels: elements [at, at + n) are theirs, on either side some are not.
struct KernelTensor {
  KernelTensor(DType dtype, const std::vector<float>& values) : dtype(dtype), bytes(4 * kElements) {
    for (size_t i = 0; i < values.size(); ++i) Put(static_cast<int64_t>(i), values[i]);
  }

  void Put(int64_t i, float value) {
    const View view = Whole();
    if (dtype == kF32) view.As<float>()[i] = value;
    if (dtype == kBF16) view.As<BFloat16>()[i] = BFloat16(value);
    if (dtype == kF16) view.As<Float16>()[i] = Float16(value);
  }
  float Get(int64_t i) {
    const View view = Whole();
    if (dtype == kF32) return view.As<float>()[i];
    return dtype == kBF16 ? float(view.As<BFloat16>()[i]) : float(view.As<Float16>()[i]);
  }

  static constexpr int64_t kElements = 300;
  DType dtype;
  std::vector<std::byte> bytes;

 private:
  View Whole() { return {bytes.data(), dtype, Shape{kElements}}; }
};

enum class Rule { kAdamW, kSgd, kMomentum };

struct Variant {
  Rule rule;
  DType master, state, gradient;
  std::optional<DType> copy;
  bool average;
};

std::vector<Variant> EveryVariant() {
  std::vector<Variant> variants;
  for (const Rule rule : {Rule::kAdamW, Rule::kSgd, Rule::kMomentum}) {
    for (const DType master : {kF32, kBF16}) {
      for (const DType state : {kF32, kBF16}) {
        for (const DType gradient : {kF32, kBF16, kF16}) {
          for (const std::optional<DType> copy :
               {std::optional<DType>(), {kF32}, {kBF16}, {kF16}}) {
            for (const bool average : {false, true}) {
              variants.push_back({rule, master, state, gradient, copy, average});
            }
          }
        }
      }
    }
  }
  return variants;
}

constexpr AdamWFactors kAdamW{0.7f, 0.1f, 0.999f, 0.001f, 1e-8f, 1.5f, 0.99f, 0.02f};
constexpr SgdFactors kSgd{0.7f, 0.9f, 0.05f, 0.1f};
constexpr float kRate = 0.125f;
constexpr uint32_t kDrawKeys[3][2] = {{1, 2}, {3, 4}, {5, 6}};

// Elements [at, at + n) of these, one by one, as adamw.h, sgd.h and update.h say, with what the
// kernels fuse.
struct Shard {
  KernelTensor g, p, first, second, copy, average;

  void Update(const Variant& variant, int64_t at, int64_t n, int64_t element) {
    for (int64_t i = at; i < at + n; ++i, ++element) {
      const float gradient = g.Get(i);
      float x = p.Get(i), a = first.Get(i), b = second.Get(i);
      if (variant.rule == Rule::kAdamW) {
        const AdamWFactors& f = kAdamW;
        const float scaled = f.c * gradient;
        a = std::fma(f.beta1_new, scaled - a, a);
        b = std::fma(f.beta2_old, b, f.beta2_new * scaled * scaled);
        x = std::fma(f.keep, x,
                     -(f.step_size * (a / std::fma(std::sqrt(b), f.root_factor, f.eps))));
        Keep(second, i, b, 2, element);
      } else {
        const SgdFactors& f = kSgd;
        float d = std::fma(f.c, gradient, f.weight_decay * x);
        if (variant.rule == Rule::kMomentum) a = d = std::fma(f.momentum, a, d);
        x = std::fma(-f.lr, d, x);
      }
      if (variant.rule != Rule::kSgd) Keep(first, i, a, 1, element);
      Keep(p, i, x, 0, element);
      if (variant.copy) copy.Put(i, p.Get(i));
      if (variant.average) {
        average.Put(i, std::fma(kRate, p.Get(i) - average.Get(i), average.Get(i)));
      }
    }
  }

  static void Keep(KernelTensor& to, int64_t i, float x, int which, int64_t element) {
    if (to.dtype == kBF16) {
      const uint64_t block = element / 64 * 8 + element % 32 / 4;
      const PhiloxCounter words =
          PhiloxOf(7, {Low(block), High(block), Low(kTensor), High(kTensor)},
                   {kDrawKeys[which][0], kDrawKeys[which][1]});
      const uint32_t word = words[element % 64 / 32 * 2 + element / 2 % 2];
      const uint32_t draw = element % 2 == 0 ? word & 0xffff : word >> 16;
      x = Truncated(std::bit_cast<float>(std::bit_cast<uint32_t>(x) + draw));
    }
    to.Put(i, x);
  }

  void Run(const UpdateKernels& kernels, const Variant& variant, const UpdateRun& run) {
    UpdateTensors t{.g = g.bytes.data(),
                    .p = p.bytes.data(),
                    .copy = variant.copy ? copy.bytes.data() : nullptr,
                    .average = variant.average ? average.bytes.data() : nullptr,
                    .g_dtype = g.dtype,
                    .p_dtype = p.dtype,
                    .state_dtype = first.dtype,
                    .copy_dtype = copy.dtype,
                    .average_rate = kRate};
    std::copy_n(&kDrawKeys[0][0], 6, &t.draw_keys[0][0]);
    if (variant.rule != Rule::kSgd) t.states[0] = first.bytes.data();
    if (variant.rule == Rule::kAdamW) t.states[1] = second.bytes.data();
    if (variant.rule == Rule::kAdamW) return kernels.adamw(t, run, kAdamW);
    kernels.sgd(t, run, kSgd);
  }
};

std::vector<const UpdateKernels*> KernelsOfThisCpu() {
  if (UseAvx512()) return {&kUpdateAvx2, &kUpdateAvx512};
  return {&kUpdateAvx2};
}

// Of every length up to a little more than a chunk, from all kinds of places, by each instruction
// set: what is theirs has the definition's bits, what is around it keeps its own.
TEST(UpdateKernels, VariantsAreTheDefinition) {
  const auto values = [](int seed, double low, double high) {
    const auto doubles = Random(seed, kF32).Vector(KernelTensor::kElements, low, high);
    return std::vector<float>(doubles.begin(), doubles.end());
  };
  const auto g = values(1, -1, 1), p = values(2, -1, 1), m = values(3, -1, 1), v = values(4, 0, 1),
             a = values(5, -1, 1), c = values(6, -1, 1);
  for (const Variant& variant : EveryVariant()) {
    for (int64_t n = 1; n <= 200; n += n < 70 ? 1 : 29) {
      const int64_t at = n * 5 % 23, element = (int64_t{1} << 36) + n * 37 % 64;
      const Shard before{{variant.gradient, g},
                         {variant.master, p},
                         {variant.state, m},
                         {variant.state, v},
                         {variant.copy.value_or(kF32), c},
                         {kF32, a}};
      Shard want = before;
      want.Update(variant, at, n, element);
      for (const UpdateKernels* kernels : KernelsOfThisCpu()) {
        Shard got = before;
        got.Run(*kernels, variant, {at, n, kTensor, element});
        const std::string what =
            std::to_string(n) + " from " + std::to_string(at) + ", rule " +
            std::to_string(static_cast<int>(variant.rule)) + ", " +
            std::string(Name(variant.master)) + ", state " + std::string(Name(variant.state)) +
            ", g " + std::string(Name(variant.gradient)) + ", copy " +
            (variant.copy ? std::string(Name(*variant.copy)) : "none") + ", average " +
            std::to_string(variant.average) + (kernels == &kUpdateAvx2 ? ", AVX2" : ", AVX-512");
        ASSERT_TRUE(got.p.bytes == want.p.bytes) << what;
        ASSERT_TRUE(got.first.bytes == want.first.bytes) << what;
        ASSERT_TRUE(got.second.bytes == want.second.bytes) << what;
        ASSERT_TRUE(got.copy.bytes == want.copy.bytes) << what;
        ASSERT_TRUE(got.average.bytes == want.average.bytes) << what;
        ASSERT_TRUE(got.g.bytes == want.g.bytes) << what;
      }
    }
  }
}

// Any bits: p = g, and a copy of it. A NaN may have any payload.
TEST(UpdateKernels, InstructionSetsAgree) {
  constexpr int64_t kN = 5000;
  std::vector<float> x(kN);
  const RandomStream random(1, "bits");
  for (int64_t i = 0; i < kN; ++i) x[i] = std::bit_cast<float>(random.Bits(i));
  x[70] = std::bit_cast<float>(0x7f800001u), x[71] = std::bit_cast<float>(0xffffffffu);
  const auto bytes = [](auto& values) { return reinterpret_cast<std::byte*>(values.data()); };
  for (const int64_t element : {0, 64, 17}) {
    std::vector<std::vector<uint16_t>> results;
    for (const UpdateKernels* kernels : KernelsOfThisCpu()) {
      std::vector<uint16_t> p(kN), copy(kN), wide_copy(kN);
      std::vector<float> wide(kN);
      UpdateTensors t{.g = bytes(x),
                      .p = bytes(p),
                      .copy = bytes(copy),
                      .p_dtype = kBF16,
                      .copy_dtype = kF16,
                      .draw_keys = {{7, 9}}};
      const SgdFactors factors{.c = 1, .momentum = 0, .lr = -1, .weight_decay = 0};
      kernels->sgd(t, {0, kN, kTensor, element}, factors);
      t.p = bytes(wide), t.p_dtype = kF32, t.copy = bytes(wide_copy), t.copy_dtype = kBF16;
      kernels->sgd(t, {0, kN, kTensor, element}, factors);
      for (int64_t i = 0; i < kN; ++i) {
        const auto is = [](uint16_t bits, uint16_t infinity) {
          return std::pair((bits & 0x7fff) > infinity, (bits & 0x7fff) == infinity);
        };
        ASSERT_EQ(is(p[i], 0x7f80), std::pair(std::isnan(x[i]), std::isinf(x[i]))) << i;
        ASSERT_EQ(is(copy[i], 0x7c00).first, std::isnan(x[i])) << i;
        if (std::isnan(x[i])) {
          ASSERT_TRUE(is(wide_copy[i], 0x7f80).first) << i;
          p[i] = copy[i] = 0;
        } else {
          ASSERT_EQ(wide_copy[i], BFloat16(x[i]).bits) << i;
        }
      }
      results.insert(results.end(), {p, copy});
    }
    for (size_t i = 2; i < results.size(); ++i) EXPECT_EQ(results[i], results[i - 2]);
  }
}

// From a second moment that has settled the gradient falls by 100: v has to fall by a thousandth a
// step, where a value of bf16 is 1/128 to 1/256 from the next. Rounded to nearest it stays.
TEST_P(UpdateTest, SecondMomentFollowsAFallingGradient) {
  constexpr int kSteps = 2000;
  constexpr int64_t kN = 1024;
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.999};
  std::vector<UpdateFactors> factors;
  std::vector<double> gradients, want;
  float nearest = 1;
  for (int step = 1; step <= kSteps; ++step) {
    factors.push_back(FactorsAt(0, options.beta1, options.beta2, step));
    gradients.push_back(RoundTo(kF32, std::pow(100, -1.0 * step / kSteps)));
    const double square = gradients.back() * gradients.back();
    want.push_back(options.beta2 * (want.empty() ? 1 : want.back()) + (1 - options.beta2) * square);
    nearest =
        static_cast<float>(RoundTo(kBF16, options.beta2 * nearest + (1 - options.beta2) * square));
  }
  const View p = Accumulated({kN}, 0), m = Accumulated({kN}, 0, kBF16),
             v = Accumulated({kN}, 1, kBF16), g = Accumulated({kN}, 1);
  const View rules = Rules({{0, kN, 0, 1, kTensor, 0}});
  const View coefficients = Input({kSteps}, gradients), snapshots = Output({kSteps / 250, kN});
  const int64_t bytes = sizeof(UpdateFactors);
  const View blocks = Input({kSteps * bytes}, BytesOf(factors.data(), kSteps), DType::kUInt8);
  Run([&](Stream& s) {
    for (int i = 0; i < kSteps; ++i) {
      AdamW(s, options, rules, blocks.Slice(i * bytes, bytes), coefficients.Slice(i, 1), g, p, m, v,
            {.seed = kSeed});
      if (i % 250 == 249) Cast(s, v, snapshots.Slice(i / 250 * kN, kN));
    }
  });
  for (int i = 0; i < kSteps / 250; ++i) {
    double mean = 0;
    for (const double value : Get(snapshots.Slice(i * kN, kN))) mean += value / kN;
    const double oracle = want[250 * i + 249];
    EXPECT_NEAR(mean, oracle, 0.02 * oracle) << "step " << 250 * (i + 1);
  }
  EXPECT_EQ(nearest, 1) << "rounding to nearest would do";
  EXPECT_LT(want.back(), 0.3);
}

// Of what is kept of p, rounded once.
TEST_P(UpdateTest, CopyIsACastOfTheMaster) {
  const int64_t n = 2333;
  Random random(5, kBF16);
  const auto p0 = random.Vector(n), gradients = Random(6, kF32).Vector(n);
  for (const DType master : {kF32, kBF16}) {
    for (const DType dtype : {kF32, kBF16, kF16}) {
      const View p = Input({n}, p0, master), b = Accumulated({n}, 0, kBF16);
      const View g = Input({n}, gradients, kF32), one = One(), factors = Factors(1e-3);
      const View rules = Rules({{5, n, 0.1, 1, kTensor, 0}});
      const View copy = Output({n}, dtype), want = Output({n}, dtype);
      const auto call = [&](const View& copy) {
        return [=](Stream& s) {
          Sgd(s, {.momentum = 0.9}, rules, factors, one, g, p, b, {.seed = kSeed, .copy = copy});
        };
      };
      Run(call(copy));
      Run([&](Stream& s) { Cast(s, p, want); });
      EXPECT_EQ(Get(copy), Get(want)) << Name(master) << " to " << Name(dtype);
      const auto with = Get(p), momentum = Get(b);
      Set(p, p0), Set(b, std::vector<double>(n));
      Run(call(View()));
      EXPECT_EQ(Get(p), with);
      EXPECT_EQ(Get(b), momentum);
    }
  }
}

// Of what is kept of p. (1 - decay) (p - a) + a, with one rounding each, as one fused operation.
TEST_P(UpdateTest, AverageFollowsWhatIsKept) {
  const int64_t n = 1025;
  const double decay = 0.99;
  const auto p0 = Random(7, kBF16).Vector(n), gradients = Random(8, kF32).Vector(n);
  for (const DType master : {kF32, kBF16}) {
    const View p = Input({n}, p0, master), g = Input({n}, gradients, kF32), one = One();
    const View m = Accumulated({n}, 0, kBF16), v = Accumulated({n}, 0, kBF16);
    const View rules = Rules({{0, n, 0.1, 1, kTensor, 0}});
    std::vector<double> want = Random(9, kF32).Vector(n);
    const View average = Input({n}, want, kF32), copy = Output({n}, kBF16);
    for (const int64_t step : {1, 2, 3}) {
      const View factors = Factors(0.01, step);
      Run([&](Stream& s) {
        AdamW(s, {}, rules, factors, one, g, p, m, v,
              {.seed = kSeed, .copy = copy, .average = average, .decay = decay});
      });
      const auto now = Get(p);
      for (int64_t i = 0; i < n; ++i) {
        const auto a = static_cast<float>(want[i]);
        want[i] = std::fma(static_cast<float>(1 - decay), static_cast<float>(now[i]) - a, a);
      }
      EXPECT_EQ(Get(average), want) << Name(master) << ", step " << step;
    }
  }
}

TEST_P(UpdateTest, ASkippedStepChangesNothing) {
  const int64_t n = 300;
  const auto values = Random(10, kBF16).Vector(n);
  const View p = Input({n}, values, kBF16), m = Input({n}, values, kBF16),
             v = Input({n}, values, kBF16), g = Output({n}, kF32), copy = Input({n}, values, kF16),
             average = Input({n}, values, kF32), rules = Rules({{0, n, 0.1, 1, kTensor, 0}}),
             factors = Factors(0.5);
  const auto kept = Get(copy);
  const UpdateExtras extras{.seed = kSeed, .copy = copy, .average = average, .decay = 0.5};
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const View c = Input({1}, {bad}, kF32);
    Run([&](Stream& s) { AdamW(s, {}, rules, factors, c, g, p, m, v, extras); });
    Run([&](Stream& s) { Sgd(s, {}, rules, factors, c, g, p, View(), extras); });
    for (const View& view : {p, m, v, average}) EXPECT_EQ(Get(view), values);
    EXPECT_EQ(Get(copy), kept);
  }
}

TEST_P(UpdateTest, PaddingStaysZero) {
  const int64_t n = 100;
  const View g = Input({n}, std::vector<double>(n), kF32), p = Accumulated({n}, 0, kBF16),
             m = Accumulated({n}, 0, kBF16), v = Accumulated({n}, 0, kBF16),
             copy = Output({n}, kF16), average = Accumulated({n}, 0, kF32), one = One();
  const View rules = Rules({{5, 20, 1, 1, kTensor, 0}}), factors = Factors(0.5);
  Run([&](Stream& s) {
    AdamW(s, {}, rules, factors, one, g, p, m, v,
          {.seed = kSeed, .copy = copy, .average = average, .decay = 0.9});
  });
  for (const View& view : {p, m, v, copy, average}) {
    for (const double d : Get(view)) EXPECT_TRUE(d == 0 && !std::signbit(d));
  }
}

TEST_P(UpdateTest, RefusesWrongExtras) {
  const View p = Output({4}), g = Output({4}), b = Output({4}, kBF16), c = Output({1}, kF32);
  const View rules = Rules({}), factors = Factors(0.5), average = Output({4}, kF32);
  const auto call = [&](const UpdateExtras& extras) {
    return [=](Stream& s) { Sgd(s, {.momentum = 0.9}, rules, factors, c, g, p, b, extras); };
  };
  EXPECT_NO_THROW(Run(call({.copy = Output({4}, kF16), .average = average, .decay = 0.5})));
  ExpectRefused(call({.copy = Output({3}, kBF16)}), "[sgd] copy is bf16 [3]");
  ExpectRefused(call({.copy = factors}), "copy is uint8");
  ExpectRefused(call({.copy = p}), "p and copy overlap");
  ExpectRefused(call({.copy = average, .average = average}), "copy and average overlap");
  ExpectRefused(call({.average = Output({5}, kF32)}), "average is fp32 [5]");
  ExpectRefused(call({.average = Output({4}, kBF16)}), "average is bf16 [4]");
  ExpectRefused(call({.average = average, .decay = 1}), "decay, want in [0, 1)");
  ExpectRefused(call({.average = average, .decay = -0.1}), "decay");
}

// What the planner and the simulator read.
TEST_P(UpdateTest, CostsWhatItReadsAndWrites) {
  const int64_t n = 64;
  const View p = Accumulated({n}, 0, kBF16), m = Accumulated({n}, 0, kBF16),
             v = Accumulated({n}, 0, kBF16), g = Accumulated({n}, 0, kF32), one = One(),
             copy = Output({n}, kF16), average = Accumulated({n}, 0, kF32);
  const View rules = Rules({}), factors = Factors(0.5);
  Run([&](Stream& s) { AdamW(s, {}, rules, factors, one, g, p, m, v); });
  const double block = sizeof(UpdateFactors) + sizeof(float);
  EXPECT_EQ(cost().flops, 16 * n);
  EXPECT_EQ(cost().bytes_read, 10 * n + block);
  EXPECT_EQ(cost().bytes_written, 6 * n);
  Run([&](Stream& s) {
    AdamW(s, {}, rules, factors, one, g, p, m, v, {.copy = copy, .average = average});
  });
  EXPECT_EQ(cost().flops, 19 * n);
  EXPECT_EQ(cost().bytes_read, 14 * n + block);
  EXPECT_EQ(cost().bytes_written, 12 * n);
}

}  // namespace
}  // namespace fsdp
