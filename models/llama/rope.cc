#include "models/llama/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp {
namespace {

std::vector<double> Plain(double theta, int64_t dim) {
  std::vector<double> f;
  for (int64_t i = 0; i < dim / 2; ++i) {
    f.push_back(1 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(dim)));
  }
  return f;
}

double DynamicTheta(const LlamaConfig& c, int64_t seq_len) {
  const double length = static_cast<double>(c.max_position_embeddings);
  const double n = std::max(static_cast<double>(seq_len), length), factor = *c.rope_scaling.factor;
  const double d = static_cast<double>(c.head_dim);
  return c.rope_theta * std::pow(factor * n / length - (factor - 1), d / (d - 2));
}

void ScaleLlama3(const RopeScaling& s, std::vector<double>& f) {
  const double length = static_cast<double>(*s.original_max_position_embeddings);
  const double low = *s.low_freq_factor, high = *s.high_freq_factor, factor = *s.factor;
  for (double& x : f) {
    const double wave = 2 * std::numbers::pi / x;
    if (wave > length / low) {
      x /= factor;
    } else if (wave >= length / high) {
      const double smooth = (length / wave - low) / (high - low);
      x = (1 - smooth) * x / factor + smooth * x;
    }
  }
}

void ScaleYarn(const LlamaConfig& c, std::vector<double>& f) {
  const RopeScaling& s = c.rope_scaling;
  const double d = static_cast<double>(c.head_dim), factor = *s.factor;
  const double length = static_cast<double>(*s.original_max_position_embeddings);
  // The dimension that turns `turns` times in the original length.
  const auto dimension = [&](double turns) {
    return d * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(c.rope_theta));
  };
  double low = dimension(s.beta_fast.value_or(32)), high = dimension(s.beta_slow.value_or(1));
  if (s.truncate.value_or(true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < f.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    f[i] = f[i] / factor * ramp + f[i] * (1 - ramp);
  }
}

double YarnAttentionFactor(const RopeScaling& s) {
  if (s.attention_factor) return *s.attention_factor;
  const auto scale = [&](double m) {
    return *s.factor <= 1 ? 1.0 : 0.1 * m * std::log(*s.factor) + 1;
  };
  return s.mscale && s.mscale_all_dim ? scale(*s.mscale) / scale(*s.mscale_all_dim) : scale(1);
}

}  // namespace

RopeFrequencies RopeFrequenciesOf(const LlamaConfig& c, int64_t seq_len) {
  const RopeScaling& s = c.rope_scaling;
  const bool dynamic = s.type == RopeScaling::Type::kDynamic;
  RopeFrequencies f{Plain(dynamic ? DynamicTheta(c, seq_len) : c.rope_theta, c.head_dim)};
  switch (s.type) {
    case RopeScaling::Type::kDefault:
    case RopeScaling::Type::kDynamic:
      break;
    case RopeScaling::Type::kLinear:
      for (double& x : f.inverse) x /= *s.factor;
      break;
    case RopeScaling::Type::kLlama3:
      ScaleLlama3(s, f.inverse);
      break;
    case RopeScaling::Type::kYarn:
      ScaleYarn(c, f.inverse);
      f.attention_factor = YarnAttentionFactor(s);
      break;
  }
  return f;
}

}  // namespace fsdp
