#include "trainer/loop/run_words.h"

#include <cstdio>

#include "trainer/core/units.h"

namespace fsdp {
namespace {

std::string Count(int64_t count) { return HumanCount(static_cast<double>(count)); }

}  // namespace

std::string WhatTrains(int64_t trained, int64_t parameters) {
  if (trained == parameters) return Count(parameters) + " parameters";
  return "trains " + Count(trained) + " of " + Count(parameters) + " parameters";
}

std::string WhatIsSaved(const CheckpointRecipe& checkpoint) {
  if (!checkpoint.every) return "saves nothing, unless a signal asks for it";
  if (*checkpoint.every == 0) return "saves once, at the end";
  const std::string every = std::to_string(*checkpoint.every);
  std::string words = *checkpoint.every == 1 ? "saves every step"
                                             : "saves every " + every + " steps and at the end";
  if (checkpoint.keep_last > 0) {
    words += ", and keeps the newest";
    if (checkpoint.keep_last > 1) words += " " + std::to_string(checkpoint.keep_last);
  }
  return words;
}

std::string HowMuchData(const std::vector<SourceUse>& sources, int64_t seq_len) {
  std::string words;
  for (const SourceUse& source : sources) {
    char epochs[32];
    const double n = static_cast<double>(source.samples) / static_cast<double>(source.windows);
    std::snprintf(epochs, sizeof(epochs), n < 999.5 ? "%.3g" : "%.0f", n);
    words += (words.empty() ? "" : ", ") + std::string(epochs) +
             (words.empty() ? " epochs of " : " of ") + Count(source.windows * seq_len) +
             (words.empty() ? " tokens" : "");
  }
  return words;
}

std::vector<std::string> WhatNext(const std::string& program, const std::string& run_directory,
                                  const std::string& checkpoint, bool speaks) {
  std::vector<std::string> lines;
  if (!checkpoint.empty() && speaks) {
    lines.push_back(program + " generate --checkpoint " + checkpoint + " --prompt TEXT");
  }
  if (!checkpoint.empty()) {
    lines.push_back(program + " checkpoint export " + checkpoint + " --out DIR");
  }
  lines.push_back(program + " report " + run_directory);
  return lines;
}

}  // namespace fsdp
