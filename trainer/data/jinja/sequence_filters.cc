#include "trainer/data/jinja/sequence_filters.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "trainer/data/jinja/machine.h"
#include "trainer/data/jinja/objects.h"
#include "trainer/data/jinja/operators.h"
#include "trainer/data/jinja/python_text.h"

namespace fsdp::jinja {
namespace {

using Kind = Value::Kind;

// An attribute's path: "a.b.0", or an element's number. None: the value itself.
class Getter {
 public:
  Getter(Machine& machine, const Value& attribute, bool ignore_case = false)
      : machine_(machine), ignore_case_(ignore_case) {
    if (attribute.IsNone() || attribute.Is(Kind::kMissing)) return;
    if (!attribute.IsText()) {
      parts_.push_back(attribute);
      return;
    }
    for (const std::string_view part : SplitAt(attribute.text(), ".", -1)) {
      const std::vector<uint32_t> all = Decode(part);
      const bool number = !all.empty() && std::all_of(all.begin(), all.end(), IsDigit);
      if (number && part.size() > 9) throw Fault("an attribute with too large a number");
      parts_.push_back(number && IsAscii(part) ? Value::Int(std::stoll(std::string(part)))
                                               : Value::Text(part));
    }
  }

  // `standard` in the place of what is undefined on the way, unless it is None.
  Value operator()(Value item, const Value& standard = Value::None()) const {
    for (const Value& part : parts_) {
      item = machine_.Element(item, part);
      if (item.IsUndefined() && !standard.IsNone()) item = standard;
    }
    if (!ignore_case_ || !item.IsText()) return item;
    machine_.budget().Text(item.text().size() * 2);
    return Value::Text(Lower(item.text()), item.safe());
  }

 private:
  Machine& machine_;
  const bool ignore_case_;
  Values parts_;
};

Values Holds(const Value& value, const Arguments& arguments) {
  Values all = arguments.positional;
  all.push_back(value);
  for (const auto& [name, item] : arguments.named) all.push_back(item);
  return all;
}

// A generator over the elements of a value: `step` takes one and says whether it makes one.
using Step = std::function<bool(Value& item)>;
Value Lazily(Machine& machine, const Value& value, const Values& holds,
             std::function<Step()> begin) {
  struct State {
    bool begun = false;
    std::unique_ptr<Cursor> cursor;
    Step step;
  };
  const auto state = std::make_shared<State>();
  return MakeGenerator(
      [&machine, value, state, begin = std::move(begin)](Value& item) {
        if (!state->begun) {
          state->begun = true;
          if (Truth(value)) {
            state->step = begin();
            state->cursor = Iterate(value, machine.budget());
          }
        }
        while (state->cursor && state->cursor->Next(item)) {
          machine.budget().Charge();
          if (state->step(item)) return true;
        }
        return false;
      },
      holds);
}

Value Chosen(Machine& machine, const Value& value, Arguments& given, bool by_attribute, bool want) {
  const auto shared = std::make_shared<Arguments>(given);
  return Lazily(machine, value, Holds(value, given), [&machine, shared, by_attribute, want]() {
    Values& positional = shared->positional;
    Value attribute = Value::None(), test;
    if (by_attribute) {
      if (positional.empty()) throw Fault("`selectattr` lacks the name of an attribute");
      attribute = positional[0];
      positional.erase(positional.begin());
    }
    if (!positional.empty()) {
      test = positional[0];
      positional.erase(positional.begin());
    }
    const Getter get(machine, attribute);
    return [&machine, shared, want, test, get](Value& item) {
      const Value looked_at = get(item);
      if (test.Is(Kind::kMissing)) return Truth(looked_at) == want;
      Arguments arguments = *shared;
      return machine.ApplyTest(test, looked_at, arguments) == want;
    };
  });
}

bool Less(const Value& a, const Value& b, Budget& budget) {
  budget.Charge();
  return Compare(Comparison::kLt, a, b, budget);
}

// Items in the order of their keys; equal ones stay as they are.
Values Sorted(const Values& items, const Values& keys, bool reverse, Budget& budget) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? Less(keys[b], keys[a], budget) : Less(keys[a], keys[b], budget);
  });
  Values sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Value Extreme(const char* name, Comparison better, Machine& machine, const Value& value,
              Arguments& arguments) {
  const Parameters given(name, arguments, {"case_sensitive", "attribute"});
  const Getter get(machine, given[1], !given.Flag(0, false));
  const Values items = ToList(value, machine.budget());
  if (items.empty()) return Value::Undefined(std::string("`") + name + "` of nothing");
  size_t best = 0;
  Value best_key = get(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = get(items[i]);
    if (!Compare(better, key, best_key, machine.budget())) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

bool IsReversible(const Value& value) {
  if (value.Is(Kind::kObject)) {
    return dynamic_cast<const RangeObject*>(&value.object()) ||
           dynamic_cast<const DictView*>(&value.object());
  }
  return value.IsUndefined() || value.IsText() || value.IsSequence() || value.IsDict();
}

}  // namespace

Value MapFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const auto shared = std::make_shared<Arguments>(arguments);
  return Lazily(machine, value, Holds(value, arguments), [&machine, shared]() -> Step {
    const auto named = std::find_if(shared->named.begin(), shared->named.end(),
                                    [](const auto& one) { return one.first == "attribute"; });
    if (shared->positional.empty() && named != shared->named.end()) {
      const Parameters given("map", *shared, {"attribute", "default"});
      const Value standard = given.Has(1) ? given[1] : Value::None();
      return [standard, get = Getter(machine, given[0])](Value& item) {
        item = get(item, standard);
        return true;
      };
    }
    if (shared->positional.empty()) throw Fault("`map` lacks a filter or an attribute");
    const Value name = shared->positional[0];
    shared->positional.erase(shared->positional.begin());
    return [&machine, shared, name](Value& item) {
      Arguments copy = *shared;
      item = machine.ApplyFilter(name, item, copy);
      return true;
    };
  });
}

