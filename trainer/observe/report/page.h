// The report: one HTML page that needs nothing but itself.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_REPORT_PAGE_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_REPORT_PAGE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/observe/report/run_history.h"

namespace fsdp {

// The number for ReadRun() that keeps the curves of a page of up to 40 runs below 2.5 MB.
size_t ReportBuckets(size_t runs);

// A page with the style of reports, and no script. `title`: text, `body`: HTML.
std::string StaticPage(std::string_view title, const std::string& body);

// `runs` is not empty. `made` says when and by what, at the foot of the page. All text of the runs
// is escaped: names, recipes and samples may hold any bytes. `pictures`: HTML, before the curves.
std::string ReportPage(const std::vector<RunHistory>& runs, std::string_view made,
                       const std::string& pictures = "");

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_REPORT_PAGE_H_
