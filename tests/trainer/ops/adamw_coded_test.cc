#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "tests/trainer/ops/optimizer_blocks.h"
#include "tests/trainer/ops/update_oracle.h"
#include "trainer/core/round_up.h"
#include "trainer/ops/element_rules.h"
#include "trainer/ops/state_codes.h"
#include "trainer/ops/step_parameters.h"
#include "trainer/ops/update.h"

namespace fsdp {
namespace {

constexpr uint64_t kSeed = 77, kTensor = 0xfedcba9876543210u;

class AdamWCodedTest : public OpTest {
 protected:
  View Rules(const std::vector<ElementRule>& rules) {
    return Input(RuleTableShape(rules.size()), BytesOf(rules.data(), rules.size()), DType::kUInt8);
  }
  View Factors(const UpdateFactors& factors) {
    return Input(BlockShape<UpdateFactors>(), BytesOf(&factors, 1), DType::kUInt8);
  }
  CodedMoment Moment(int64_t n) {
    return {Input({n}, std::vector<double>(n), DType::kUInt8),
            Input({n / kCodeBlock}, std::vector<double>(n / kCodeBlock), kF32)};
  }
};
FSDP_INSTANTIATE_OP_TEST(AdamWCodedTest, kF32, kBF16);  // The dtype of the master.

// One of the two moments of a block on the host.
struct HostMoment {
  const StateCodeTables& tables;
  std::vector<uint8_t> codes;
  std::vector<float> absmax;

