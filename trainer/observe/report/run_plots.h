// Which curves of its runs a report shows, and in which units.
// Tests: tests/trainer/observe/report/page_test.cc
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_RUN_PLOTS_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_RUN_PLOTS_H_

#include <string>
#include <vector>

#include "trainer/observe/report/plot.h"
#include "trainer/observe/report/run_history.h"

namespace fsdp {

struct RunPlots {
  std::vector<Plot> plots;
  double max_x = 1;               // The last step of all runs.
  std::vector<std::string> axes;  // By run: where its steps lie by tokens and time, as JSON.
  std::string targets;            // "tokens", "samples" or both: what "tokens" above counts.

  std::string Html() const;
  // {"plots": [..], "runs": [{"tokens": {"x", "y"}, "time": {"x", "y"}}, ..], "targets": ".."}, x
  // in steps and time in seconds.
  std::string Json() const;
};

// `labels` tell the runs apart.
RunPlots PlotsOf(const std::vector<RunHistory>& runs, const std::vector<std::string>& labels);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_RUN_PLOTS_H_
