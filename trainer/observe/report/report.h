// The work of `fsdp-train report`.
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

// Reads run directories, also of runs that still go on, and directories of `simulate --out`.
// Replaces `out`, which may be a pipe; empty: the file report.html in the first directory. Throws
// CheckpointError, also where `out` is one of these runs' own files.
WrittenReport WriteReport(const std::vector<std::string>& directories, std::string out);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_REPORT_H_
