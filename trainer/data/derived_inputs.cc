#include "trainer/data/derived_inputs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>

#include "trainer/core/argsort.h"

namespace fsdp {
namespace {

std::span<int32_t> All(const View& view) {
  return {view.As<int32_t>(), static_cast<size_t>(view.NumElements())};
}

}  // namespace

void CheckDerived(const BatchSpec& spec) {
  for (const BatchInput& input : spec.inputs) {
    if (input.role != BatchInput::Role::kDerived) continue;
    const auto is_of = [&](const BatchInput& other) {
      return other.name == input.order_of && other.dtype == DType::kInt32 &&
             other.sample == input.sample;
    };
    const bool known =
        input.order_of.empty() ? input.counts : std::ranges::any_of(spec.inputs, is_of);
    if (!known || input.dtype != DType::kInt32) {
      throw std::invalid_argument("[DeriveInputs] nothing can be derived for " + input.name);
    }
  }
}

void DeriveInputs(const BatchSpec& spec, const Batch& batch) {
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    const BatchInput& input = spec.inputs[i];
    if (input.role != BatchInput::Role::kDerived) continue;
    const std::span<int32_t> out = All(batch.inputs[i]);
    if (!input.order_of.empty()) {
      Argsort(All(batch.inputs[spec.IndexOf(input.order_of)]), out);
      continue;
    }
    const auto row = static_cast<size_t>(input.sample.NumElements());
    for (size_t begin = 0; begin < out.size(); begin += row) {
      std::iota(out.begin() + begin, out.begin() + begin + row, 0);
    }
  }
}

}  // namespace fsdp
