// The schedule of a step: which gathers, runs, reductions and updates happen, on which stream, in
// which slot, and what each waits for. A pure function of the recipe; the executor follows it, the
// planner and the simulator add it up, ranks compare its hash. Sections 3.3 and 3.4 of arXiv
// 2304.11277. What bounds memory is a number of slots and events between streams; the paper's own
// way, frees that the host waits for and memory from a caching allocator, are `limiter: host` and
// `buffers: caching`.
//
//   A segment is the piece of the model between two cursor positions (model.h); consecutive
//   segments may share a unit. Units are layout.h's. A
//   unit other than the root is `freed in a pass` under kFullShard and kHybridShard: it takes a
//   gather slot before its run in forward and again before its recompute or backward, if that reads
//   parameters: not so a table's, in which rows are looked up. Gather slots are taken in turn, so
//   the slot that a gather needs is always the one that has been longest in use. The root has
//   memory of its own, for its value and for its gradient, and is gathered once a step. Its
//   gradient is reduced behind the last run that adds to it, once a micro-batch or once a step.
//   With `buffers: caching` device memory has no slots: each gather, each gradient, and the shard
//   of one on its way to the host, has memory of its own, which is free again behind its last use;
//   so units that are kept have a kFree as well, once a step: with `auto_wrap.outside: root` the
//   root's is behind the step's last run. Slots in host memory stay slots.
//
//   Offload: a unit that is updated on the host has master, state and gradient in host memory. What
//   a micro-batch adds to its gradient is summed on the device, in a slot, to which the sum so far
//   is fetched; what has been squared and has left for the host needs no place there any more.
//   Updates begin when the whole norm is known, on a stream of the host, in the order of the next
//   forward; what is computed with comes back behind each, or, where the parameters are offloaded
//   too, is fetched before each gather.
//
//   What of such a unit only its update reads may be spilled: on a disk, but for the while in which
//   it is updated, part by part, in slots in host memory. Slots are filled ahead of the updates,
//   the first ones beside the step itself, and written back behind them. Averages that are
//   evaluated are read into the same slots, each ahead of its unit's fetch.
//
//   Activations that are offloaded leave behind their segment's forward, beside that of the next;
//   they come back beside the backward of the segment behind theirs.
//
//   Waits name earlier actions, so no schedule can deadlock, and only those that order two uses of
//   the same memory which nothing else orders; but for the `pacing` waits of backward_prefetch post
//   and none, and of the host where it holds no slot back, each is needed: without it the stream
//   checker reports a race.
//
//   Across steps: where a training step follows a training step, waits name actions of that one,
//   too. Updates are in the order of the next forward, so a gather waits for its own unit's update
//   and overlaps those behind it, and a load waits for the last reader of its batch slot. After
//   anything else all streams wait for kBegin, which is behind all that was before.
#ifndef FSDP_TRAIN_TRAINER_FSDP_SCHEDULE_H_
#define FSDP_TRAIN_TRAINER_FSDP_SCHEDULE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/autograd/segment.h"
#include "trainer/fsdp/action.h"
#include "trainer/fsdp/options.h"

namespace fsdp {

enum class Mode { kTrain, kEval };  // kEval: forward only, also for sampling.

// Micro-batches times segments: actions are a list in the host's memory, about 1 KiB a run.
inline constexpr int64_t kMaxScheduledRuns = int64_t{1} << 17;

// A unit, as the schedule sees it. Unit 0 is the root.
struct UnitRow {
  bool trains = true;        // Has gradients.
  bool on_host = false;      // Updated on the host.
  bool fetched = false;      // Its shards are in host memory when they are gathered.
  bool copied = false;       // on_host: what comes back is in another dtype.
  bool cast = false;         // shards = 1: its gather is a cast, once a step.
  bool cast_frozen = false;  // cast: nothing that is cast trains.
  // The parts in which what is spilled is read, updated and written, in kTrain of units that are
  // on_host, in kEval of those that are fetched, where averages are read; and of each part, whether
  // what comes back of it is in another dtype. Empty: nothing is spilled.
  std::vector<bool> spilled = {};
};

struct SegmentRow {
  int unit = 0;
  bool recomputed = false;       // Run again before its backward.
  bool read_in_backward = true;  // Its backward reads parameters.
  bool reads_root = false;       // It reads what the root holds for several.
  bool offloaded = false;        // Its activations wait for backward in host memory.
  int batch_sums = 0;            // Where batch norms are over all ranks: sums of each pass.
};

struct ScheduleOptions : FsdpOptions {
  Mode mode = Mode::kTrain;
  int shards = 1;     // F. With 1 nothing is gathered, but what is cast.
  int replicas = 1;   // Ranks that hold the same shard: world / F.
  int secondary = 1;  // k: of a copy for backward; 1: there is none.
  int inside = 1;     // Shards of a host, whose ranks reduce together first.
  std::vector<UnitRow> units = {};
  std::vector<SegmentRow> segments = {};
  int backward_from = 0;  // Segments before it have no backward: nothing trains there.
  int micro_batches = 1;
  bool tables = false;  // Embedding tables outside the units: table_actions.h.
  bool poison = false;  // kFree fills the slot with NaN; otherwise it touches no memory.

  bool Any(bool UnitRow::*has) const { return std::ranges::any_of(units, std::identity(), has); }
  // Whether a training step has work on the streams kLeave, kUpdate and kFetch.
  bool offloads() const {
    return Any(&UnitRow::on_host) || Any(&UnitRow::fetched) ||
           std::ranges::any_of(segments, &SegmentRow::offloaded);
  }
};

struct Schedule {
  ScheduleOptions options;
  int gather_slots = 0;    // 0: each unit has its own. slot_places.h says how large they are.
  int gradient_slots = 0;  // Likewise.
  int shard_slots = 0;     // Of a unit's gradient shards.
  int update_slots = 0;    // Of a unit's shards, as they are computed with.
  int spill_slots = 0;     // Of a part of what is spilled.
  std::vector<Action> actions;

  std::string ToString() const;  // One action a line.
  uint64_t Hash() const;
};

// Throws std::invalid_argument for options out of range.
Schedule MakeSchedule(const ScheduleOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SCHEDULE_H_