  std::vector<float> Decoded() const {
    std::vector<float> x(codes.size());
    for (size_t b = 0; b < absmax.size(); ++b) {
      DecodeBlock(tables, &codes[b * kCodeBlock], absmax[b],
                  std::span(x).subspan(b * kCodeBlock, kCodeBlock));
    }
    return x;
  }
  void Encode(const std::vector<float>& x) {
    for (size_t b = 0; b < absmax.size(); ++b) {
      absmax[b] = EncodeBlock(tables, std::span(x).subspan(b * kCodeBlock, kCodeBlock),
                              &codes[b * kCodeBlock]);
    }
  }
};

template <typename T>
std::vector<double> Doubles(const std::vector<T>& x) {
  return {x.begin(), x.end()};
}

// Each step has the bits of: decode, the fp32 update of update_oracle.h, encode, by
// EncodeBlock(), which state_codes_test.cc holds to the nearest value.
TEST_P(AdamWCodedTest, StepsAreTheDefinition) {
  struct Row {
    DType gradient;
    std::optional<DType> copy;
    bool average;
    int64_t first;  // Where operands begin: at other places a vector is no single access.
  };
  constexpr int64_t kN = 5 * kCodeBlock;
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6};
  const std::vector<ElementRule> rules = {
      {0, 2 * kCodeBlock, 0.1, 0.5, kTensor, 3 * kCodeBlock},
      {2 * kCodeBlock, 3 * kCodeBlock + 77, 0, 1, kTensor + 1, 0},
      {4 * kCodeBlock, kN, 0.2, 2, kTensor + 2, int64_t{1} << 36}};
  for (const Row& row : {Row{kF32, {}, false, 0}, Row{kBF16, kF32, true, 0},
                         Row{kF16, kBF16, true, 1}, Row{kF32, kF16, false, 3}}) {
    Random random(row.first + 5, kBF16);
    const bool padded = true;
    auto begin = random.Vector(kN);
    const auto pads = [&](std::vector<double>& x) {
      if (padded) std::fill_n(x.begin() + 3 * kCodeBlock + 77, kCodeBlock - 77, 0.0);
    };
    pads(begin);
    const auto whole = [&](const std::vector<double>& x) {
      std::vector<double> all(row.first + kN);
      std::copy(x.begin(), x.end(), all.begin() + row.first);
      return all;
    };
    const View all = Input({row.first + kN}, whole(begin)), p = all.Slice(row.first, kN);
    const View all_g = Output({row.first + kN}, row.gradient), g = all_g.Slice(row.first, kN);
    const View copy = row.copy ? Output({kN}, *row.copy) : View();
    const View average = row.average ? Input({kN}, begin, kF32) : View();
    const CodedMoment m = Moment(kN), v = Moment(kN);
    const View table = Rules(rules), c = Input({1}, {0.5}, kF32);
    HostMoment want_m{kSignedCodes, std::vector<uint8_t>(kN), std::vector<float>(5)},
        want_v{kUnsignedCodes, std::vector<uint8_t>(kN), std::vector<float>(5)};
    std::vector<double> want_p = begin, want_average = begin;
    for (int step = 1; step <= 3; ++step) {
      auto gradients = RoundTo(row.gradient, random.Vector(kN));
      // From tiny to large in each block, with zeros.
      for (int64_t i = 0; i < kN; ++i) gradients[i] *= std::ldexp(1.0, -static_cast<int>(i % 12));
      gradients = RoundTo(row.gradient, gradients);
      for (int64_t i = 0; i < kN; i += 17) gradients[i] = 0;
      pads(gradients);
      Set(all_g, whole(gradients));
      const UpdateFactors factors = FactorsAt(0.1, options.beta1, options.beta2, step);
      const View block = Factors(factors);
      Run([&](Stream& s) {
        AdamWCoded(s, options, table, block, c, g, p, m, v,
                   {.seed = kSeed, .copy = copy, .average = average, .decay = 0.875});
      });
      std::vector<float> first = want_m.Decoded(), second = want_v.Decoded();
      for (int64_t i = 0; i < kN; ++i) {
        ElementRule rule;
        for (const ElementRule& r : rules) {
          if (r.begin <= i && i < RoundUp(r.end, kCodeBlock)) rule = r;
        }
        const double lr = rule.lr_scale * factors.lr;
        const AdamWFactors adamw{.c = 0.5f,
                                 .beta1_new = static_cast<float>(1 - options.beta1),
                                 .beta2_old = static_cast<float>(options.beta2),
                                 .beta2_new = static_cast<float>(1 - options.beta2),
                                 .eps = static_cast<float>(options.eps),
                                 .root_factor = factors.root_factor,
                                 .keep = static_cast<float>(1 - lr * rule.weight_decay),
                                 .step_size = static_cast<float>(lr / factors.correction1)};
        const uint32_t draw =
            UpdateDraw(kSeed, step, 0, rule.tensor, rule.element + i - rule.begin);
        UpdatedElement e{static_cast<float>(gradients[i]), static_cast<float>(want_p[i]), first[i],
                         second[i], static_cast<float>(want_average[i])};
        UpdateElement({UpdateRule::kAdamW, dtype(), kF32, row.gradient, row.copy, row.average},
                      adamw, {}, 0.125f, {draw, 0, 0}, e);
        want_p[i] = e.p, want_average[i] = e.average, first[i] = e.first, second[i] = e.second;
      }
      want_m.Encode(first), want_v.Encode(second);
      ASSERT_EQ(Get(p), want_p) << step;
      ASSERT_EQ(Get(m.codes), Doubles(want_m.codes)) << step;
      ASSERT_EQ(Get(v.codes), Doubles(want_v.codes)) << step;
      ASSERT_EQ(Get(m.absmax), Doubles(want_m.absmax)) << step;
      ASSERT_EQ(Get(v.absmax), Doubles(want_v.absmax)) << step;
      if (row.copy) {
        ASSERT_EQ(Get(copy), RoundTo(*row.copy, want_p)) << step;
      }
      if (row.average) {
        ASSERT_EQ(Get(average), want_average) << step;
      }
    }
    Clear();
  }
}

// Muon's momentum: decode, the rule in fp32 of what is decoded, encode. The update is made of the
// momentum before it is encoded.
TEST_P(AdamWCodedTest, MomentumIsTheDefinition) {
  constexpr int64_t kN = 5 * kCodeBlock;
  constexpr double kMomentum = 0.75;  // 1 - momentum is exact.
  for (const auto& [nesterov, gradient, first] :
       {std::tuple(true, kF32, 0), {false, kBF16, 0}, {true, kF16, 3}}) {
    Random random(first + 9, kBF16);
    const View all_g = Output({first + kN}, gradient), g = all_g.Slice(first, kN);
    const View u = Output({kN}, kF32), c = Input({1}, {0.5}, kF32), rules = Rules({{0, kN}});
    const View factors = Factors({});
    const CodedMoment m = Moment(kN);
    HostMoment want{kSignedCodes, std::vector<uint8_t>(kN), std::vector<float>(5)};
    for (int step = 0; step < 3; ++step) {
      auto gradients = random.Vector(first + kN);
      for (size_t i = 0; i < gradients.size(); ++i) {
        gradients[i] *= std::ldexp(1.0, -static_cast<int>(i % 12));
      }
      gradients = RoundTo(gradient, gradients);
      Set(all_g, gradients);
      Run([&](Stream& s) { MomentumCoded(s, {kMomentum, nesterov}, rules, factors, c, g, m, u); });
      std::vector<float> moment = want.Decoded();
      std::vector<double> update;
      for (int64_t i = 0; i < kN; ++i) {
        const float x = 0.5f * static_cast<float>(gradients[first + i]);
        moment[i] = std::fma(0.25f, x - moment[i], moment[i]);
        update.push_back(nesterov ? std::fma(0.25f, x - moment[i], moment[i]) : moment[i]);
      }
      want.Encode(moment);
      ASSERT_EQ(Get(u), update) << step;
      ASSERT_EQ(Get(m.codes), Doubles(want.codes)) << step;
      ASSERT_EQ(Get(m.absmax), Doubles(want.absmax)) << step;
    }
    const auto before = Get(m.codes);
    const View bad = Input({1}, {std::nan("")}, kF32);
    Run([&](Stream& s) { MomentumCoded(s, {kMomentum, nesterov}, rules, factors, bad, g, m, u); });
    EXPECT_EQ(Get(m.codes), before);
    ExpectRefused(
        [&](Stream& s) {
          MomentumCoded(s, {1, nesterov}, rules, factors, c, g, m, u);
        },
        "[momentum_coded] momentum");
    Clear();
  }
}

// A second moment of a tiny part of its block's largest keeps the smallest code above zero.
TEST_P(AdamWCodedTest, ASecondMomentIsNeverRoundedToZero) {
  constexpr int64_t kN = kCodeBlock;
  std::vector<double> gradients(kN);
  gradients[0] = 1, gradients[1] = std::ldexp(1.0, -14), gradients[2] = std::ldexp(1.0, -40);
  const View p = Input({kN}, std::vector<double>(kN)), g = Input({kN}, gradients, kF32);
  const View c = Input({1}, {1}, kF32), rules = Rules({{0, kN}});
  const View factors = Factors(FactorsAt(0.1, 0.9, 0.95, 1));
  const CodedMoment m = Moment(kN), v = Moment(kN);
  Run([&](Stream& s) { AdamWCoded(s, {.beta2 = 0.95}, rules, factors, c, g, p, m, v); });
  const auto codes = Get(v.codes);
  EXPECT_EQ(codes[0], 255);
  EXPECT_EQ(codes[1], 1);
  EXPECT_EQ(codes[2], 1);
  EXPECT_EQ(codes[3], 0);
  EXPECT_EQ(Get(m.codes)[2], 0);
}

TEST_P(AdamWCodedTest, CoefficientThatIsNotFiniteSkips) {
  constexpr int64_t kN = 2 * kCodeBlock;
  const auto values = Random(1, dtype()).Vector(kN);
  std::vector<double> bytes(kN);
  for (int64_t i = 0; i < kN; ++i) bytes[i] = static_cast<double>(i * 7 % 256);
  const View p = Input({kN}, values), g = Output({kN}, kF32), copy = Output({kN}, kF32);
  const CodedMoment m{Input({kN}, bytes, DType::kUInt8), Input({2}, {1, 2}, kF32)},
      v{Input({kN}, bytes, DType::kUInt8), Input({2}, {3, 4}, kF32)};
  const View rules = Rules({{0, kN, 0.1}}), factors = Factors(FactorsAt(0.1, 0.9, 0.95, 1));
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const View c = Input({1}, {bad}, kF32);
    Run([&](Stream& s) { AdamWCoded(s, {}, rules, factors, c, g, p, m, v, {.copy = copy}); });
    EXPECT_EQ(Get(p), values);
    EXPECT_EQ(Get(copy), values);
    EXPECT_EQ(Get(m.codes), bytes);
    EXPECT_EQ(Get(v.codes), bytes);
    EXPECT_EQ(Get(m.absmax), (std::vector<double>{1, 2}));
    EXPECT_EQ(Get(v.absmax), (std::vector<double>{3, 4}));
  }
}

TEST_P(AdamWCodedTest, RefusesWrongArguments) {
  constexpr int64_t kN = kCodeBlock;
  const View p = Output({kN}), g = Output({kN}, kF32), c = Output({1}, kF32);
  const CodedMoment m = Moment(kN), v = Moment(kN);
  const View rules = Rules({}), factors = Factors(FactorsAt(0.1, 0.9, 0.95, 1));
  const auto call = [&](const View& p, const View& g, const CodedMoment& m, const CodedMoment& v) {
    return [=](Stream& s) { AdamWCoded(s, {}, rules, factors, c, g, p, m, v); };
  };
  ExpectRefused(call(p.Slice(0, 77), g.Slice(0, 77), m, v), "multiple of kCodeBlock");
  ExpectRefused(call(p, g, {g, m.absmax}, v), "codes of m is fp32");
  ExpectRefused(call(p, g, m, {v.codes, g}), "absmax of v is fp32 [256]");
  ExpectRefused(call(p, g, m, {m.codes, v.absmax}), "codes of m");
}

}  // namespace
}  // namespace fsdp
