#include "trainer/nn/parameter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>

#include "trainer/core/check.h"
#include "trainer/ops/weight_codes.h"

namespace fsdp {
namespace {

Shape WithRows(const Shape& shape, int64_t rows) {
  std::array<int64_t, Shape::kMaxRank> dims;
  for (int i = 0; i < shape.rank(); ++i) dims[i] = i == 0 ? rows : shape[i];
  return Shape(std::span<const int64_t>(dims.data(), shape.rank()));
}

}  // namespace

Parameter::Parameter(std::string name, const Shape& shape, Init init, bool decay)
    : Parameter(name, shape, {{name, shape[0], init, decay}}) {}

Parameter::Parameter(std::string name, const Shape& shape, std::vector<ParameterSlice> slices)
    : name_(std::move(name)), shape_(shape), slices_(std::move(slices)) {
  int64_t rows = 0, begin = 0;
  for (ParameterSlice& slice : slices_) {
    slice.begin = begin;
    slice.shape = WithRows(shape, slice.rows);
    begin += slice.shape.NumElements();
    rows += slice.rows;
  }
  if (slices_.empty() || rows != shape[0]) {
    throw std::invalid_argument("[Parameter] the slices of " + name_ + " have " +
                                std::to_string(rows) + " rows, want those of " + shape.ToString());
  }
}

void Parameter::HoldsSideBySide(int layers) {
  for (ParameterSlice& slice : slices_) {
    FSDP_CHECK(layers >= 1 && slice.shape.rank() == 2 && slice.shape[1] % layers == 0)
        << slice.name << " is " << slice.shape.ToString() << ", of " << layers << " layers";
    slice.side_by_side = layers;
  }
}

void Parameter::HoldsExperts(int64_t experts) {
  FSDP_CHECK(experts >= 1 && std::ssize(slices_) % experts == 0) << name_ << " of " << experts;
  experts_ = experts;
}

void Parameter::Encode(WeightCode code) {
  FSDP_CHECK(!trainable_ && shape_.rank() == 2) << name_ << " is not a frozen weight";
  code_ = code;
}

int64_t Parameter::coded_bytes() const {
  int64_t bytes = 0;
  if (code_ == WeightCode::kNone) return bytes;
  for (const ParameterSlice& slice : slices_) bytes += CodedBytes(code_, slice.shape.NumElements());
  return bytes;
}

int64_t Parameter::CodedBegin(const ParameterSlice& slice) const {
  int64_t bytes = 0;
  for (const ParameterSlice& before : slices_) {
    if (&before == &slice) break;
    bytes += CodedBytes(code_, before.shape.NumElements());
  }
  return bytes;
}

void Parameter::AddAdapter(const Adapter& adapter) {
  adapters_.push_back(adapter);
  adapter.a->is_adapter_ = adapter.b->is_adapter_ = true;
}

ConstView Parameter::value() const {
  FSDP_CHECK(code_ == WeightCode::kNone) << name_ << " is kept as records";
  FSDP_CHECK(value_.data != nullptr) << name_ << " is used while its unit is not gathered";
  return value_;
}

ConstView Parameter::records() const {
  FSDP_CHECK(code_ != WeightCode::kNone) << name_ << " is not kept as records";
  FSDP_CHECK(value_.data != nullptr) << name_ << " is used while its unit is not gathered";
  return value_;
}

View Parameter::grad() const {
  FSDP_CHECK(trainable_) << name_ << " is frozen";
  FSDP_CHECK(grad_.data != nullptr) << name_ << " is given a gradient outside its unit's backward";
  return grad_;
}

void Parameter::Bind(const View& value, const View& grad) {
  const Shape want = code_ == WeightCode::kNone ? shape_ : Shape{coded_bytes()};
  for (const View& view : {value, grad}) {
    FSDP_CHECK(view.data == nullptr || view.shape == want)
        << name_ << " is " << want.ToString() << ", bound to " << view.shape.ToString();
  }
  value_ = value;
  grad_ = grad;
}

std::string NameOfRows(const std::string& name, int64_t begin, int64_t end, int64_t all) {
  if (begin == 0 && end == all) return name;
  return name + "[" + std::to_string(begin) + ":" + std::to_string(end) + "]";
}

std::optional<NamedRows> RowsOfName(std::string_view name) {
  const size_t open = name.find('['), colon = name.find(':', open), close = name.find(']', colon);
  if (close == std::string_view::npos) return std::nullopt;
  NamedRows rows{.whole = std::string(name.substr(0, open))};
  rows.whole += name.substr(close + 1);
  const auto read = [&](size_t from, size_t to, int64_t& number) {
    const char* const end = name.data() + to;
    const auto [at, error] = std::from_chars(name.data() + from + 1, end, number);
    return error == std::errc() && at == end;
  };
  if (!read(open, colon, rows.begin) || !read(colon, close, rows.end)) return std::nullopt;
  if (rows.begin < 0 || rows.begin >= rows.end) return std::nullopt;
  return rows;
}

std::string WholeName(const std::string& name) {
  const std::optional<NamedRows> rows = RowsOfName(name);
  return rows ? rows->whole : name;
}

std::vector<RecordPiece> RecordPieces(const Parameter& parameter, int64_t begin, int64_t bytes) {
  const int64_t size = RecordBytes(parameter.code());
  FSDP_CHECK(begin % size == 0 && bytes % size == 0) << parameter.name() << ": a record is cut";
  std::vector<RecordPiece> pieces;
  for (const ParameterSlice& slice : parameter.slices()) {
    const int64_t first = parameter.CodedBegin(slice);
    const int64_t end = first + CodedBytes(parameter.code(), slice.shape.NumElements());
    const int64_t from = std::max(begin, first), to = std::min(begin + bytes, end);
    if (from < to)
      pieces.push_back({&slice, (from - first) / size, (to - from) / size, from - begin});
  }
  return pieces;
}

std::vector<SlicePiece> SlicePieces(const Parameter& parameter, int64_t begin, int64_t count) {
  std::vector<SlicePiece> pieces;
  for (const ParameterSlice& slice : parameter.slices()) {
    const int64_t from = std::max(begin, slice.begin);
    const int64_t to = std::min(begin + count, slice.begin + slice.shape.NumElements());
    if (from < to) pieces.push_back({&slice, from - slice.begin, to - from, from - begin});
  }
  return pieces;
}

}  // namespace fsdp
