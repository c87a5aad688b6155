#include "trainer/data/jinja/objects.h"

#include <algorithm>

#include "trainer/data/jinja/operators.h"

namespace fsdp::jinja {
namespace {

// Elements by position, of what does not change.
class Counted : public Cursor {
 public:
  Counted(size_t size, std::function<Value(size_t)> at) : size_(size), at_(std::move(at)) {}
  bool Next(Value& item) override {
    if (next_ >= size_) return false;
    item = at_(next_++);
    return true;
  }

 private:
  const size_t size_;
  size_t next_ = 0;
  const std::function<Value(size_t)> at_;
};

class OfGenerator : public Cursor {
 public:
  explicit OfGenerator(std::shared_ptr<Object> generator) : generator_(std::move(generator)) {}
  bool Next(Value& item) override { return static_cast<Generator&>(*generator_).Next(item); }

 private:
  const std::shared_ptr<Object> generator_;
};

}  // namespace

std::string RangeObject::Repr(Budget& /*budget*/) const {
  std::string text = "range(" + std::to_string(start_) + ", " + std::to_string(stop_);
  if (step_ != 1) text += ", " + std::to_string(step_);
  return text + ")";
}

bool RangeObject::Holds(int64_t number) const {
  const __int128 distance = static_cast<__int128>(number) - start_;
  return distance % step_ == 0 && distance / step_ >= 0 && distance / step_ < length_;
}

std::unique_ptr<Cursor> RangeObject::Iterate(const Value& self, Budget& /*budget*/) {
  return std::make_unique<Counted>(static_cast<size_t>(length_),
                                   [self, this](size_t i) {  // `self` keeps this.
                                     return Value::Int(At(static_cast<int64_t>(i)));
                                   });
}

const char* DictView::type() const {
  constexpr const char* kNames[] = {"dict_keys", "dict_values", "dict_items"};
  return kNames[static_cast<size_t>(what_)];
}

int64_t DictView::Length() const { return static_cast<int64_t>(dict_.dict().size()); }

Value DictView::At(size_t i) const {
  const auto& [key, value] = dict_.dict().entries()[i];
  if (what_ == What::kKeys) return key;
  return what_ == What::kValues ? value : Value::Tuple({key, value});
}

std::string DictView::Repr(Budget& budget) const {
  Values items;
  for (size_t i = 0; i < dict_.dict().size(); ++i) items.push_back(At(i));
  return std::string(type()) + "(" + jinja::Repr(Value::List(std::move(items)), budget) + ")";
}

std::unique_ptr<Cursor> DictView::Iterate(const Value& self, Budget& /*budget*/) {
  return std::make_unique<Counted>(dict_.dict().size(), [self, this](size_t i) { return At(i); });
}

std::unique_ptr<Cursor> Generator::Iterate(const Value& self, Budget& /*budget*/) {
  return std::make_unique<OfGenerator>(self.shared_object());
}

bool Generator::Next(Value& item) {
  if (!ended_) ended_ = !next_(item);
  return !ended_;
}

Value MakeGenerator(Generator::NextItem next, const Values& holds, const char* type) {
  return Value::Of(
      std::shared_ptr<Object>(std::make_shared<Generator>(std::move(next), Around(holds), type)));
}

Value Function::Call(Machine& machine, Arguments& arguments) {
  return body_(machine, self_, arguments);
}

Parameters::Parameters(const char* name, Arguments& arguments,
                       std::initializer_list<const char*> names, size_t required)
    : name_(name), values_(names.size()) {
  if (arguments.positional.size() > names.size()) {
    throw Fault(std::string("`") + name + "` takes at most " + std::to_string(names.size()) +
                " arguments, got " + std::to_string(arguments.positional.size()));
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), values_.begin());
  for (const auto& [key, value] : arguments.named) {
    const auto* const found = std::find(names.begin(), names.end(), key);
    if (found == names.end() || Has(static_cast<size_t>(found - names.begin()))) {
      throw Fault(std::string("`") + name + "` has no argument `" + key +
                  (found == names.end() ? "`" : "` left, it is given twice"));
    }
    values_[static_cast<size_t>(found - names.begin())] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!Has(i)) {
      throw Fault(std::string("`") + name + "` lacks its argument `" + names.begin()[i] + "`");
    }
  }
}

int64_t Parameters::Integer(size_t i, int64_t standard) const {
  if (!Has(i)) return standard;
  if (values_[i].IsInteger()) return values_[i].integer();
  throw Fault(std::string("`") + name_ + "` wants an integer, got " + TypeName(values_[i]));
}

bool Parameters::Flag(size_t i, bool standard) const {
  return Has(i) ? Truth(values_[i]) : standard;
}

const std::string& Parameters::Text(size_t i) const {
  if (values_[i].IsText()) return values_[i].text();
  throw Fault(std::string("`") + name_ + "` wants a text, got " + TypeName(values_[i]));
}

}  // namespace fsdp::jinja
