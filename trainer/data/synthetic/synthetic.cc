#include "trainer/data/synthetic/synthetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "trainer/core/philox.h"
#include "trainer/core/units.h"
#include "trainer/data/derived_inputs.h"

namespace fsdp {
namespace {

std::vector<double> WeightsOf(const std::vector<SyntheticRows::Source>& sources) {
  std::vector<double> weights;
  for (const SyntheticRows::Source& source : sources) weights.push_back(source.weight);
  return weights;
}

const BatchSpec& Checked(const BatchSpec& spec) {
  CheckDerived(spec);
  for (const BatchInput& input : spec.inputs) {
    if (input.role == BatchInput::Role::kDerived) continue;
    if (input.dtype == DType::kInt32 && input.values < 1) {
      throw std::invalid_argument("[SyntheticRows] nothing can be drawn for " + input.name);
    }
  }
  return spec;
}

void Draw(const BatchInput& input, const RandomStream& random, int64_t elements, std::byte* out) {
  if (input.dtype == DType::kInt32) {
    auto* const values = reinterpret_cast<int32_t*>(out);
    for (int64_t i = 0; i < elements; ++i) {
      values[i] = static_cast<int32_t>(random.Below(i, static_cast<uint64_t>(input.values)));
    }
    return;
  }
  auto* const values = reinterpret_cast<float*>(out);
  const bool weight = input.role == BatchInput::Role::kWeight;
  for (int64_t i = 0; i < elements; ++i) values[i] = weight ? 1 : random.Normal(i);
}

}  // namespace

SyntheticRows::SyntheticRows(const BatchSpec& spec, std::vector<Source> sources, uint64_t seed)
    : spec_(Checked(spec)), sources_(std::move(sources)), mixture_(WeightsOf(sources_), seed) {}

void SyntheticRows::CheckViews(const Batch& out, int64_t rows) const {
  RequireBatch("SyntheticRows", spec_, rows, out);
}

void SyntheticRows::Fill(int64_t sample, int64_t row, const Batch& out) const {
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    const BatchInput& input = spec_.inputs[i];
    if (input.role == BatchInput::Role::kDerived) continue;
    const int64_t elements = input.sample.NumElements();
    const int64_t bytes = elements * SizeOf(input.dtype);
    std::byte* const begin = out.inputs[i].data + row * bytes;
    if (sample == kNoSample) {
      std::fill_n(begin, bytes, std::byte{0});
      continue;
    }
    const auto [which, number] = mixture_(sample);
    const Source& source = sources_[static_cast<size_t>(which)];
    const auto of_epoch = static_cast<uint64_t>(source.first + number % source.rows);
    Draw(input, RandomStream(source.seed, input.name, of_epoch), elements, begin);
  }
}

void SyntheticRows::Derive(const Batch& batch) const { DeriveInputs(spec_, batch); }

SyntheticSource::SyntheticSource(const SyntheticOptions& options)
    : options_(options),
      noise_(options.seed, "data.synthetic.noise"),
      draws_(options.seed, "data.synthetic.draws") {
  if (options.vocab_size < 2 || options.num_tokens < 1 ||
      !(options.noise > 0 && options.noise <= 1)) {
    throw std::invalid_argument(
        "[SyntheticSource] want vocab_size >= 2, num_tokens >= 1 and 0 < noise <= 1, got " +
        std::to_string(options.vocab_size) + ", " + std::to_string(options.num_tokens) + " and " +
        Shortest(options.noise));
  }
  // Near the golden section of V: neighbours land far apart.
  const int64_t v = options.vocab_size;
  multiplier_ = std::max<int64_t>(1, v * 618 / 1000);
  while (std::gcd(multiplier_, v) != 1) --multiplier_;
  increment_ = v / 3 + 1;
}

bool SyntheticSource::IsDrawn(int64_t offset) const {
  return offset == 0 || noise_.Uniform(static_cast<uint64_t>(offset)) < options_.noise;
}

int32_t SyntheticSource::Draw(int64_t offset) const {
  return static_cast<int32_t>(
      draws_.Below(static_cast<uint64_t>(offset), static_cast<uint64_t>(options_.vocab_size)));
}

int32_t SyntheticSource::Next(int32_t token) const {
  return static_cast<int32_t>((multiplier_ * token + increment_) % options_.vocab_size);
}

void SyntheticSource::Read(int64_t offset, std::span<int32_t> out) const {
  internal::CheckRange(*this, offset, std::ssize(out));
  if (out.empty()) return;
  int64_t at = offset;
  while (!IsDrawn(at)) --at;
  int32_t token = Draw(at);
  while (at < offset) token = Next(token), ++at;
  out[0] = token;
  for (size_t i = 1; i < out.size(); ++i) {
    const int64_t t = offset + static_cast<int64_t>(i);
    out[i] = token = IsDrawn(t) ? Draw(t) : Next(token);
  }
}

std::string SyntheticSource::Describe() const {
  return "synthetic data of " + std::to_string(options_.num_tokens) + " tokens, seed " +
         std::to_string(options_.seed);
}

std::string SyntheticSource::Where(int64_t offset) const {
  return "synthetic data, token " + std::to_string(offset);
}

double SyntheticSource::Entropy() const {
  const double v = options_.vocab_size, r = options_.noise / v, q = 1 - options_.noise + r;
  return -q * std::log(q) - (v - 1) * r * std::log(r);
}

}  // namespace fsdp
