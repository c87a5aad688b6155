#include "tests/trainer/loop/train_ranks.h"

#include <fstream>
#include <memory>

#include "tests/testing/fresh_directory.h"
#include "tests/trainer/comm/ranks.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/loop/train.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp::testing {

std::vector<std::string> TrainRanks(int world, const Recipe& recipe, std::string* said) {
  const std::string console = UnusedPath("console");
  std::vector<std::string> ends;
  for (const Outcome& outcome : RunProcessRanks(world, [&](Rank& rank) -> std::string {
         std::ofstream lines;
         Job job;
         job.rank = rank.rank;
         job.world = job.local_world = rank.size;
         job.store = rank.store;
         job.checker = std::make_shared<StreamChecker>();
         job.connect = [&](const std::string& name, const RankGroup& group) {
           return rank.join_group(name, group, {.timeout_s = recipe.run.timeout_s});
         };
         if (job.rank == 0) {
           lines.open(console);
           job.console = &lines;
         }
         try {
           return std::to_string(static_cast<int>(TrainRank(recipe, job))) + " ";
         } catch (const Error& error) {
           return std::to_string(static_cast<int>(error.code())) + " " + error.what();
         }
       })) {
    ends.push_back(outcome.error.empty() ? outcome.result : outcome.error);
  }
  if (said != nullptr) *said = ReadWholeFile(console);
  return ends;
}

}  // namespace fsdp::testing
