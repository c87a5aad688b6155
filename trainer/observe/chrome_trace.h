// Streams' time lines as Chrome's Trace Event JSON, which Perfetto (ui.perfetto.dev) opens. Format:
// "Trace Event Format", Google, complete ("X") and metadata ("M") events.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_CHROME_TRACE_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_CHROME_TRACE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trainer/core/memory_point.h"
#include "trainer/core/span.h"

namespace fsdp {

struct RankTrace {
  int rank = 0;
  std::vector<Span> spans;  // One step's or several; seconds on one clock for all ranks given.
  std::function<StepPart(uint64_t tag)> part{};  // The meaning of a span's tag; null: none.
  std::vector<MemoryPoint> memory{};             // In their order, within the spans' time.
};

// A process for each rank, a thread for each stream in order of first appearance; microseconds from
// the earliest span of all; memory is a counter of the process. A span's `args` have what is known
// of it: unit, pass, micro_batch, bytes.
std::string ChromeTrace(std::span<const RankTrace> ranks);

// Blocks on the disk. Throws CheckpointError.
void WriteChromeTrace(const std::string& path, std::span<const RankTrace> ranks);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_CHROME_TRACE_H_
