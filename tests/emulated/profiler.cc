#include "tests/emulated/profiler.h"

#include <nvtx3/nvToolsExt.h>

#include <optional>
#include <utility>

namespace {

struct Profile {
  std::vector<fsdp::EmulatedRange> open, ended;
};

thread_local std::optional<Profile> profile;

}  // namespace

int nvtxRangePushA(const char* message) {
  if (!profile) return -1;
  profile->open.push_back({message, fsdp::EmulatedLaunchesOfThread()});
  return static_cast<int>(profile->open.size()) - 1;
}

int nvtxRangePop() {
  if (!profile || profile->open.empty()) return -1;
  fsdp::EmulatedRange range = std::move(profile->open.back());
  profile->open.pop_back();
  range.launches = fsdp::EmulatedLaunchesOfThread() - range.launches;
  profile->ended.push_back(std::move(range));
  return static_cast<int>(profile->open.size());
}

namespace fsdp {

void ProfileEmulatedRanges() { profile.emplace(); }

std::vector<EmulatedRange> TakeEmulatedRanges() {
  std::vector<EmulatedRange> ranges =
      profile ? std::move(profile->ended) : std::vector<EmulatedRange>();
  profile.reset();
  return ranges;
}

}  // namespace fsdp
