// Settings that are valid but hardly meant: declared in load.h.
// Tests: tests/trainer/recipe/world_test.cc
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/round_up.h"
#include "trainer/core/units.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {

std::string WhatIsUnused(const TrainRecipe& train, int64_t world_size) {
  const int64_t batch = train.global_batch_size, micro = train.micro_batch_size;
  const int64_t room = RoundUp(batch, micro * world_size);
  const int64_t busy = std::min(world_size, (batch + micro - 1) / micro);
  const double unused = 1 - static_cast<double>(batch) / static_cast<double>(room);
  if (busy == world_size && unused < 0.01) return "";
  std::string text, cures = "set train.global_batch_size to " + std::to_string(room);
  if (busy < world_size) {
    text = std::to_string(world_size - busy) + " of " + Counted(world_size, "rank") +
           " have no samples, and ";
  }
  text += HumanRate(100 * unused) + " % of each step is computed for nothing: its " +
          Counted(batch, "sample") + " in micro-batches of " + std::to_string(micro) +
          " are dealt to ranks with room for " + std::to_string(room);
  if (batch % world_size == 0) {
    const int64_t each = batch / world_size;
    int64_t whole = 0;  // The largest divisor of `each` below `micro`.
    for (int64_t d = 1; d * d <= each; ++d) {
      if (each % d != 0) continue;
      for (const int64_t size : {d, each / d}) whole = size < micro ? std::max(whole, size) : whole;
    }
    if (whole > 0) cures += ", or train.micro_batch_size to " + std::to_string(whole);
  }
  if (busy < world_size) cures += ", or take " + Counted(busy, "rank");
  return text + ". To use all, " + cures;
}

namespace {

// A line for each that has another value than its default, which a resolved recipe has, too.
std::vector<std::string> KeysOfOtherOptimizers(const Recipe& recipe) {
  using Kind = OptimizerRecipe::Kind;
  const OptimizerRecipe &o = recipe.optimizer, plain;
  std::vector<std::string> lines;
  const auto unread = [&](bool read, bool changed, const std::string& key) {
    if (read || !changed) return;
    lines.push_back(recipe.Mistake(key, "`" + std::string(Name(o.name)) + "` does not read it"));
  };
  unread(o.name == Kind::kMuon, o.muon != plain.muon, "optimizer.muon");
  unread(o.name == Kind::kAdafactor, o.adafactor != plain.adafactor, "optimizer.adafactor");
  const bool adamw = o.name == Kind::kAdamW || o.name == Kind::kMuon;
  unread(adamw, o.betas != plain.betas, "optimizer.betas");
  unread(adamw, o.eps != plain.eps, "optimizer.eps");
  const bool ruled =
      std::ranges::any_of(o.groups, [](const GroupRecipe& g) { return g.rule.has_value(); });
  unread(o.name == Kind::kMuon, ruled, "optimizer.groups");
  return lines;
}

}  // namespace

std::vector<std::string> Advice(const Recipe& recipe, int64_t world_size) {
  std::vector<std::string> advice;
  const TrainRecipe& train = recipe.train;
  if (const std::string unused = WhatIsUnused(train, world_size); !unused.empty()) {
    advice.push_back(recipe.Mistake(
        std::vector<std::string>{"train.global_batch_size", "train.micro_batch_size"}, unused));
  }
  if (recipe.fsdp.quantize.gather != FsdpOptions::Quantize::Gather::kNone && world_size == 1) {
    advice.push_back(
        recipe.Mistake("fsdp.quantize.gather", "one rank gathers nothing: nothing is quantised"));
  }
  if (recipe.fsdp.quantize.reduce != FsdpOptions::Quantize::Reduce::kNone && world_size == 1) {
    advice.push_back(
        recipe.Mistake("fsdp.quantize.reduce", "one rank sums nothing: nothing is quantised"));
  }
  const int64_t warmup = recipe.schedule.warmup_steps;
  if (train.steps > 0 && warmup > train.steps) {
    advice.push_back(
        recipe.Mistake(std::vector<std::string>{"schedule.warmup_steps", "train.steps"},
                       "a warm-up of " + std::to_string(warmup) + " steps, but the run has " +
                           std::to_string(train.steps) + ": this start warms up over all of them"));
  }
  for (std::string& unread : KeysOfOtherOptimizers(recipe)) advice.push_back(std::move(unread));
  for (const auto& [key, fake] : {std::pair("fsdp.fake_all_gather", recipe.fsdp.fake_all_gather),
                                  std::pair("fsdp.fake_reduce", recipe.fsdp.fake_reduce)}) {
    if (fake) advice.push_back(recipe.Mistake(key, "for measuring alone: the loss means nothing"));
  }
  return advice;
}

}  // namespace fsdp
