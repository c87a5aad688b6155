#include "trainer/data/jinja/operators.h"

#include <algorithm>
#include <limits>

#include "trainer/data/jinja/objects.h"
#include "trainer/data/jinja/python_text.h"
#include "trainer/data/unicode.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

constexpr int64_t kMostRange = 100'000;  // MAX_RANGE of jinja2/sandbox.py.

constexpr const char* kComparisons[] = {"==", "!=", "<", "<=", ">", ">=", "in", "not in"};

const RangeObject* AsRange(const Value& value) {
  return value.Is(Kind::kObject) ? dynamic_cast<const RangeObject*>(&value.object()) : nullptr;
}

bool EqualCharged(const Value& a, const Value& b, Budget& budget) {
  budget.Charge(std::min(a.extent().weight, b.extent().weight));
  if (a.Is(Kind::kObject) && b.Is(Kind::kObject)) {
    const RangeObject *left = AsRange(a), *right = AsRange(b);
    if (left && right) return *left == *right;
    const auto* view = dynamic_cast<const DictView*>(&a.object());
    if (view && dynamic_cast<const DictView*>(&b.object()) && a.address() != b.address()) {
      throw Fault("compares two views of dicts, which is not supported");
    }
  }
  return Equal(a, b);
}

// -1, 0, 1; 2 where one is not a number.
int OrderOfNumbers(const Value& a, const Value& b) {
  const auto order = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2; };
  if (a.IsInteger() && b.IsInteger()) return order(a.integer(), b.integer());
  const auto wide = [](const Value& v) {
    return v.IsInteger() ? static_cast<long double>(v.integer())
                         : static_cast<long double>(v.number());
  };
  return order(wide(a), wide(b));
}

bool Ordered(Comparison op, int order) {
  switch (op) {
    case Comparison::kLt:
      return order == -1;
    case Comparison::kLe:
      return order == -1 || order == 0;
    case Comparison::kGt:
      return order == 1;
    default:
      return order == 1 || order == 0;
  }
}

bool CompareOrder(Comparison op, const Value& a, const Value& b, Budget& budget) {
  for (const Value* value : {&a, &b}) {
    if (value->IsUndefined()) RefuseUndefined(*value);
  }
  if (a.IsNumber() && b.IsNumber()) return Ordered(op, OrderOfNumbers(a, b));
  if (a.IsText() && b.IsText()) {
    // The order of UTF-8's bytes is that of code points.
    budget.Charge(std::min(a.extent().weight, b.extent().weight));
    const int order = a.text().compare(b.text());
    return Ordered(op, order < 0 ? -1 : order > 0 ? 1 : 0);
  }
  if (a.IsSequence() && a.kind() == b.kind()) {
    const Values &x = a.items(), &y = b.items();
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (Same(x[i], y[i]) || EqualCharged(x[i], y[i], budget)) continue;
      return CompareOrder(op, x[i], y[i], budget);
    }
    return Ordered(op, x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0);
  }
  throw Fault(std::string("has no `") + kComparisons[static_cast<size_t>(op)] + "` for " +
              TypeName(a) + " and " + TypeName(b));
}

class OfItems : public Cursor {
 public:
  OfItems(Value whole, Budget& budget) : whole_(std::move(whole)), budget_(budget) {}
  bool Next(Value& item) override {
    if (whole_.IsText()) return NextCharacter(item);
    const size_t size = whole_.IsDict() ? whole_.dict().size() : whole_.items().size();
    if (at_ >= size) return false;
    budget_.Charge();
    item = whole_.IsDict() ? whole_.dict().entries()[at_].first : whole_.items()[at_];
    ++at_;
    return true;
  }

 private:
  bool NextCharacter(Value& item) {
    const std::string_view rest = std::string_view(whole_.text()).substr(at_);
    if (rest.empty()) return false;
    budget_.Charge();
    const size_t bytes = FirstCodePoint(rest).bytes;
    item = Value::Text(rest.substr(0, bytes));
    at_ += bytes;
    return true;
  }

  const Value whole_;
  Budget& budget_;
  size_t at_ = 0;
};

class Empty : public Cursor {
 public:
  bool Next(Value& /*item*/) override { return false; }
};