Value SelectFilter(Machine& machine, const Value& value, Arguments& arguments) {
  return Chosen(machine, value, arguments, false, true);
}
Value RejectFilter(Machine& machine, const Value& value, Arguments& arguments) {
  return Chosen(machine, value, arguments, false, false);
}
Value SelectattrFilter(Machine& machine, const Value& value, Arguments& arguments) {
  return Chosen(machine, value, arguments, true, true);
}
Value RejectattrFilter(Machine& machine, const Value& value, Arguments& arguments) {
  return Chosen(machine, value, arguments, true, false);
}

Value ItemsFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("items", arguments, {});
  return MakeGenerator(
      [&machine, value, at = size_t{0}](Value& item) mutable {
        if (value.IsUndefined()) return false;
        if (!value.IsDict())
          throw Fault(std::string("`items` wants a dict, got ") + TypeName(value));
        if (at >= value.dict().size()) return false;
        machine.budget().Charge();
        const auto& [key, element] = value.dict().entries()[at++];
        item = Value::Tuple({key, element});
        return true;
      },
      {value});
}

Value UniqueFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("unique", arguments, {"case_sensitive", "attribute"});
  const Getter get(machine, given[1], !given.Flag(0, false));
  const auto cursor = std::make_shared<std::unique_ptr<Cursor>>();
  const auto seen = std::make_shared<Dict>();
  return MakeGenerator(
      [&machine, value, get, cursor, seen](Value& item) {
        if (!*cursor) *cursor = Iterate(value, machine.budget());
        while ((*cursor)->Next(item)) {
          const Value key = get(item);
          machine.budget().Charge(key.extent().weight);
          if (seen->Find(key)) continue;
          seen->Set(key, Value::None());
          return true;
        }
        return false;
      },
      {value});
}

Value BatchFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("batch", arguments, {"linecount", "fill_with"}, 1);
  if (!given[0].IsNumber()) throw Fault("`batch` wants a number");
  const double count = given[0].number();
  const Value fill = given.Has(1) ? given[1] : Value::None();
  const auto cursor = std::make_shared<std::unique_ptr<Cursor>>();
  // The element behind a full batch begins the next one; none: there is no more.
  const auto next = std::make_shared<std::optional<Value>>();
  return MakeGenerator(
      [&machine, value, count, fill, cursor, next](Value& item) {
        if (!*cursor) {
          *cursor = Iterate(value, machine.budget());
          Value first;
          if (!(*cursor)->Next(first)) return false;
          *next = std::move(first);
          // A batch of none is never full, but where it begins: jinja2 makes an empty one first.
          if (count == 0) {
            item = Value::List({});
            return true;
          }
        }
        if (!*next) return false;
        Values batch = {*std::exchange(*next, std::nullopt)};
        for (Value more; (*cursor)->Next(more);) {
          machine.budget().Charge();
          if (static_cast<double>(batch.size()) == count) {
            *next = std::move(more);
            break;
          }
          batch.push_back(std::move(more));
        }
        if (!*next && !fill.IsNone() && static_cast<double>(batch.size()) < count) {
          if (!std::isfinite(count)) throw Fault("`batch` wants an integer");
          machine.budget().Charge(static_cast<int64_t>(std::min(count, 1e15)));
          batch.resize(static_cast<size_t>(count), fill);
        }
        item = Value::List(std::move(batch));
        return true;
      },
      {value, fill});
}

