#include "trainer/fsdp/model_buffers.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "trainer/core/round_up.h"
#include "trainer/fsdp/bump_allocator.h"
#include "trainer/nn/model.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/running_statistics.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

std::vector<ModelBuffer*> NamedBuffers(const Model& model) {
  std::set<std::string> names;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) names.insert(p->name());
  }
  std::vector<ModelBuffer*> buffers = BuffersOf(model);
  for (const ModelBuffer* buffer : buffers) {
    if (names.insert(buffer->name()).second) continue;
    throw std::invalid_argument("[ModelBuffers] two of the model's tensors are called " +
                                buffer->name());
  }
  return buffers;
}

// With what a BumpAllocator leaves between them.
int64_t Elements(const std::vector<ModelBuffer*>& buffers, DType dtype) {
  int64_t elements = 0;
  const int64_t line = 64 / SizeOf(dtype);
  for (const ModelBuffer* buffer : buffers) {
    const int64_t n = buffer->shape().NumElements();
    if (buffer->dtype() == dtype) elements += RoundUp(n, line);
  }
  return elements;
}

}  // namespace

ModelBuffers::ModelBuffers(const Model& model) : buffers_(NamedBuffers(model)) {}

int64_t ModelBuffers::statistics() const { return Elements(buffers_, DType::kFloat32); }

View ModelBuffers::Place(PhasedAllocator& allocator, int64_t scalars) {
  const int64_t statistics = this->statistics();
  const int64_t counts = Elements(buffers_, DType::kInt64);
  const auto take = [&](int64_t elements, MemoryKind kind, DType dtype) {
    View view(nullptr, dtype, Shape{elements});
    if (elements > 0) view.data = allocator.Allocate(view.bytes(), kind);
    return view;
  };
  const View summed = take(statistics + scalars, MemoryKind::kActivations, DType::kFloat32);
  values_.statistics = take(statistics, MemoryKind::kParameters, DType::kFloat32);
  values_.counts = take(counts, MemoryKind::kParameters, DType::kInt64);
  written_.statistics = summed.Slice(0, statistics);
  written_.counts = take(counts, MemoryKind::kActivations, DType::kInt64);
  Carve(values_);
  Carve(written_);
  return summed.Slice(statistics, scalars);
}

void ModelBuffers::Carve(Values& values) const {
  BumpAllocator statistics(values.statistics), counts(values.counts);
  for (const ModelBuffer* buffer : buffers_) {
    BumpAllocator& bump = buffer->dtype() == DType::kFloat32 ? statistics : counts;
    const View part = bump.Take(buffer->shape().NumElements(), buffer->dtype());
    values.parts.push_back(part.Reshape(buffer->shape()));
  }
}

void ModelBuffers::Initialize(Stream& stream, const View& upload, const FillBuffer& fill) const {
  if (values_.statistics.NumElements() > 0) fsdp::Fill(stream, 0, values_.statistics);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const ModelBuffer& buffer = *buffers_[i];
    const int64_t n = buffer.shape().NumElements();
    const int64_t most = upload.bytes() / SizeOf(buffer.dtype());
    const View to = values_.parts[i].Reshape(Shape{n});
    for (int64_t at = 0; at < n; at += most) {
      const View part(upload.data, buffer.dtype(), Shape{std::min(most, n - at)});
      Operation operation{"initialize", {}, {part}, {}};
      operation.costs = {Cost{.bytes_written = static_cast<double>(part.bytes())}};
      const auto initialize = [fill, &buffer, at](ThreadPool&, const View& values) {
        if (fill) return fill(buffer, at, values);
        if (values.dtype == DType::kInt64) {
          std::fill_n(values.As<int64_t>(), values.NumElements(),
                      static_cast<int64_t>(buffer.initial()));
        } else {
          std::fill_n(values.As<float>(), values.NumElements(),
                      static_cast<float>(buffer.initial()));
        }
      };
      operation.kernels.host = OnCpu(initialize, part);
      stream.Enqueue(std::move(operation));
      Copy(stream, part, to.Slice(at, part.NumElements()));
    }
  }
}

void ModelBuffers::Bind(Mode mode) const {
  const Values& bound = mode == Mode::kTrain ? written_ : values_;
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i]->Bind(bound.parts[i]);
}

void ModelBuffers::Begin(Stream& stream) const {
  for (View Values::*of : {&Values::statistics, &Values::counts}) {
    if ((values_.*of).NumElements() > 0) Copy(stream, values_.*of, written_.*of);
  }
}

View ModelBuffers::WithStatistics(const View& scalars) const {
  const View& before = written_.statistics;
  if (before.NumElements() == 0) return scalars;
  return {before.data, DType::kFloat32, Shape{before.NumElements() + scalars.NumElements()}};
}

void ModelBuffers::Take(Stream& stream, const ConstView& coefficient, int ranks) {
  WaitForCopies(stream);
  if (values_.statistics.NumElements() > 0) {
    TakeUnlessNaN(stream, coefficient, static_cast<float>(ranks), written_.statistics,
                  values_.statistics);
  }
  if (values_.counts.NumElements() > 0) {
    TakeUnlessNaN(stream, coefficient, 1, written_.counts, values_.counts);
  }
}

void ModelBuffers::WaitForCopies(Stream& stream) { stream.Wait(std::exchange(copied_, nullptr)); }

}  // namespace fsdp