// slice.indices() of Python: how many elements there are from `start` on.
struct Indices {
  int64_t start, stop, step, count;
};
Indices IndicesOf(int64_t length, const Value& start, const Value& stop, const Value& step) {
  for (const Value* value : {&start, &stop, &step}) {
    if (!value->IsNone() && !value->IsInteger()) {
      throw Fault(std::string("slices by a ") + TypeName(*value) + ", not by an integer");
    }
  }
  const int64_t by = step.IsNone() ? 1 : step.integer();
  if (by == 0) throw Fault("slices in steps of zero");
  const int64_t low = by < 0 ? -1 : 0, high = by < 0 ? length - 1 : length;
  const auto clip = [&](const Value& value, int64_t standard) {
    if (value.IsNone()) return standard;
    int64_t at = value.integer();
    if (at < 0) at = at < -length ? low : std::max(at + length, low);
    return std::min(at, high);
  };
  const int64_t first = clip(start, by < 0 ? high : low), last = clip(stop, by < 0 ? low : high);
  int64_t count = 0;
  if (by > 0 && first < last) count = (last - first - 1) / by + 1;
  if (by < 0 && last < first) {
    count = static_cast<int64_t>((first - last - 1) / -static_cast<__int128>(by)) + 1;
  }
  return {first, last, by, count};
}

Value SliceOfText(const Value& whole, const Indices& slice, Budget& budget) {
  const std::string& text = whole.text();
  budget.Text(text.size());
  if (slice.count == 0) return Value::Text(std::string(), whole.safe());
  if (slice.step == 1) {
    const size_t begin = ByteOffset(text, static_cast<size_t>(slice.start));
    const std::string_view rest = std::string_view(text).substr(begin);
    return Value::Text(rest.substr(0, ByteOffset(rest, static_cast<size_t>(slice.count))),
                       whole.safe());
  }
  const std::vector<uint32_t> all = Decode(text);
  std::string out;
  for (int64_t i = 0; i < slice.count; ++i) {
    AppendUtf8(all[static_cast<size_t>(slice.start + i * slice.step)], out);
  }
  return Value::Text(std::move(out), whole.safe());
}

}  // namespace

bool Compare(Comparison op, const Value& a, const Value& b, Budget& budget) {
  switch (op) {
    case Comparison::kEq:
      return EqualCharged(a, b, budget);
    case Comparison::kNe:
      return !EqualCharged(a, b, budget);
    case Comparison::kIn:
      return Contains(b, a, budget);
    case Comparison::kNotIn:
      return !Contains(b, a, budget);
    default:
      return CompareOrder(op, a, b, budget);
  }
}

bool Contains(const Value& whole, const Value& part, Budget& budget) {
  budget.Charge();
  if (whole.IsText()) {
    if (!part.IsText()) {
      throw Fault(std::string("looks for a ") + TypeName(part) + " in a str, want a str");
    }
    budget.Charge(whole.extent().weight);
    return whole.text().find(part.text()) != std::string::npos;
  }
  if (whole.IsDict()) {
    budget.Charge(part.extent().weight);
    return whole.dict().Find(part) != nullptr;
  }
  if (const RangeObject* range = AsRange(whole); range && part.IsInteger()) {
    return range->Holds(part.integer());
  }
  const std::unique_ptr<Cursor> items = Iterate(whole, budget);
  for (Value item; items->Next(item);) {
    if (Same(item, part) || EqualCharged(item, part, budget)) return true;
  }
  return false;
}

bool Truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0;
    case Kind::kText:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return value.dict().size() > 0;
    case Kind::kObject:
      return value.object().Truth();
    default:
      return false;
  }
}

bool HasLength(const Value& value) {
  return value.IsUndefined() || value.IsText() || value.IsSequence() || value.IsDict() ||
         (value.Is(Kind::kObject) && value.object().Length() >= 0);
}

int64_t Length(const Value& value) {
  if (!HasLength(value)) throw Fault(std::string("a ") + TypeName(value) + " has no length");
  if (value.IsUndefined()) return 0;
  if (value.IsText()) return static_cast<int64_t>(CodePoints(value.text()));
  if (value.IsSequence()) return static_cast<int64_t>(value.items().size());
  return value.IsDict() ? static_cast<int64_t>(value.dict().size()) : value.object().Length();
}

