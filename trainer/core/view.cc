#include "trainer/core/view.h"

#include <algorithm>
#include <stdexcept>

#include "trainer/core/check.h"

namespace fsdp {

Shape::Shape(std::initializer_list<int64_t> dims)
    : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) {
  if (dims.size() > kMaxRank) {
    throw std::invalid_argument("[Shape] " + std::to_string(dims.size()) +
                                " dimensions, want <= " + std::to_string(kMaxRank));
  }
  for (const int64_t dim : dims) {
    if (dim < 0) throw std::invalid_argument("[Shape] dimension " + std::to_string(dim) + " < 0");
    dims_[rank_++] = dim;
  }
  for (int64_t n = 1; const int64_t dim : dims) {
    if (dim > kMaxElements / n) throw std::invalid_argument("[Shape] too large: " + ToString());
    n *= std::max<int64_t>(dim, 1);  // A zero does not excuse the others.
  }
}

int64_t Shape::operator[](int i) const {
  FSDP_CHECK(0 <= i && i < rank_) << "dimension " << i << " of " << ToString();
  return dims_[i];
}

int64_t Shape::NumElements() const {
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= dims_[i];
  return n;
}

std::string Shape::ToString() const {
  std::string out = "[";
  for (int i = 0; i < rank_; ++i) out += (i ? ", " : "") + std::to_string(dims_[i]);
  return out + "]";
}

template <typename Byte>
BasicView<Byte> BasicView<Byte>::Reshape(const Shape& to) const {
  FSDP_CHECK_EQ(to.NumElements(), shape.NumElements())
      << shape.ToString() << " as " << to.ToString();
  return {data, dtype, to};
}

template struct BasicView<std::byte>;
template struct BasicView<const std::byte>;

}  // namespace fsdp
