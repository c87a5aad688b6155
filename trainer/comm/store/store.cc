#include "trainer/comm/store/store.h"

#include <map>
#include <sstream>
#include <stdexcept>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

std::string Join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

std::string Seconds(double s) {
  std::ostringstream out;
  out << s << " s";
  return out.str();
}

std::string RankKey(const std::string& name, int rank) { return name + "/" + std::to_string(rank); }

// Length-prefixed, so that no label or value can look like two.
std::string Encode(const Labels& labels) {
  std::ostringstream out;
  for (const auto& [label, value] : labels) {
    out << label.size() << " " << value.size() << " " << label << value;
  }
  return out.str();
}

Labels Decode(const std::string& text) {
  Labels labels;
  std::istringstream in(text);
  size_t label_size = 0, value_size = 0;
  while (in >> label_size >> value_size) {
    in.get();
    std::string label(label_size, '\0'), value(value_size, '\0');
    in.read(label.data(), static_cast<std::streamsize>(label_size));
    in.read(value.data(), static_cast<std::streamsize>(value_size));
    labels.emplace_back(std::move(label), std::move(value));
  }
  return labels;
}

// The first difference as ("label", value of a, value of b); nullopt values are absent labels.
struct Difference {
  std::string label;
  std::optional<std::string> a, b;
};

std::optional<Difference> FirstDifference(const Labels& a, const Labels& b) {
  const std::map<std::string, std::string> in_b(b.begin(), b.end());
  for (const auto& [label, value] : a) {
    const auto it = in_b.find(label);
    if (it == in_b.end()) return Difference{label, value, std::nullopt};
    if (it->second != value) return Difference{label, value, it->second};
  }
  const std::map<std::string, std::string> in_a(a.begin(), a.end());
  for (const auto& [label, value] : b) {
    if (in_a.count(label) == 0) return Difference{label, std::nullopt, value};
  }
  return std::nullopt;
}

std::string Quote(const std::optional<std::string>& value) {
  return value ? "\"" + *value + "\"" : "none";
}

}  // namespace

void Store::CheckSizes(const std::string& key, const std::string& value) {
  if (key.empty() || key.size() > kMaxKey || value.size() > kMaxValue) {
    throw std::invalid_argument(
        "[Store] key \"" + key.substr(0, 64) + "\" of " + std::to_string(key.size()) +
        " bytes, value of " + std::to_string(value.size()) + ", want 1 to " +
        std::to_string(kMaxKey) + " and up to " + std::to_string(kMaxValue));
  }
}

std::string Store::Get(const std::string& key) {
  const std::optional<std::string> value = Fetch({key}, timeout_s_)[0];
  if (!value) {
    throw CommError("[store] nobody has set \"" + key + "\" within " + Seconds(timeout_s_));
  }
  return *value;
}

void Store::Wait(const std::vector<std::string>& keys) {
  const auto values = Fetch(keys, timeout_s_);
  std::vector<std::string> missing;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!values[i]) missing.push_back("\"" + keys[i] + "\"");
  }
  if (!missing.empty()) {
    throw CommError("[store] nobody has set " + Join(missing) + " within " + Seconds(timeout_s_));
  }
}

void Barrier(Store& store, const std::string& name, int rank, int size) {
  Exchange(store, "barrier/" + name, rank, size, "");
}

std::vector<std::string> Exchange(Store& store, const std::string& name, int rank, int size,
                                  const std::string& value) {
  if (rank < 0 || rank >= size) {
    throw std::invalid_argument("[Exchange] rank " + std::to_string(rank) + " of " +
                                std::to_string(size) + ", want 0 <= rank < size");
  }
  return Exchange(store, name, RankGroup::World(rank, size), value);
}

std::vector<std::string> Exchange(Store& store, const std::string& name, const RankGroup& group,
                                  const std::string& value) {
  const int rank = group.NameOf(group.rank());
  if (store.Add(RankKey(name, rank) + "/uses", 1) != 1) {
    throw std::invalid_argument("[Exchange] \"" + name + "\" has been used before by rank " +
                                std::to_string(rank));
  }
  store.Set(RankKey(name, rank), value);
  std::vector<std::string> keys;
  for (const int r : group.ranks()) keys.push_back(RankKey(name, r));
  auto values = store.Fetch(keys, store.timeout_s());
  std::vector<std::string> out, missing;
  for (int r = 0; r < group.size(); ++r) {
    if (values[r]) {
      out.push_back(std::move(*values[r]));
    } else {
      missing.push_back("rank " + std::to_string(group.NameOf(r)));
    }
  }
  if (!missing.empty()) {
    throw CommError("[store] " + name + ": " + Join(missing) + " did not come within " +
                    Seconds(store.timeout_s()));
  }
  return out;
}

void BeforeAllThrow(Store& store, const std::string& name, int rank, int size) {
  try {
    Barrier(store, name + "/failed", rank, size);
  } catch (const CommError&) {
  }
}

void Agree(Store& store, const std::string& name, int rank, int size, const Labels& labels) {
  const auto all = Exchange(store, "agree/" + name, rank, size, Encode(labels));
  const Labels first = Decode(all[0]);
  for (int r = 1; r < size; ++r) {
    const auto difference = FirstDifference(first, Decode(all[r]));
    if (!difference) continue;
    BeforeAllThrow(store, "agree/" + name, rank, size);
    throw ConfigError("ranks disagree at the " + name + ": " + difference->label + " is " +
                      Quote(difference->b) + " on rank " + std::to_string(r) + ", " +
                      Quote(difference->a) + " on rank 0");
  }
}

}  // namespace fsdp