std::unique_ptr<Cursor> Iterate(const Value& value, Budget& budget) {
  if (value.IsUndefined()) return std::make_unique<Empty>();
  if (value.IsText() || value.IsSequence() || value.IsDict()) {
    return std::make_unique<OfItems>(value, budget);
  }
  if (value.Is(Kind::kObject)) {
    if (auto cursor = value.object().Iterate(value, budget)) return cursor;
  }
  throw Fault(std::string("a ") + TypeName(value) + " cannot be iterated over");
}

bool CanIterate(const Value& value) {
  if (!value.Is(Kind::kObject)) {
    return value.IsUndefined() || value.IsText() || value.IsSequence() || value.IsDict();
  }
  Budget none(0, 0);
  return value.object().Iterate(value, none) != nullptr;
}

Values ToList(const Value& value, Budget& budget) {
  Values items;
  const std::unique_ptr<Cursor> cursor = Iterate(value, budget);
  for (Value item; cursor->Next(item);) {
    budget.Charge();
    items.push_back(std::move(item));
  }
  return items;
}

void RefuseUndefined(const Value& value) {
  throw Fault(value.Is(Kind::kMissing) ? "an undefined variable" : value.why());
}

std::optional<Value> Subscript(const Value& whole, const Value& key, Budget& budget) {
  if (whole.IsUndefined()) RefuseUndefined(whole);
  if (whole.IsDict()) {
    if (key.Is(Kind::kList) || key.IsDict()) return std::nullopt;
    budget.Charge(key.extent().weight);
    const Value* found = whole.dict().Find(key);
    return found ? std::optional(*found) : std::nullopt;
  }
  const RangeObject* range = AsRange(whole);
  if (!key.IsInteger() || !(whole.IsText() || whole.IsSequence() || range)) return std::nullopt;
  const int64_t length = Length(whole);
  const int64_t at = key.integer() < 0 ? key.integer() + length : key.integer();
  if (at < 0 || at >= length) return std::nullopt;
  if (range) return Value::Int(range->At(at));
  if (whole.IsSequence()) return whole.items()[static_cast<size_t>(at)];
  budget.Charge(whole.extent().weight);
  const std::string_view rest =
      std::string_view(whole.text()).substr(ByteOffset(whole.text(), static_cast<size_t>(at)));
  return Value::Text(rest.substr(0, FirstCodePoint(rest).bytes), whole.safe());
}

Value Slice(const Value& whole, const Value& start, const Value& stop, const Value& step,
            Budget& budget) {
  if (whole.IsUndefined()) RefuseUndefined(whole);
  const RangeObject* range = AsRange(whole);
  if (!whole.IsText() && !whole.IsSequence() && !range) {
    throw Fault(std::string("a ") + TypeName(whole) + " has no slices");
  }
  const Indices slice = IndicesOf(Length(whole), start, stop, step);
  if (whole.IsText()) return SliceOfText(whole, slice, budget);
  budget.Charge(slice.count);
  if (range) {
    return Value::Of(std::shared_ptr<Object>(std::make_shared<RangeObject>(
        range->At(slice.start), range->At(slice.stop), range->step() * slice.step, slice.count)));
  }
  Values items;
  items.reserve(static_cast<size_t>(slice.count));
  for (int64_t i = 0; i < slice.count; ++i) {
    items.push_back(whole.items()[static_cast<size_t>(slice.start + i * slice.step)]);
  }
  return whole.Is(Kind::kList) ? Value::List(std::move(items)) : Value::Tuple(std::move(items));
}

Value Range(int64_t start, int64_t stop, int64_t step) {
  if (step == 0) throw Fault("range() in steps of zero");
  const __int128 span =
      step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 by = step > 0 ? step : -static_cast<__int128>(step);
  const __int128 count = span <= 0 ? 0 : (span - 1) / by + 1;
  if (count > kMostRange) {
    throw Fault("range() of more than " + std::to_string(kMostRange) + " numbers");
  }
  return Value::Of(std::shared_ptr<Object>(
      std::make_shared<RangeObject>(start, stop, step, static_cast<int64_t>(count))));
}

}  // namespace fsdp::jinja
