#include "trainer/observe/report/report.h"

#include <stdexcept>

#include "trainer/core/whole_file.h"
#include "trainer/observe/build_info.h"
#include "trainer/observe/provenance.h"
#include "trainer/observe/report/page.h"
#include "trainer/observe/report/run_history.h"

namespace fsdp {

WrittenReport WriteReport(const std::vector<std::string>& directories, std::string out) {
  if (directories.empty()) throw std::invalid_argument("[WriteReport] want a run directory");
  std::vector<RunHistory> runs;
  WrittenReport report;
  for (const std::string& directory : directories) {
    runs.push_back(ReadRun(directory, ReportBuckets(directories.size())));
    report.records += runs.back().records;
    report.broken += runs.back().broken + (runs.back().unfinished ? 1 : 0);
  }
  report.path = out.empty() ? directories[0] + "/report.html" : std::move(out);
  const std::string page = ReportPage(runs, "fsdp-train " + std::string(BuildVersion()) + " (" +
                                                std::string(BuildGitHash()) + "), " + UtcNow());
  WriteWholeFile(report.path, page, WriteTo::kPipeToo);
  report.bytes = static_cast<int64_t>(page.size());
  return report;
}

}  // namespace fsdp
