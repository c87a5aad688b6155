#include "trainer/loop/run_list.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/observe/record_lines.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

double Modified(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 ? static_cast<double>(status.st_mtim.tv_sec) : 0;
}

// The last record of a step that is whole.
void ReadLastStep(const std::string& metrics, RunEntry& run) {
  const std::string end = EndOfRecords(metrics);
  std::string_view rest = end;
  while (!rest.empty()) {
    const size_t line_end = rest.rfind('\n');
    if (line_end == std::string_view::npos) return;
    rest = rest.substr(0, line_end);
    const size_t before = rest.rfind('\n');
    const std::string_view line = rest.substr(before == std::string_view::npos ? 0 : before + 1);
    const auto record = TryParseJson(line);
    const auto kind = record ? record->Find("kind") : std::nullopt;
    if (!kind || !kind->IsText("step")) continue;
    const auto step = record->Find("step"), loss = record->Find("loss");
    if (!step || !step->IsInteger()) continue;
    run.step = step->Integer();
    if (loss && loss->IsNumber()) run.loss = loss->Number();
    return;
  }
}

}  // namespace

std::vector<RunEntry> ListRuns(const std::string& directory) {
  std::vector<RunEntry> runs;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    RunEntry run;
    run.name = it->path().filename().string();
    run.path = it->path().string();
    const std::string metrics = run.path + "/metrics.jsonl", saved = run.path + "/checkpoints";
    std::error_code ignored;
    if (run.name.starts_with(".") || !it->is_directory(ignored)) continue;
    if (!fs::exists(metrics, ignored) && !fs::exists(saved, ignored)) continue;
    run.modified = Modified(metrics);
    ReadLastStep(metrics, run);
    try {
      if (const auto newest = FindLatestCheckpoint(saved)) {
        run.checkpoint = StepOf(fs::path(*newest).filename().string());
        run.modified = std::max(run.modified, Modified(*newest));
      }
    } catch (const Error&) {  // `checkpoint ls` of the run says more.
    }
    if (run.modified == 0) run.modified = Modified(run.path);
    runs.push_back(std::move(run));
  }
  std::sort(runs.begin(), runs.end(),
            [](const RunEntry& a, const RunEntry& b) { return a.name < b.name; });
  return runs;
}

}  // namespace fsdp
