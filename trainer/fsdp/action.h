// One action of a schedule: its kind, the memory that it reads and writes, by name and slot, and
// its waits.
// Tests: tests/trainer/fsdp/schedule_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_ACTION_H_
#define FSDP_TRAIN_TRAINER_FSDP_ACTION_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "trainer/autograd/segment.h"
#include "trainer/comm/mesh.h"

namespace fsdp {

// Only hybrid strategies use kReplicate: the network between hosts sums one unit's replicas on it
// while the next unit is reduced inside the hosts. Only offload uses the streams behind it, and
// only spilling the last two.
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
  kBegin,          // compute   Clears the step's scalars, behind all earlier steps.
  kLoad,           // data      A micro-batch into batch slot micro_batch % 2.
  kHostWait,       // the host  Enqueues nothing more before its waits have passed.
  kMove,           // any       Moves what it reads to where it writes, in the form used there.
  kGather,         // gather    All-gather of a unit's shard, which may lie in its place already,
                   //           into its slot; with F = 1 a cast.
  kRun,            // compute   The model's code for one segment and pass.
  kSumBatch,       // reduce    Inside the run before it: all-reduce of a batch norm's sums.
  kFree,           // compute   The unit's parameters lose their address.
  kClear,          // compute   Zeroes the unit's gradient.
  kReduce,         // reduce    Reduce-scatter of the gradient; with F = 1 an all-reduce.
  kAccumulate,     // reduce    gradient shard += the staging buffer that kReduce has filled.
  kAllReduce,      // replicate Sums the gradient shard over its replicas, once a step.
  kSumSquares,     // compute   Adds the squares of the unit's gradient shard; with offload: leave.
  kReduceScalars,  // reduce    All-reduce of the step's scalars: squares, loss, wishes to save.
  kClip,           // compute   Gradient norm and coefficient.
  kMatrixPieces,   // compute   Momentum of the unit's matrices; what owners need, packed.
  kMatrixSend,     // reduce    Pieces of matrices to their owners.
  kMatrixUpdate,   // compute   An owner computes the updates of its matrices.
  kMatrixReturn,   // reduce    Pieces of updates to all ranks that hold their elements.
  kFactorSums,     // compute   Sums of squares by the rows and columns of the unit's tensors.
  kFactorReduce,   // reduce    All-reduce of those of all units.
  kFactorFold,     // compute   Second moments of all tensors, from these sums.
  kUpdateSquares,  // compute   Sums of squared updates, by tensor of the unit.
  kUpdateReduce,   // reduce    All-reduce of those of all units.
  kOptimizer,      // compute   Updates the unit's shard; on the host: update, a host's stream.
  kTableTurn,      // reduce    Embedding tables, down to kTableUpdate: see table_actions.h.
  kTableFetch,     // reduce
  kTableRoute,     // data
  kTableAgree,     // reduce
  kTableClear,     // compute
  kTableCheck,     // compute
  kTableSend,      // reduce
  kTableUpdate,    // reduce
  kDrop,           // compute   Activations that have left the device give their memory back.
  kEnd             // compute   Publishes the scalars to the host.
};

// Memory that actions read, write, take and give back. Two uses of one memory on two streams need a
// wait. kComputeShard is the shard that is gathered: the masters themselves, their copy in another
// dtype, or the average that is evaluated in their place. Only updates touch masters, and they
// write the compute shard, too. The waits are therefore the same whether or not the two are one
// memory.
enum class Resource {
  kMaster,
  kState,    // The optimizer's.
  kAverage,  // The masters', in fp32.
  kComputeShard,
  kConstant,         // A master or compute shard that no update changes.
  kAverageInUse,     // The average with F = 1, in the form that is computed with.
  kSecondary,        // This rank's part of the secondary copy.
  kValue,            // A unit as it is computed with.
  kGradient,         // Backward adds to it. Only where it is not the shard itself.
  kJoinedGradient,   // A copy of kGradient, which is reduced instead.
  kGradientShard,    // Updates on the device read it.
  kShard,            // A gradient's shard, on its way to host memory.
  kHostGradient,     // Updates on the host read it.
  kUpdated,          // The result of a host's update for the device, in another dtype.
  kSpilled,          // A part, on a disk.
  kSpillSlot,        // A part in host memory, while it is updated or read.
  kSpillCopy,        // In host memory: the part's kUpdated.
  kFactors,          // The step's factors, in host memory.
  kActivations,      // A segment keeps them for backward.
  kHostActivations,  // In host memory, or on a disk.
  kGatherWire,       // A value as it travels.
  kWire,             // A gradient as it travels.
  kArrived,          // Gradients that came from others, where they are summed afterwards.
  kInsideSum,        // The sum of a host's gradients, where reductions take two hops.
  kReplicaWire,      // A gradient's shard, between replicas.
  kReplicaArrived,   // Shards that came from others, where they are summed afterwards.
  kStaging,
  kTableRows,      // This rank's rows, and the state of their updates.
  kTableVectors,   // The rows that the step asks for.
  kTableGradient,  // The sums of their gradients.
  kTableRound,     // The data of a round that travels.
  kTableRounds,    // How many rounds each rank needs.
  kRoute,          // Where the step's ids lead,
  kNextRoute,      // and those of the next step, in host memory.
  kMatrixPieces,   // This rank's, for owners, then from them.
  kMatrixOwned,    // Matrices that this rank owns, in pieces.
  kFactorSums,     // Sums of rows and columns; then moments.
  kUpdateSquares,  // Sums by tensor.
  kHostPieces,     // In host memory, with updates on the host: kMatrixPieces,
  kHostSums,       // kFactorSums,
  kHostSquares,    // kUpdateSquares.
  kScalars,
  kBatch
};
constexpr int kNumResources = static_cast<int>(Resource::kBatch) + 1;

struct Use {
  Resource what = Resource::kScalars;
  int of = 0;     // The unit or segment.
  int slot = -1;  // All uses of a slot use one memory; -1: it has its own.
  int part = -1;  // A part of the unit that is spilled; -1: all of it.

  bool operator==(const Use&) const = default;
};

struct Wait {
  int action = 0;
  // A wait that orders no memory of the list: for backward_prefetch and kHostWait. Or it orders
  // activations: the plan gives out their memory, and the list knows no use of it.
  bool pacing = false;
  bool step_before = false;  // An action of the training step before, if a training step was
                             // before.
  bool operator==(const Wait&) const = default;
};

struct Action {
  ActionKind kind = ActionKind::kRun;
  StreamId stream = StreamId::kCompute;
  int unit = -1;               // For an action on one unit.
  int segment = -1;            // For kRun and actions on activations.
  Pass pass = Pass::kForward;  // kRun.
  int micro_batch = -1;
  std::vector<Use> reads = {}, writes = {};  // kMove: from the first to the first.
  // Memory that becomes the unit's here, or stops being the unit's: from a slot or an allocator.
  std::vector<Use> takes = {}, gives = {};
  bool signals = false;  // A later action of this step or the next waits for it.
  std::vector<Wait> waits = {};

  // The action's first use of one of these; null where there is none.
  const Use* Find(std::initializer_list<Resource> any) const;
  int slot() const;     // The gather, gradient or batch slot; -1: the action uses none.
  Group group() const;  // The group of a collective.
  bool secondary() const { return Find({Resource::kSecondary}) && kind == ActionKind::kGather; }
  bool operator==(const Action&) const = default;
};

const char* Name(Pass pass);               // "forward", "recompute", "backward".
const char* NameOf(const Action& action);  // "gather", "fetch", "leave": a move by its ends.
std::string ToString(const Action& action);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_ACTION_H_
