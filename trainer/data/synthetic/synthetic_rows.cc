#include "trainer/data/synthetic/synthetic_rows.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "trainer/core/philox.h"
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

}  // namespace fsdp
