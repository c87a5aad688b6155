#include "trainer/ops/cpu/update_cpu.h"

#include "trainer/core/philox.h"
#include "trainer/ops/cpu/isa.h"

namespace fsdp {
namespace {

// Floats to elements [at, at + n) of `to`, where it is bf16.
void WriteRounded(RoundingStream stream, uint64_t tensor, int64_t element, const float* x,
                  int64_t n, const View& to, int64_t at) {
  if (to.dtype == DType::kFloat32) return;
  stream.tensor = tensor;
  ForThisCpu(kRoundingAvx2, kRoundingAvx512).round(stream, element, x, n, to.As<uint16_t>() + at);
}

}  // namespace

RoundingStream RoundingStreamOf(uint64_t seed, int64_t update, Rounded rounded) {
  const uint64_t count = update;
  const PhiloxCounter words =
      Philox({static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32),
              static_cast<uint32_t>(rounded), 0},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {{words[0], words[1]}, 0};
}

UpdateWriter::UpdateWriter(const UpdateOperands& operands, int64_t update)
    : operands_(operands), rate_(static_cast<float>(1 - operands.extras.decay)) {
  for (uint32_t i = 0; i < streams_.size(); ++i) {
    streams_[i] = RoundingStreamOf(operands.extras.seed, update, static_cast<Rounded>(i));
  }
}

void UpdateWriter::Write(int64_t at, int64_t n, uint64_t tensor, int64_t element, float* p,
                         const float* const (&states)[2]) const {
  for (int s = 0; s < 2 && states[s] != nullptr; ++s) {
    WriteRounded(streams_[1 + s], tensor, element, states[s], n, operands_.states[s], at);
  }
  WriteRounded(streams_[0], tensor, element, p, n, operands_.p, at);
  const View &copy = operands_.extras.copy, &average = operands_.extras.average;
  if (copy.data == nullptr && average.data == nullptr) return;
  // What is kept of p.
  if (operands_.p.dtype != DType::kFloat32) ConvertToFloats(operands_.p, at, n, p);
  if (copy.data != nullptr) {
    if (copy.dtype == DType::kFloat32) {
      std::copy_n(p, n, copy.As<float>() + at);
    } else {
      ConvertFromFloats(p, n, copy, at);
    }
  }
  if (average.data != nullptr) {
    float* const a = average.As<float>() + at;
    const float* const value = p;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) a[i] = std::fma(rate_, value[i] - a[i], a[i]);
  }
}

}  // namespace fsdp
