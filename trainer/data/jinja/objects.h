// Python's objects that are no plain values: ranges, views of a dict, generators, functions.
// Tests: tests/trainer/data/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_JINJA_OBJECTS_H_
#define FSDP_TRAIN_TRAINER_DATA_JINJA_OBJECTS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "trainer/data/jinja/value.h"

namespace fsdp::jinja {

class RangeObject : public Object {
 public:
  RangeObject(int64_t start, int64_t stop, int64_t step, int64_t length)
      : start_(start), stop_(stop), step_(step), length_(length) {}
  const char* type() const override { return "range"; }
  std::string Repr(Budget& budget) const override;
  bool Truth() const override { return length_ > 0; }
  int64_t Length() const override { return length_; }
  std::unique_ptr<Cursor> Iterate(const Value& self, Budget& budget) override;
  int64_t At(int64_t index) const {
    return static_cast<int64_t>(start_ + static_cast<__int128>(index) * step_);
  }
  int64_t step() const { return step_; }
  bool Holds(int64_t number) const;
  bool operator==(const RangeObject& other) const {
    return length_ == other.length_ && (length_ == 0 || start_ == other.start_) &&
           (length_ < 2 || step_ == other.step_);
  }

 private:
  const int64_t start_, stop_, step_, length_;
};

class DictView : public Object {
 public:
  enum class What : uint8_t { kKeys, kValues, kItems };
  DictView(Value dict, What what) : dict_(std::move(dict)), what_(what) {}
  const char* type() const override;
  std::string Repr(Budget& budget) const override;
  bool Truth() const override { return Length() > 0; }
  int64_t Length() const override;
  std::unique_ptr<Cursor> Iterate(const Value& self, Budget& budget) override;
  Extent extent() const override { return dict_.extent(); }
  const Value& dict() const { return dict_; }
  What what() const { return what_; }
  Value At(size_t i) const;

 private:
  const Value dict_;
  const What what_;
};

// Can be run through once, as far as somebody asks: a lazy filter.
class Generator : public Object {
 public:
  using NextItem = std::function<bool(Value&)>;  // False at the end.
  // `source`: of what `next` holds.
  Generator(NextItem next, Extent source, const char* type = "generator")
      : next_(std::move(next)), extent_(source), type_(type) {}
  const char* type() const override { return type_; }
  std::unique_ptr<Cursor> Iterate(const Value& self, Budget& budget) override;
  Extent extent() const override { return extent_; }
  bool Next(Value& item);

 private:
  NextItem next_;
  const Extent extent_;
  const char* const type_;
  bool ended_ = false;
};
// `holds`: all values that `next` has.
Value MakeGenerator(Generator::NextItem next, const Values& holds, const char* type = "generator");

// A function of the program's, or a method with the value that it belongs to.
class Function : public Object {
 public:
  using Body = Value (*)(Machine& machine, const Value& self, Arguments& arguments);
  Function(std::string name, Value self, Body body)
      : name_(std::move(name)), self_(std::move(self)), body_(body) {}
  const char* type() const override { return "function"; }
  bool callable() const override { return true; }
  Value Call(Machine& machine, Arguments& arguments) override;
  Extent extent() const override { return self_.extent(); }

 private:
  const std::string name_;
  const Value self_;
  const Body body_;
};

// Takes the arguments of a call by name, as Python does. Throws Fault with `name` for too many,
// unknown ones, those given twice, and for one that is missing without a default.
class Parameters {
 public:
  Parameters(const char* name, Arguments& arguments, std::initializer_list<const char*> names,
             size_t required = 0);
  bool Has(size_t i) const { return !values_[i].Is(Value::Kind::kMissing); }
  const Value& operator[](size_t i) const { return values_[i]; }
  // Throw Fault: of another type.
  int64_t Integer(size_t i, int64_t standard) const;
  bool Flag(size_t i, bool standard) const;
  const std::string& Text(size_t i) const;

 private:
  const char* const name_;
  Values values_;
};

}  // namespace fsdp::jinja

#endif  // FSDP_TRAIN_TRAINER_DATA_JINJA_OBJECTS_H_
