#include "trainer/loop/multiprocessors.h"

#include <algorithm>
#include <cstdint>
#include <sstream>

#include "trainer/loop/choice.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/choose_device.h"

namespace fsdp {
namespace {

constexpr int kBlocksBySwitch = 8, kBlocks = 16;
constexpr int kMostShare = 4;  // A quarter.
constexpr int kMajorOfSwitch = 9, kReachOfSwitch = 4;

int ByTheMachine(const GpuKind& gpus) {
  const bool adds = gpus.major >= kMajorOfSwitch && gpus.in_reach >= kReachOfSwitch;
  const int blocks = adds ? kBlocksBySwitch : kBlocks;
  if (gpus.multiprocessors == 0) return blocks;
  return std::clamp(gpus.multiprocessors / kMostShare, 1, blocks);
}

GpuKind Least(const std::vector<std::string>& told) {
  GpuKind least;
  for (size_t r = 0; r < told.size(); ++r) {
    GpuKind one;
    std::istringstream(told[r]) >> one.major >> one.in_reach >> one.multiprocessors;
    if (r == 0) least = one;
    least.major = std::min(least.major, one.major);
    least.in_reach = std::min(least.in_reach, one.in_reach);
    least.multiprocessors = std::min(least.multiprocessors, one.multiprocessors);
  }
  return least;
}

class Blocks final : public Choice {
 public:
  ChoiceId id() const override { return ChoiceId::kBlocks; }
  bool meets() const override { return true; }
  bool Concerns(const Choosing& c) const override { return c.run.nccl != nullptr; }

  std::string Tell(const Choosing& c) const override {
    const ChosenDevice& device = *c.run.place.device;
    std::ostringstream text;
    text << device.major << " " << GpusInReach(device.gpu) << " " << device.multiprocessors;
    return text.str();
  }

  bool Asks(const Choosing&) const override { return false; }
  std::string Ask(Choosing&) const override { return ""; }

  std::string Agree(const Choosing& c) const override {
    return std::to_string(ShareOut(*c.run.recipe, Least(c.told)).collectives);
  }

  Chosen Record(const std::string& blocks, Choosing& c) const override {
    Multiprocessors& mine = c.run.multiprocessors;
    mine = {c.run.place.device->multiprocessors, std::stoi(blocks)};
    return {.id = id(), .value = blocks, .line = mine.Text(), .labels = {{"blocks", blocks}}};
  }
};

}  // namespace

std::string Multiprocessors::Text() const {
  if (collectives == 0) return "";
  std::string text = "collectives take at most " + std::to_string(collectives);
  if (all == 0) return text + " multiprocessors";
  return text + " of " + std::to_string(all) + " multiprocessors, products run on the other " +
         std::to_string(products());
}

Multiprocessors ShareOut(const Recipe& recipe, const GpuKind& gpus) {
  const std::optional<int64_t>& wanted = recipe.fsdp.collective_blocks;
  const int all = gpus.multiprocessors;
  if (!wanted) return {all, ByTheMachine(gpus)};
  if (all > 0 && *wanted >= all) {
    recipe.Refuse({{{"fsdp.collective_blocks"},
                    std::to_string(*wanted) + ", and a GPU here has " + std::to_string(all) +
                        " multiprocessors: products would be left without one. Take fewer, or "
                        "null"}});
  }
  return {all, static_cast<int>(*wanted)};
}

const Choice& BlocksChoice() {
  static const Blocks choice;
  return choice;
}

}  // namespace fsdp
