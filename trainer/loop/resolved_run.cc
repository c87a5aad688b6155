#include "trainer/loop/resolved_run.h"

namespace fsdp {

ResolvedRun::ResolvedRun() = default;
ResolvedRun::ResolvedRun(ResolvedRun&&) noexcept = default;
ResolvedRun& ResolvedRun::operator=(ResolvedRun&&) noexcept = default;
ResolvedRun::~ResolvedRun() = default;

Chosen ResolvedRun::Of(ChoiceId id) const {
  for (const Chosen& one : chosen) {
    if (one.id == id) return one;
  }
  return {.id = id};
}

}  // namespace fsdp
