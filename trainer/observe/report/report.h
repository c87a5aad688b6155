// The report: one HTML page that needs nothing but itself.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_REPORT_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

struct RunHistory;

struct WrittenReport {
  std::string path;
  int64_t bytes = 0;
  int64_t records = 0;  // Read.
  int64_t broken = 0;   // Lines left out, unfinished last ones among them.
};

// The work of `fsdp-train report`. Reads run directories, also of runs that still go on, and
// directories of `simulate --out`. Replaces `out`, which may be a pipe; empty: the file report.html
// in the first directory. Throws CheckpointError, also where `out` is one of these runs' own files.
WrittenReport WriteReport(const std::vector<std::string>& directories, std::string out);

// A page of `runs`, which are not empty. `made` says when and by what, at the foot of the page. All
// text of the runs is escaped: names, recipes and samples may hold any bytes. `pictures`: HTML,
// before the curves.
std::string ReportPage(const std::vector<RunHistory>& runs, std::string_view made,
                       const std::string& pictures = "");

// The number for ReadRun() that keeps the curves of a page of up to 40 runs below 2.5 MB.
size_t ReportBuckets(size_t runs);

// A page with the style of reports. `title`: text, `body`: HTML.
std::string StaticPage(std::string_view title, const std::string& body);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_REPORT_H_
