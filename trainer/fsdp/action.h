// One action of a schedule: what it does, what it reads and writes, by name and slot, and what it
// waits for.
// Tests: tests/trainer/fsdp/schedule_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_ACTION_H_
#define FSDP_TRAIN_TRAINER_FSDP_ACTION_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "trainer/autograd/segment.h"
#include "trainer/comm/mesh.h"

namespace fsdp {

// kReplicate: of hybrid strategies alone; those behind it of offload, the last two of spilling.
enum class StreamId {
  kCompute,
  kGather,
  kReduce,
  kData,
  kReplicate,
  kLeave,
  kUpdate,
  kFetch,
  kSpillRead,
  kSpillWrite
};
constexpr int kNumStreams = 10, kOffloadStreams = 3, kSpillStreams = 2;

enum class ActionKind {
  kBegin,          // compute   Clears the step's scalars, behind all steps before.
  kLoad,           // data      A micro-batch into batch slot micro_batch % 2.
  kHostWait,       // the host  Enqueues nothing more before what it waits for has passed.
  kMove,           // any       What it reads, to where it writes, in the form that it has there.
  kGather,         // gather    All-gather of a unit's shard, or of what lies in its place already,
                   //           into its slot; with F = 1 a cast.
  kRun,            // compute   The model's code for one segment and pass.
  kSumBatch,       // reduce    In the run before it: all-reduce of what a batch norm asks for.
  kFree,           // compute   The unit's parameters have no address any more.
  kClear,          // compute   Zeroes the unit's gradient.
  kReduce,         // reduce    Reduce-scatter of the gradient; with F = 1 an all-reduce.
  kAccumulate,     // reduce    gradient shard += what kReduce left in the staging buffer.
  kAllReduce,      // replicate Sums the gradient shard over its replicas, once a step.
  kSumSquares,     // compute   Adds the squares of the unit's gradient shard; with offload: leave.
  kReduceScalars,  // reduce    All-reduce of the step's scalars: squares, loss, stop flag.
  kClip,           // compute   Gradient norm and coefficient.
  kOptimizer,  // compute   Updates the unit's shard; of units on the host: update, a host's stream.
  kTableTurn,  // reduce    Of embedding tables, as the next: table_actions.h says what they do.
  kTableFetch,   // reduce
  kTableRoute,   // data
  kTableAgree,   // reduce
  kTableClear,   // compute
  kTableCheck,   // compute
  kTableSend,    // reduce
  kTableUpdate,  // reduce
  kDrop,         // compute   Activations that have left give their memory back.
  kEnd           // compute   Publishes the scalars to the host.
};

// Memory that actions read, write, take and give back. Two uses of one memory on two streams need a
// wait. kComputeShard is what is gathered: the masters themselves, their copy in another dtype, or
// the average that is evaluated in their place. Only updates touch masters, and they write the
// compute shard with them, so the waits are the same whether or not the two are one memory.
enum class Resource {
  kMaster,
  kState,    // The optimizer's.
  kAverage,  // The masters', in fp32.
  kComputeShard,
  kConstant,         // Either of them, of what no update changes.
  kAverageInUse,     // With F = 1, in the form that is computed with.
  kSecondary,        // This rank's part of the secondary copy.
  kValue,            // A unit as it is computed with.
  kGradient,         // Backward adds to it, where that is not the shard itself.
  kGradientShard,    // Updates on the device read it.
  kShard,            // A gradient's, on its way to host memory.
  kHostGradient,     // Updates on the host read it.
  kUpdated,          // An update on the host leaves it for the device, in another dtype.
  kSpilled,          // A part, on a disk.
  kSpillSlot,        // A part in host memory, while it is updated or read.
  kSpillCopy,        // There, too: what kUpdated is of it.
  kFactors,          // The step's, in host memory.
  kActivations,      // A segment keeps them for backward.
  kHostActivations,  // In host memory, or on a disk.
  kGatherWire,       // A value as it travels.
  kWire,             // A gradient as it travels.
  kArrived,          // What has come of others' gradients, where it is summed afterwards.
  kInsideSum,        // Of a host's gradients, where reductions take two hops.
  kReplicaWire,      // A gradient's shard, between replicas.
  kReplicaArrived,   // What has come of others' shards, where it is summed afterwards.
  kStaging,
  kTableRows,      // This rank's, and what their updates keep.
  kTableVectors,   // The rows that the step asks for.
  kTableGradient,  // The sums of their gradients.
  kTableRound,     // What travels of a round.
  kTableRounds,    // How many rounds each rank needs.
  kRoute,          // Where the ids of the step lead,
  kNextRoute,      // and in host memory those of the next.
  kScalars,
  kBatch
};
constexpr int kNumResources = static_cast<int>(Resource::kBatch) + 1;

struct Use {
  Resource what = Resource::kScalars;
  int of = 0;     // The unit or segment.
  int slot = -1;  // Whoever uses a slot uses one memory; -1: it has its own.
  int part = -1;  // A part of the unit that is spilled; -1: all of it.

  bool operator==(const Use&) const = default;
};

struct Wait {
  int action = 0;
  // Orders no memory by itself: backward_prefetch, kHostWait; or memory that the plan gives out, of
  // which the list knows no use: of activations.
  bool pacing = false;
  bool step_before = false;  // An action of the training step before, if that is what was before.
  bool operator==(const Wait&) const = default;
};

struct Action {
  ActionKind kind = ActionKind::kRun;
  StreamId stream = StreamId::kCompute;
  int unit = -1;               // Where it is about one.
  int segment = -1;            // kRun, and of activations.
  Pass pass = Pass::kForward;  // kRun.
  int micro_batch = -1;
  std::vector<Use> reads = {}, writes = {};  // kMove: from the first to the first.
  // Memory that is the unit's from here on, or until here: of a slot, or of an allocator.
  std::vector<Use> takes = {}, gives = {};
  bool signals = false;  // A later action waits for it, of this step or the next.
  std::vector<Wait> waits = {};

  // The first of all it uses that is one of these; null where there is none.
  const Use* Find(std::initializer_list<Resource> any) const;
  int slot() const;     // A gather's, gradient's or batch's; -1: it is about no such slot.
  Group group() const;  // Over whom a collective goes.
  bool secondary() const { return Find({Resource::kSecondary}) && kind == ActionKind::kGather; }
  bool operator==(const Action&) const = default;
};

const char* Name(Pass pass);               // "forward", "recompute", "backward".
const char* NameOf(const Action& action);  // "gather", "fetch", "leave": a move by its ends.
std::string ToString(const Action& action);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_ACTION_H_
