// The schedule of a step: its gathers, runs, reductions and updates, each with its stream, slot and
// waits. A pure function of the recipe. The executor follows it, the planner and the simulator add
// it up, ranks compare its hash. Sections 3.3 and 3.4 of arXiv 2304.11277. A number of slots and
// events between streams bound memory. The paper's own way is `limiter: host`, where the host waits
// for frees, and `buffers: caching`, where memory comes from a caching allocator.
//
//   A segment is the piece of the model between two cursor positions (model.h); consecutive
//   segments may share a unit (layout.h). A unit other than the root is `freed in a pass` under
//   kFullShard and kHybridShard: it takes a gather slot before its run in forward, and again before
//   its recompute or backward if that reads parameters. (The backward of a table, in which rows are
//   looked up, reads none.) Gather slots are taken in turn, so a gather always needs the slot that
//   has been longest in use. The root has memory of its own, for its value and for its gradient. To
//   free it between micro-batches would save nothing, so it is gathered once a step. Its gradient
//   is reduced behind the last run that adds to it, once a micro-batch or once a step.
//
//   A secondary copy keeps 1/k of a unit from its forward to its backward, in memory of its own for
//   each unit. The compute stream writes it before the unit's slot is free, so the waits of this
//   list order it like any other use of memory.
//
//   With `buffers: caching` device memory has no slots: each gather and each gradient has
//   memory of its own, which is free again behind its last use. Units that are kept therefore have
//   a kFree as well, once a step; with `auto_wrap.outside: root` the root's is behind the step's
//   last run. No unit is updated on the host or fetched from there. Activations that have left
//   give their memory back behind a wait of the compute stream. The allocator would learn of an
//   event of the copy too late: the host runs ahead, so no memory would be used again within a
//   step.
//
//   With `concat_gradients` a sharded unit's gradient is copied behind the last run that adds to
//   it, and reduced from the copy. PyTorch's FSDP1 does that: a unit's parameters are views of one
//   flat parameter, made by torch.split, whose backward concatenates their gradients
//   (_get_unflat_views_unaligned, torch/distributed/fsdp/_flat_param.py).
//
//   Offload: a unit that is updated on the host has master, state and gradient in host memory. The
//   device sums a micro-batch's gradient in a slot, to which the sum so far is fetched. The fetch
//   reads 4 bytes of host memory an element; adding on the host would read 8 and write 4. A
//   gradient that has been squared and has left for the host needs no place on the device any more.
//   Updates begin when the whole norm is known, on a stream of the host, in the order of the next
//   forward. The weights to compute with come back behind each update or, where parameters are
//   offloaded too, are fetched before each gather.
//
//   Spilling: shards of such a unit that only its update reads may lie on a disk. They are updated
//   part by part in slots in host memory. Slots are filled ahead of the updates, the first ones
//   beside the step itself, and written back behind them. An evaluation reads averages into the
//   same slots, each ahead of its unit's fetch.
//
//   Matrices that are updated whole (UnitRow::whole): one rank, the owner, computes the update of a
//   matrix from all of it. In the order of the updates a unit's pieces travel to the owners, are
//   computed there and travel back. The pieces of the next unit travel beside the products of this
//   one, and so do the results of the one before: three slots of each buffer (MatrixSlots()). One
//   rank alone owns everything: nothing travels, and one slot is enough. Where the host updates
//   units, it makes the pieces, which are then fetched, and results leave for its update: momentum
//   and masters never come to the device. Spilled momentum comes from the disk and goes back when
//   pieces are made, all else at the update.
//
//   Factored second moments (ScheduleOptions::factored): each unit's shard is summed by the rows
//   and columns of its tensors, one all-reduce adds the sums of all units, and moments are made of
//   them. A second all-reduce adds the squares of updates. Only then do the updates begin. The
//   sums of units on the host are fetched for that, and the moments leave for the host.
//
//   Offloaded activations leave behind their segment's forward, beside that of the next; they come
//   back beside the backward of the segment behind theirs.
//
//   Waits name earlier actions, so no schedule can deadlock. They are only those that order two
//   uses of the same memory which nothing else orders: without one of them the stream checker
//   reports a race. The exceptions are marked `pacing`: waits of backward_prefetch post and none,
//   and the host's waits that hold no slot back.
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

#include "trainer/fsdp/action.h"
#include "trainer/fsdp/options.h"

namespace fsdp {

enum class Mode { kTrain, kEval };  // kEval: forward only, also for sampling.

// The most micro-batches times segments: the list of actions takes about 1 KiB of host memory a
// run.
inline constexpr int64_t kMaxScheduledRuns = int64_t{1} << 17;

// Slots of pieces of matrices, and of matrices with their owners. One where pieces neither travel
// between ranks nor come from the host.
constexpr int MatrixSlots(bool travels, bool on_host) { return travels || on_host ? 3 : 1; }

// A unit, as the schedule sees it. Unit 0 is the root.
struct UnitRow {
  bool trains = true;        // Has gradients.
  bool on_host = false;      // Updated on the host.
  bool fetched = false;      // Its shards are in host memory when they are gathered.
  bool copied = false;       // on_host: its weights come back in another dtype.
  bool cast = false;         // shards = 1: its gather is a cast, once a step.
  bool cast_frozen = false;  // cast: no parameter that is cast trains.
  bool whole = false;        // Some of its matrices are updated whole, each by one rank.
  // The parts in which spilled shards are read, updated and written: in kTrain for units that are
  // on_host, in kEval, which reads averages, for fetched units. Each entry says whether the part
  // comes back in another dtype. Empty: nothing is spilled.
  std::vector<bool> spilled = {};
  int momentum_parts = 0;  // Behind those, where pieces are made of spilled momentum (`whole`).
};

struct SegmentRow {
  int unit = 0;
  bool recomputed = false;       // Run again before its backward.
  bool read_in_backward = true;  // Its backward reads parameters.
  bool reads_root = false;       // It reads shared parameters of the root.
  bool frozen = false;           // Neither it nor its unit's earlier ones read what trains.
  bool offloaded = false;        // Its activations wait for backward in host memory.
  int batch_sums = 0;            // Sums a pass of batch norms over all ranks.
};

struct ScheduleOptions : FsdpOptions {
  Mode mode = Mode::kTrain;
  int shards = 1;     // F. With 1 the only gathers are casts.
  int replicas = 1;   // Ranks that hold the same shard: world / F.
  int secondary = 1;  // k: shards of the copy for backward; 1: none.
  int inside = 1;     // Shards on a host, whose ranks reduce together first.
  std::vector<UnitRow> units = {};
  std::vector<SegmentRow> segments = {};
  int backward_from = 0;  // Segments before it have no backward: nothing trains there.
  int micro_batches = 1;
  uint64_t owners = 0;    // A hash of who owns which matrix; 0: none is updated whole.
  bool factored = false;  // Second moments by rows and columns.
  bool tables = false;    // Embedding tables outside the units: table_actions.h.
  bool poison = false;    // kFree fills the slot with NaN; otherwise it touches no memory.

  void Check() const;  // Throws std::invalid_argument for options out of range.
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
  int gradient_slots = 0;  // As gather_slots.
  int shard_slots = 0;     // For a unit's gradient shards.
  int update_slots = 0;    // For a unit's shards, as they are computed with.
  int spill_slots = 0;     // For a spilled part.
  std::vector<Action> actions;

  std::string ToString() const;  // One action a line.
  uint64_t Hash() const;
};

// Throws std::invalid_argument for options out of range.
Schedule MakeSchedule(const ScheduleOptions& options);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_SCHEDULE_H_
