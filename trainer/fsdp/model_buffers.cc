#include "trainer/fsdp/model_buffers.h"

#include <algorithm>
#include <array>
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

using Kind = ModelBuffer::Kind;
constexpr Kind kKindsInOrder[] = {Kind::kStatistic, Kind::kCount, Kind::kTally, Kind::kBias};

DType DTypeOf(Kind kind) { return kind == Kind::kCount ? DType::kInt64 : DType::kFloat32; }

// Elements of a buffer, with what a BumpAllocator leaves behind them.
int64_t Room(const ModelBuffer& buffer) {
  return RoundUp(buffer.shape().NumElements(), 64 / SizeOf(buffer.dtype()));
}

int64_t Elements(const std::vector<ModelBuffer*>& buffers, Kind kind) {
  int64_t elements = 0;
  for (const ModelBuffer* buffer : buffers) {
    if (buffer->kind() == kind) elements += Room(*buffer);
  }
  return elements;
}

View& In(std::array<View, 4>& of, Kind kind) { return of[static_cast<size_t>(kind)]; }
const View& In(const std::array<View, 4>& of, Kind kind) { return of[static_cast<size_t>(kind)]; }

}  // namespace

ModelBuffers::ModelBuffers(const Model& model) : buffers_(NamedBuffers(model)) {}

int64_t ModelBuffers::statistics() const { return Elements(buffers_, Kind::kStatistic); }
int64_t ModelBuffers::tallies() const { return Elements(buffers_, Kind::kTally); }

std::vector<std::span<const float>> ModelBuffers::TalliesIn(const View& on_host) const {
  std::vector<std::span<const float>> tallies;
  const float* at = on_host.As<float>();
  for (const ModelBuffer* buffer : buffers_) {
    if (buffer->kind() != Kind::kTally) continue;
    tallies.emplace_back(at, static_cast<size_t>(buffer->shape().NumElements()));
    at += Room(*buffer);
  }
  return tallies;
}

View ModelBuffers::Place(PhasedAllocator& allocator, int64_t scalars) {
  const auto take = [&](int64_t elements, MemoryKind kind, DType dtype) {
    View view(nullptr, dtype, Shape{elements});
    if (elements > 0) view.data = allocator.Allocate(view.bytes(), kind);
    return view;
  };
  const View summed = take(this->summed() + scalars, MemoryKind::kActivations, DType::kFloat32);
  for (const Kind kind : kKindsInOrder) {
    In(values_.of, kind) = take(Elements(buffers_, kind), MemoryKind::kParameters, DTypeOf(kind));
  }
  In(written_.of, Kind::kStatistic) = summed.Slice(0, statistics());
  In(written_.of, Kind::kTally) = summed.Slice(statistics(), tallies());
  In(written_.of, Kind::kCount) =
      take(Elements(buffers_, Kind::kCount), MemoryKind::kActivations, DType::kInt64);
  In(written_.of, Kind::kBias) = In(values_.of, Kind::kBias);
  Carve(values_);
  Carve(written_);
  return summed.Slice(this->summed(), scalars);
}

void ModelBuffers::Carve(Values& values) const {
  std::vector<BumpAllocator> bumps(values.of.begin(), values.of.end());
  for (const ModelBuffer* buffer : buffers_) {
    BumpAllocator& bump = bumps[static_cast<size_t>(buffer->kind())];
    const View part = bump.Take(buffer->shape().NumElements(), buffer->dtype());
    values.parts.push_back(part.Reshape(buffer->shape()));
  }
}

void ModelBuffers::Initialize(Stream& stream, const View& upload, const FillBuffer& fill) const {
  for (const Kind kind : {Kind::kStatistic, Kind::kTally, Kind::kBias}) {
    if (In(values_.of, kind).NumElements() > 0) fsdp::Fill(stream, 0, In(values_.of, kind));
  }
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
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i]->Bind(bound.parts[i], values_.parts[i]);
}

void ModelBuffers::Begin(Stream& stream) const {
  for (const Kind kind : {Kind::kStatistic, Kind::kCount}) {
    const View& values = In(values_.of, kind);
    if (values.NumElements() > 0) Copy(stream, values, In(written_.of, kind));
  }
  if (tallies() > 0) fsdp::Fill(stream, 0, In(written_.of, Kind::kTally));
}

View ModelBuffers::WithSummed(const View& scalars) const {
  if (summed() == 0) return scalars;
  const View& first = In(written_.of, statistics() > 0 ? Kind::kStatistic : Kind::kTally);
  return {first.data, DType::kFloat32, Shape{summed() + scalars.NumElements()}};
}

View ModelBuffers::WithTallies(const View& scalars) const {
  if (tallies() == 0) return scalars;
  const View& first = In(written_.of, Kind::kTally);
  return {first.data, DType::kFloat32, Shape{tallies() + scalars.NumElements()}};
}

void ModelBuffers::Take(Stream& stream, const ConstView& coefficient, int ranks, double bias_rate) {
  WaitForCopies(stream);
  for (const Kind kind : {Kind::kStatistic, Kind::kCount, Kind::kTally}) {
    const View& values = In(values_.of, kind);
    if (values.NumElements() == 0) continue;
    TakeUnlessNaN(stream, coefficient, kind == Kind::kStatistic ? static_cast<float>(ranks) : 1,
                  In(written_.of, kind), values);
  }
  if (bias_rate == 0) return;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const ModelBuffer& bias = *buffers_[i];
    if (bias.kind() != Kind::kBias || !bias.router()->trainable()) continue;
    const auto tally = std::find(buffers_.begin(), buffers_.end(), bias.tally());
    const View& loads = written_.parts[static_cast<size_t>(tally - buffers_.begin())];
    MoveBias(stream, coefficient, loads.Slice(0, bias.shape().NumElements()),
             static_cast<float>(bias_rate), values_.parts[i]);
  }
}

void ModelBuffers::WaitForCopies(Stream& stream) { stream.Wait(std::exchange(copied_, nullptr)); }

}  // namespace fsdp
