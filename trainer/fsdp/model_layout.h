// A model's shapes, mesh of ranks and schedule under a job's options. Pure functions, the same on
// every rank.
#ifndef FSDP_TRAIN_TRAINER_FSDP_MODEL_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_FSDP_MODEL_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/comm/mesh.h"
#include "trainer/fsdp/executor_options.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/schedule.h"

namespace fsdp {

class Model;

// The units that the host updates: all units that train, in the order of the model, except a share
// of `optimizer_share`, spread evenly. Empty without cpu_offload.optimizer.
std::set<int> UnitsOnHost(const ExecutorOptions& options, const Layout& layout);
// The units whose shards lie in host memory when they are gathered, in a step of `mode`.
std::set<int> UnitsFetched(const ExecutorOptions& options, const Layout& layout, Mode mode);

std::vector<SegmentShape> ShapesOf(const Model& model, const DTypeRule& dtypes = nullptr,
                                   const WholeRule& whole = nullptr);

// The model's layout over `shards` ranks, with the options' wrapping and dtypes.
Layout LayoutFor(const ExecutorOptions& options, const Model& model, int shards);

// The mesh of a world's ranks for the strategy. Hybrid strategies need a shard_size. `ranks`: by
// position, as Mesh takes them. Throws std::invalid_argument as Mesh does.
Mesh MeshFor(const ExecutorOptions& options, int rank, int world, std::vector<int> ranks = {});

// The schedule of `mode`, the same for all ranks of the mesh. In kEval there is one micro-batch.
Schedule ScheduleFor(const ExecutorOptions& options, const Model& model, const Mesh& mesh,
                     Mode mode);

// Whether the optimizer's state of the parameter can be codes (ops/state_codes.h): it trains, and
// each of its slices is no vector, has at least 4,096 elements and begins at a multiple of a block,
// so that no block has elements of two tensors.
inline constexpr int64_t kLeastCoded = 4096;
bool CanHaveCodes(const Parameter& parameter);

// Parameters that stay fp32 in a mixed-precision run, by name: their masters, gathered values,
// gradients and wire data. They are flat parameters of their own in their unit.
//
// Globs match the names of slices (those of the Hugging Face file): `*` stands for any run of
// characters, `?` for one, `[...]` for one of a set. A parameter is kept if a glob matches one of
// its slices; a router's weight always is (Parameter::StayPlain()).
bool KeptInFp32(const std::vector<std::string>& globs, const Parameter& parameter);

// The fault of globs[glob]: it matches no parameter, or it matches slices of a matrix that has
// other slices which no glob matches.
struct KeepMistake {
  size_t glob = 0;
  std::string message;
};
std::vector<KeepMistake> KeepMistakes(const std::vector<std::string>& globs, const Model& model);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_MODEL_LAYOUT_H_
