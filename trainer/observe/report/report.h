// What `fsdp-train report` does.
// Tests: tests/trainer/observe/report/page_test.cc
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_REPORT_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

struct WrittenReport {
  std::string path;
  int64_t bytes = 0;
  int64_t records = 0;  // Read.
  int64_t broken = 0;   // Lines left out, unfinished last ones among them.
};

// Reads the run directories, of runs that may still be going on, and what `simulate --out` has
// left, and replaces `out`, which may be a pipe; empty: report.html in the first of them, a file.
// Throws CheckpointError, also for a file that is one of these runs' own.
WrittenReport WriteReport(const std::vector<std::string>& directories, std::string out);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_REPORT_H_
