#include "trainer/observe/report/report.h"

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/observe/build_info.h"
#include "trainer/observe/provenance.h"
#include "trainer/observe/report/page.h"
#include "trainer/observe/report/run_history.h"
#include "trainer/observe/report/step_picture.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// The page must not take the place of what it is made of, and of what a run goes on from.
void RefuseFilesOfRuns(const std::string& out, const std::vector<std::string>& directories) {
  std::error_code ignored;
  const fs::path page = fs::weakly_canonical(out, ignored);
  for (const std::string& directory : directories) {
    const fs::path run = fs::weakly_canonical(directory, ignored);
    const fs::path inside = page.lexically_relative(run);
    for (const char* name : {"simulate.json", "traces", "metrics.jsonl", "recipe.yaml",
                             "provenance.json", "checkpoints"}) {
      if (inside.empty() || *inside.begin() != name) continue;
      throw CheckpointError(out + ": is the run's own, not a page: give another name");
    }
  }
}

}  // namespace

WrittenReport WriteReport(const std::vector<std::string>& directories, std::string out) {
  if (directories.empty()) throw std::invalid_argument("[WriteReport] want a run directory");
  std::vector<RunHistory> runs;
  WrittenReport report;
  bool simulated = false;
  for (const std::string& directory : directories) {
    if (IsSimulated(directory)) {
      simulated = true;
      continue;
    }
    runs.push_back(ReadRun(directory, ReportBuckets(directories.size())));
    report.records += runs.back().records;
    report.broken += runs.back().broken + (runs.back().unfinished ? 1 : 0);
  }
  const WriteTo to = out.empty() ? WriteTo::kFile : WriteTo::kPipeToo;
  report.path = out.empty() ? directories[0] + "/report.html" : std::move(out);
  RefuseFilesOfRuns(report.path, directories);
  const std::string made = "fsdp-train " + std::string(BuildVersion()) + " (" +
                           std::string(BuildGitHash()) + "), " + UtcNow();
  const std::string pictures = simulated ? StepPictures(directories) : "";
  const std::string page =
      runs.empty() ? StaticPage("Simulated steps", "<h1>Simulated steps</h1>\n" + pictures +
                                                       "<footer>" + made + "</footer>\n")
                   : ReportPage(runs, made, pictures);
  WriteAtomicFile(report.path, page, to);
  report.bytes = static_cast<int64_t>(page.size());
  return report;
}

}  // namespace fsdp
