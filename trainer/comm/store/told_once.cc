#include "trainer/comm/store/told_once.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <vector>

namespace fsdp {
namespace {

constexpr double kPatience_s = 5;

std::string WithoutNumbers(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (!std::isdigit(static_cast<unsigned char>(c)) && c != '.') out += c;
  }
  return out.substr(0, Store::kMaxValue / 2);
}

}  // namespace

bool ClaimReport(Store& store, const std::string& name, int rank, int size, const Error& error) {
  const bool told = dynamic_cast<const ReportedElsewhere*>(&error) != nullptr;
  const std::string mine =
      told ? ""
           : std::to_string(static_cast<int>(error.code())) + " " + WithoutNumbers(error.what());
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(name + "/told/" + std::to_string(r));
  try {
    store.Set(keys[static_cast<size_t>(rank)], mine);
    const auto said = store.Fetch(keys, std::min(kPatience_s, store.timeout_s()));
    const bool all = std::all_of(said.begin(), said.end(), [](const auto& s) { return !!s; });
    // Or the first to go would be heard of as a failure by those that have yet to compare.
    if (all) BeforeAllThrow(store, name + "/told", rank, size);
    return !told && std::find(said.begin(), said.end(), mine) - said.begin() == rank;
  } catch (const CommError&) {  // Some other rank has ended the job: both are told.
    return true;
  }
}

}  // namespace fsdp
