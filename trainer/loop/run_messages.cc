#include "trainer/loop/run_messages.h"

#include <cmath>
#include <cstdio>
#include <sstream>

#include "trainer/core/paths.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/loop/job.h"
#include "trainer/loop/run_directory.h"
#include "trainer/loop/stop_agreement.h"
#include "trainer/observe/metrics.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

std::string Count(int64_t count) { return HumanCount(static_cast<double>(count)); }

// "1 row", "1.23k rows".
std::string Roughly(int64_t count, const std::string& noun) {
  return Count(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace

std::string WhatTrains(int64_t trained, int64_t parameters) {
  if (trained == parameters) return Count(parameters) + " parameters";
  return "trains " + Count(trained) + " of " + Count(parameters) + " parameters";
}

std::string WhatIsSaved(const CheckpointRecipe& checkpoint) {
  std::string words;
  if (checkpoint.every.value_or(0) > 0) {
    const std::string steps = std::to_string(*checkpoint.every);
    words = *checkpoint.every == 1 ? "every step" : "every " + steps + " steps";
  }
  if (checkpoint.every_minutes) {
    char minutes[32];
    std::snprintf(minutes, sizeof(minutes), "%g", *checkpoint.every_minutes);
    words += (words.empty() ? "" : ", ") + (*checkpoint.every_minutes == 1
                                                ? std::string("every minute")
                                                : "every " + std::string(minutes) + " minutes");
  }
  if (words.empty()) {
    return checkpoint.every ? "saves once, at the end"
                            : "saves nothing, unless a signal asks for it";
  }
  if (checkpoint.every && *checkpoint.every != 1) words += " and at the end";
  if (checkpoint.keep_last > 0) {
    words += ", and keeps the newest";
    if (checkpoint.keep_last > 1) words += " " + std::to_string(checkpoint.keep_last);
    if (checkpoint.keep_best == 1) words += " and the best";
    if (checkpoint.keep_best > 1) words += " and the best " + std::to_string(checkpoint.keep_best);
  }
  return "saves " + words;
}

std::string DescribeDataUse(const std::vector<SourceUse>& sources, int64_t seq_len) {
  std::string words;
  for (const SourceUse& source : sources) {
    char epochs[32];
    const double n = static_cast<double>(source.rows) / static_cast<double>(source.epoch);
    std::snprintf(epochs, sizeof(epochs), n < 999.5 ? "%.3g" : "%.0f", n);
    words += (words.empty() ? "" : ", ") + std::string(epochs) +
             (words.empty() ? " epochs of " : " of ") + Count(source.tokens) +
             (words.empty() ? " tokens" : "");
    if (source.samples == 0) continue;
    char full[32];
    const double places = static_cast<double>(source.epoch) * static_cast<double>(seq_len);
    std::snprintf(full, sizeof(full), "%.1f",
                  std::floor(1000 * static_cast<double>(source.tokens) / places) / 10);
    words += " in " + Roughly(source.samples, source.noun) + ", which fill " + full + " % of " +
             Roughly(source.epoch, "row");
  }
  return words;
}

std::vector<std::string> WhatIsLeftOut(const std::string& source,
                                       const FittedSamples::Counts& counts,
                                       const DataRecipe& data) {
  std::vector<std::string> lines;
  const std::string of = " of the " + Roughly(counts.samples, counts.noun) + " of " + source;
  const auto longer = [&](int64_t n, const std::string& what, int64_t tokens) {
    if (n == 0) return;
    lines.push_back("data.too_long: " + std::to_string(n) + of + (n == 1 ? " is" : " are") +
                    " longer than data.seq_len = " + std::to_string(data.seq_len) + ": " + what +
                    ", " + Roughly(tokens, "token") + " less");
  };
  longer(counts.longer - counts.emptied, data.too_long == TooLong::kCut ? "cut" : "dropped",
         counts.lost_tokens - counts.emptied_tokens);
  longer(counts.emptied,
         std::string("left out, because the cut leaves ") + (counts.emptied == 1 ? "it" : "them") +
             " no target",
         counts.emptied_tokens);
  if (counts.untrained > 0) {
    const bool documents = counts.noun == "document";
    lines.push_back("data: " + std::to_string(counts.untrained) + of +
                    (counts.untrained == 1 ? " has " : " have ") +
                    (documents ? "one token, which predicts nothing" : "nothing to train on") +
                    ": left out");
  }
  return lines;
}

std::vector<std::string> NextCommands(const std::string& program, const std::string& run_directory,
                                      const std::string& checkpoint, Speech speech, bool exports) {
  std::vector<std::string> lines;
  if (!checkpoint.empty() && speech != Speech::kNone) {
    lines.push_back(program + " generate --checkpoint " + ShellWord(checkpoint) +
                    (speech == Speech::kText ? " --prompt TEXT" : ""));
  }
  if (!checkpoint.empty() && exports) {
    lines.push_back(program + " checkpoint export " + ShellWord(checkpoint) + " --out DIR");
  }
  lines.push_back(program + " report " + ShellWord(run_directory));
  return lines;
}

std::string ChangedNothing(const SkippedRecord& record, double next_scale) {
  std::ostringstream line;
  line << "step " << record.step << " changed nothing: " << record.reason;
  if (record.loss_scale) {
    line << ", with a loss scale of " << *record.loss_scale << "; the next is " << next_scale;
  }
  return line.str();
}

std::string WhyNotFinite(int64_t step, double loss, double grad_norm, int64_t skipped,
                         int64_t most) {
  std::string others;
  if (skipped > 1) {
    others = ", as were " + std::to_string(skipped - 1) +
             " before it, and train.max_skipped_steps is " + std::to_string(most);
  }
  return "step " + std::to_string(step) + ": loss " + FixedPoint(loss, 4) + ", gradient norm " +
         FixedPoint(grad_norm, 4) + ": not finite" + others +
         ". The step changed no parameter; a lower optimizer.lr or more schedule.warmup_steps "
         "usually helps";
}

std::string WhyStopping(const AgreedStop& stop, bool fake) {
  std::string line =
      "stopping after step " + std::to_string(stop.step) +
      (fake ? " without a checkpoint: fake_* makes weights of no meaning" : " with a checkpoint");
  if (stop.cause == StopCause::kTime) {
    return line + ": run.max_time or SLURM_JOB_END_TIME leaves no time for more";
  }
  return line + "; again in 5 s or later: at once" + (fake ? "" : ", without");
}

std::string WhereToLook(const Job& job, const RunDirectory& directory) {
  if (!job.find_hosts || job.world == 1) return "";
  const HostPlacement hosts = job.find_hosts();
  const int host = hosts.HostOf(job.rank);
  if (host == 0 || hosts.LeaderOf(host) != job.rank) return "";
  return hosts.NamesOf(host) + " of " + std::to_string(job.world) +
         ": the terminal of rank 0 shows the steps; the log here is " +
         PrintableName(directory.log(job.rank)) + "\n";
}

std::string HowMany(int64_t samples, int64_t targets) {
  return HumanCount(static_cast<double>(targets)) + (targets == samples ? " samples" : " tokens");
}

}  // namespace fsdp
