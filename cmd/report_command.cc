#include "cmd/report_command.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/observe/report/report.h"

namespace fsdp {
namespace {

struct ReportFlags {
  std::vector<std::string> directories;
  std::string out;
};

}  // namespace

void AddReportCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "report", "Write runs, finished or not, as one HTML page that needs no network");
  const auto flags = std::make_shared<ReportFlags>();
  command
      ->add_option("RUN_DIR", flags->directories,
                   "Run directories, or those of simulate --out; several are overlaid")
      ->required();
  command
      ->add_option("--out", flags->out, "The page. Default: report.html in the first run directory")
      ->type_name("FILE")
      ->expected(1);
  command->callback([flags] {
    const WrittenReport report = WriteReport(flags->directories, flags->out);
    std::printf("%s: %s, %s\n", PrintableName(report.path).c_str(),
                Counted(report.records, "record").c_str(), HumanBytes(report.bytes).c_str());
    if (report.broken > 0) {
      std::printf("%lld broken %s left out\n", static_cast<long long>(report.broken),
                  report.broken == 1 ? "line is" : "lines are");
    }
  });
}

}  // namespace fsdp
