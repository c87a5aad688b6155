#include "trainer/loop/chosen_checkpoint.h"

#include <filesystem>
#include <optional>
#include <string_view>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/units.h"
#include "trainer/observe/record_lines.h"

namespace fsdp {
namespace {

// Whether the last record is the `end` of a run that stopped early.
bool StoppedEarly(const std::string& metrics) {
  const std::string end = EndOfRecords(metrics);
  std::string_view line = end;
  if (!line.ends_with('\n')) return false;  // It is being written.
  line.remove_suffix(1);
  line.remove_prefix(line.rfind('\n') + 1);
  const auto record = TryParseJson(line);
  const auto kind = record ? record->Find("kind") : std::nullopt;
  return kind && kind->IsText("end") && record->Find("early_stopping");
}

}  // namespace

ChosenCheckpoint ChooseCheckpoint(const std::string& path, bool latest) {
  if (latest || !StoppedEarly(path + "/metrics.jsonl")) return {path, ""};
  const std::string ended = path + " ended by early stopping: ";
  const std::optional<std::string> best = FindBestCheckpoint(path + "/checkpoints");
  if (!best) return {path, ended + "no whole checkpoint is its best, so this is the newest"};
  return {*best, ended + DescribeBest(*best) + "; --latest takes the newest"};
}

std::string DescribeBest(const std::string& best) {
  const auto evaluation = ReadCheckpointMeta(best).evaluation;
  const std::string name = std::filesystem::path(best).filename();
  return "its best checkpoint is " + name +
         (evaluation && evaluation->loss ? ", of loss " + FixedPoint(*evaluation->loss, 4) : "");
}

}  // namespace fsdp
