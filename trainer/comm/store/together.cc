#include "trainer/comm/store/together.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <optional>
#include <vector>

#include "trainer/core/errors.h"

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

std::vector<std::string> Together(Store& store, const std::string& name, int rank, int size,
                                  const std::function<std::string()>& work) {
  constexpr size_t kMaxReason = 4096;
  std::string outcome;  // "+" and the result, or "-", the exit code, a blank and the reason.
  const auto failed = [&](ExitCode code, const char* reason) {
    outcome = "-" + std::to_string(static_cast<int>(code)) + " " +
              std::string(reason).substr(0, kMaxReason);
  };
  try {
    outcome = "+" + work();
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    failed(error.code(), error.what());
  } catch (const std::exception& error) {
    failed(ExitCode::kRuntime, error.what());
  }
  std::vector<std::string> all = Exchange(store, name, rank, size, outcome);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].starts_with('-')) {
      BeforeAllThrow(store, name, rank, size);
      const size_t blank = all[r].find(' ');
      const auto code = static_cast<ExitCode>(std::stoi(all[r].substr(1, blank - 1)));
      const std::string reason = "rank " + std::to_string(r) + ": " + all[r].substr(blank + 1);
      if (static_cast<int>(r) != rank) throw ReportedElsewhere(Error(code, reason));
      if (code == ExitCode::kCheckpoint) throw CheckpointError(reason);
      throw Error(code, reason);
    }
    all[r].erase(0, 1);
  }
  return all;
}

}  // namespace fsdp
