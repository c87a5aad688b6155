#include "trainer/core/batch.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

Shape OfRows(int64_t rows, const Shape& sample) {
  std::vector<int64_t> dims = {rows};
  for (int i = 0; i < sample.rank(); ++i) dims.push_back(sample[i]);
  return Shape(dims);
}

// The first `rows` of a tensor of rows.
View FirstRows(const View& view, int64_t rows) {
  std::vector<int64_t> dims = {rows};
  for (int i = 1; i < view.shape.rank(); ++i) dims.push_back(view.shape[i]);
  const Shape shape(dims);
  return view.Reshape(Shape{view.NumElements()}).Slice(0, shape.NumElements()).Reshape(shape);
}

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
  const auto take = [&](DType dtype, const Shape& shape) {
    const View view(begin, dtype, shape);
    begin += (view.bytes() + 63) / 64 * 64;
    return view;
  };
  for (const BatchInput& input : spec.inputs) {
    batch.inputs.push_back(take(input.dtype, OfRows(rows, input.sample)));
  }
  batch.sample_keys = take(DType::kInt32, Shape{rows, 2});
  return batch;
}

int64_t BatchBytes(const BatchSpec& spec, int64_t rows) {
  int64_t bytes = 0;
  const auto add = [&](DType dtype, const Shape& shape) {
    bytes += (View(nullptr, dtype, shape).bytes() + 63) / 64 * 64;
  };
  for (const BatchInput& input : spec.inputs) add(input.dtype, OfRows(rows, input.sample));
  add(DType::kInt32, Shape{rows, 2});
  return bytes;
}

}  // namespace fsdp
