// Shape and View: where a tensor lies and what it is. A View borrows; the owner keeps the memory
// alive until the work that uses it is done. Views are dense and row-major. On the sim device the
// address is only a number.
#ifndef FSDP_TRAIN_TRAINER_CORE_VIEW_H_
#define FSDP_TRAIN_TRAINER_CORE_VIEW_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "trainer/core/dtype.h"

namespace fsdp {

// Up to five dimensions, each >= 0; their product (zeros left out) is at most kMaxElements, so that
// no number of elements or bytes overflows. Throws std::invalid_argument otherwise.
class Shape {
 public:
  static constexpr int kMaxRank = 5;
  static constexpr int64_t kMaxElements = int64_t{1} << 59;

  Shape() = default;  // A scalar: rank 0, one element.
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const;  // FSDP_CHECKs 0 <= i < rank().
  int64_t NumElements() const;
  std::string ToString() const;  // "[2, 3]".
  bool operator==(const Shape&) const = default;

 private:
  int rank_ = 0;
  std::array<int64_t, kMaxRank> dims_{};
};

template <typename Byte>
struct BasicView {
  Byte* data = nullptr;
  DType dtype = DType::kFloat32;
  Shape shape;

  BasicView() = default;
  BasicView(Byte* d, DType t, const Shape& s) : data(d), dtype(t), shape(s) {}
  // A View is a ConstView.
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator BasicView<const std::byte>() const requires(!std::is_const_v<Byte>) {
    return {data, dtype, shape};
  }

  int64_t NumElements() const { return shape.NumElements(); }
  int64_t bytes() const { return NumElements() * SizeOf(dtype); }

  // No check against dtype: kernels know theirs.
  template <typename T>
  auto* As() const {
    using Out = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<Out*>(data);
  }

  // Elements [begin, begin + count) as a vector. The caller checks the bounds.
  BasicView Slice(int64_t begin, int64_t count) const {
    return {data + begin * SizeOf(dtype), dtype, Shape{count}};
  }
  BasicView Reshape(const Shape& to) const;  // FSDP_CHECKs that the number of elements stays.
};

using View = BasicView<std::byte>;
using ConstView = BasicView<const std::byte>;

extern template struct BasicView<std::byte>;
extern template struct BasicView<const std::byte>;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_VIEW_H_
