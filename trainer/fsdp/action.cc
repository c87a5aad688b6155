#include "trainer/fsdp/action.h"

#include <algorithm>
#include <iterator>
#include <sstream>

namespace fsdp {
namespace {

constexpr const char* kKindNames[] = {"begin",
                                      "load",
                                      "wait",
                                      "move",
                                      "gather",
                                      "run",
                                      "sum_batch",
                                      "free",
                                      "clear",
                                      "reduce",
                                      "accumulate",
                                      "all_reduce",
                                      "sum_squares",
                                      "reduce_scalars",
                                      "clip",
                                      "matrix_pieces",
                                      "matrix_send",
                                      "matrix_update",
                                      "matrix_return",
                                      "factor_sums",
                                      "factor_reduce",
                                      "factor_fold",
                                      "update_squares",
                                      "update_reduce",
                                      "optimizer",
                                      "table_turn",
                                      "table_fetch",
                                      "table_route",
                                      "table_agree",
                                      "table_clear",
                                      "table_check",
                                      "table_send",
                                      "table_update",
                                      "drop_activations",
                                      "end"};
static_assert(std::size(kKindNames) == static_cast<size_t>(ActionKind::kEnd) + 1);

// A move is named by where it leads, or where it comes from.
struct MoveName {
  bool from;
  Resource end;
  const char* name;
};
constexpr MoveName kMoveNames[] = {{true, Resource::kHostGradient, "fetch_gradient"},
                                   {true, Resource::kSpilled, "read_spilled"},
                                   {true, Resource::kActivations, "leave_activations"},
                                   {true, Resource::kHostActivations, "fetch_activations"},
                                   {false, Resource::kHostGradient, "leave"},
                                   {false, Resource::kSpilled, "write_spilled"},
                                   {false, Resource::kSecondary, "keep"},
                                   {false, Resource::kJoinedGradient, "join_gradient"},
                                   {false, Resource::kComputeShard, "return"},
                                   {true, Resource::kHostPieces, "fetch_pieces"},
                                   {false, Resource::kHostPieces, "leave_pieces"},
                                   {true, Resource::kHostSums, "fetch_sums"},
                                   {false, Resource::kHostSums, "leave_sums"},
                                   {true, Resource::kHostSquares, "fetch_squares"},
                                   {false, Resource::kHostSquares, "leave_squares"},
                                   {false, Resource::kValue, "fetch"}};

constexpr const char* kStreamNames[kNumStreams] = {"compute",    "gather",     "reduce", "data",
                                                   "replicate",  "leave",      "update", "fetch",
                                                   "spill_read", "spill_write"};

}  // namespace

const char* Name(Pass pass) {
  return pass == Pass::kForward ? "forward" : pass == Pass::kRecompute ? "recompute" : "backward";
}

const char* NameOf(const Action& a) {
  if (a.kind != ActionKind::kMove) return kKindNames[static_cast<int>(a.kind)];
  const Resource from = a.reads.front().what, to = a.writes.front().what;
  const MoveName* const name = std::ranges::find_if(
      kMoveNames, [&](const MoveName& n) { return n.end == (n.from ? from : to); });
  return name == std::end(kMoveNames) ? kKindNames[static_cast<int>(a.kind)] : name->name;
}

const Use* Action::Find(std::initializer_list<Resource> any) const {
  for (const std::vector<Use>* uses : {&reads, &writes, &gives}) {
    for (const Use& use : *uses) {
      if (std::ranges::find(any, use.what) != any.end()) return &use;
    }
  }
  return nullptr;
}

int Action::slot() const {
  if (kind == ActionKind::kRun) return -1;
  const Use* const use = Find({Resource::kValue, Resource::kGradient, Resource::kBatch});
  return use ? use->slot : -1;
}

Group Action::group() const {
  switch (kind) {
    case ActionKind::kGather:
      return secondary() ? Group::kSecondary : Group::kGather;
    case ActionKind::kReduce:
      return reads.empty() ? Group::kReplicate : Group::kReduce;
    case ActionKind::kAllReduce:
      return Group::kReplicate;
    default:
      return Group::kWorld;
  }
}

std::string ToString(const Action& a) {
  std::ostringstream out;
  const bool host = a.kind == ActionKind::kHostWait;
  out << (host ? "host" : kStreamNames[static_cast<int>(a.stream)]) << ": " << NameOf(a);
  if (a.kind == ActionKind::kRun || a.kind == ActionKind::kSumBatch) out << " " << Name(a.pass);
  if (a.segment >= 0) out << " segment " << a.segment;
  if (a.unit >= 0) out << " unit " << a.unit;
  if (a.micro_batch >= 0) out << " micro-batch " << a.micro_batch;
  if (a.slot() >= 0) out << " slot " << a.slot();
  const auto slot_of = [&](const char* name, const Use* use) {
    if (use && use->slot >= 0) out << " " << name << " slot " << use->slot;
  };
  slot_of("shard", a.Find({Resource::kShard}));
  slot_of("update", a.Find({Resource::kUpdated}));
  slot_of("matrix",
          a.Find({Resource::kMatrixPieces, Resource::kMatrixOwned, Resource::kHostPieces}));
  const Use* const part = a.Find({Resource::kSpilled, Resource::kSpillSlot, Resource::kSpillCopy});
  if (part) out << " part " << part->part;
  slot_of("spill", a.Find({Resource::kSpillSlot, Resource::kSpillCopy}));
  if (a.secondary()) out << " secondary";
  if (a.kind == ActionKind::kReduce && a.Find({Resource::kStaging})) out << " staged";
  for (const Wait& wait : a.waits) {
    out << (wait.pacing ? " paced by " : " after ") << wait.action
        << (wait.step_before ? " of the step before" : "");
  }
  return out.str();
}

}  // namespace fsdp
