#include "trainer/core/batch.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

// [rows, dims `from` and on].
Shape OfRows(int64_t rows, const Shape& shape, int from) {
  std::vector<int64_t> dims = {rows};
  for (int i = from; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return Shape(dims);
}

// The first `rows` of a tensor of rows.
View FirstRows(const View& view, int64_t rows) {
  const Shape shape = OfRows(rows, view.shape, 1);
  return view.Reshape(Shape{view.NumElements()}).Slice(0, shape.NumElements()).Reshape(shape);
}

// The inputs, then the keys.
template <typename Visit>
void ForEachTensor(const BatchSpec& spec, int64_t rows, const Visit& visit) {
  for (const BatchInput& input : spec.inputs) visit(input.dtype, OfRows(rows, input.sample, 0));
  visit(DType::kInt32, Shape{rows, 2});
}

int64_t Padded(const View& view) { return (view.bytes() + 63) / 64 * 64; }

}  // namespace

size_t BatchSpec::IndexOf(std::string_view name) const {
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [&](const BatchInput& input) { return input.name == name; });
  FSDP_CHECK(found != inputs.end()) << "no input " << name;
  return static_cast<size_t>(found - inputs.begin());
}

Batch Batch::First(int64_t rows) const {
  Batch first;
  for (const View& view : inputs) first.inputs.push_back(FirstRows(view, rows));
  first.sample_keys = FirstRows(sample_keys, rows);
  return first;
}

Batch CarveBatch(const BatchSpec& spec, int64_t rows, std::byte* begin) {
  Batch batch;
  ForEachTensor(spec, rows, [&](DType dtype, const Shape& shape) {
    batch.inputs.emplace_back(begin, dtype, shape);
    begin += Padded(batch.inputs.back());
  });
  batch.sample_keys = batch.inputs.back();
  batch.inputs.pop_back();
  return batch;
}

int64_t BatchBytes(const BatchSpec& spec, int64_t rows) {
  int64_t bytes = 0;
  ForEachTensor(spec, rows, [&](DType dtype, const Shape& shape) {
    bytes += Padded(View(nullptr, dtype, shape));
  });
  return bytes;
}

void RequireBatch(const char* who, const BatchSpec& spec, int64_t rows, const Batch& batch) {
  const Batch want = CarveBatch(spec, rows, nullptr);
  bool alike = batch.inputs.size() == want.inputs.size() &&
               batch.sample_keys.shape == want.sample_keys.shape;
  for (size_t i = 0; alike && i < want.inputs.size(); ++i) {
    alike = batch.inputs[i].dtype == want.inputs[i].dtype &&
            batch.inputs[i].shape == want.inputs[i].shape && batch.inputs[i].data != nullptr;
  }
  if (!alike) {
    throw std::invalid_argument("[" + std::string(who) + "] a batch of another model");
  }
}

}  // namespace fsdp