Value ListFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("list", arguments, {});
  return Value::List(ToList(value, machine.budget()));
}

Value FirstFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("first", arguments, {});
  const std::unique_ptr<Cursor> cursor = Iterate(value, machine.budget());
  Value item;
  return cursor->Next(item) ? item : Value::Undefined("`first` of nothing");
}

Value LastFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("last", arguments, {});
  if (!IsReversible(value)) throw Fault(std::string("`last` of a ") + TypeName(value));
  const Values items = value.IsSequence() ? value.items() : ToList(value, machine.budget());
  return items.empty() ? Value::Undefined("`last` of nothing") : items.back();
}

Value ReverseFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("reverse", arguments, {});
  if (value.IsText()) {
    return Slice(value, Value::None(), Value::None(), Value::Int(-1), machine.budget());
  }
  Values items = ToList(value, machine.budget());
  std::reverse(items.begin(), items.end());
  if (!IsReversible(value)) return Value::List(std::move(items));
  Values holds = items;
  return MakeGenerator(
      [items = std::move(items), at = size_t{0}](Value& item) mutable {
        if (at >= items.size()) return false;
        item = items[at++];
        return true;
      },
      holds, "reversed iterator");
}

Value JoinFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("join", arguments, {"d", "attribute"});
  Budget& budget = machine.budget();
  const std::string by = given.Has(0) ? Str(given[0], budget) : "";
  const Getter get(machine, given[1]);
  const std::unique_ptr<Cursor> cursor = Iterate(value, budget);
  std::string text;
  bool first = true;
  for (Value item; cursor->Next(item);) {
    const std::string part = Str(get(item), budget);
    budget.CheckText(text.size() + by.size() + part.size());
    budget.Charge(1 + static_cast<int64_t>((by.size() + part.size()) / 32));
    if (!first) text += by;
    first = false;
    text += part;
  }
  return Value::Text(std::move(text));
}

Value SortFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  Budget& budget = machine.budget();
  std::vector<Getter> getters;
  const bool ignore_case = !given.Flag(1, false);
  if (given.Has(2) && given[2].IsText()) {
    for (const std::string_view part : SplitAt(given[2].text(), ",", -1)) {
      getters.emplace_back(machine, Value::Text(part), ignore_case);
    }
  } else {
    getters.emplace_back(machine, given[2], ignore_case);
  }
  const Values items = ToList(value, budget);
  Values keys;
  for (const Value& item : items) {
    Values key;
    for (const Getter& get : getters) key.push_back(get(item));
    keys.push_back(Value::List(std::move(key)));
  }
  return Value::List(Sorted(items, keys, given.Flag(0, false), budget));
}

Value DictsortFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (value.IsUndefined()) RefuseUndefined(value);
  if (!value.IsDict()) throw Fault(std::string("`dictsort` wants a dict, got ") + TypeName(value));
  const std::string by = given.Has(1) ? given.Text(1) : "key";
  if (by != "key" && by != "value") throw Fault("`dictsort` sorts by key or by value");
  const Getter get(machine, Value::None(), !given.Flag(0, false));
  Values items, keys;
  for (const auto& [key, element] : value.dict().entries()) {
    machine.budget().Charge();
    items.push_back(Value::Tuple({key, element}));
    keys.push_back(get(by == "key" ? key : element));
  }
  return Value::List(Sorted(items, keys, given.Flag(2, false), machine.budget()));
}

Value SumFilter(Machine& machine, const Value& value, Arguments& arguments) {
  const Parameters given("sum", arguments, {"attribute", "start"});
  const Getter get(machine, given[0]);
  Value sum = given.Has(1) ? given[1] : Value::Int(0);
  if (sum.IsText()) throw Fault("`sum` of texts: `join` does that");
  const std::unique_ptr<Cursor> cursor = Iterate(value, machine.budget());
  for (Value item; cursor->Next(item);) {
    sum = Apply(Operator::kAdd, sum, get(item), machine.budget());
  }
  return sum;
}

Value MinFilter(Machine& machine, const Value& value, Arguments& arguments) {
  return Extreme("min", Comparison::kLt, machine, value, arguments);
}
Value MaxFilter(Machine& machine, const Value& value, Arguments& arguments) {
  return Extreme("max", Comparison::kGt, machine, value, arguments);
}

}  // namespace fsdp::jinja
