#include "trainer/comm/store/together.h"

#include <exception>

#include "trainer/comm/store/told_once.h"
#include "trainer/core/errors.h"

namespace fsdp {

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
