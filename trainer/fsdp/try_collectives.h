// The largest collectives of a job, tried once before the first step.
#ifndef FSDP_TRAIN_TRAINER_FSDP_TRY_COLLECTIVES_H_
#define FSDP_TRAIN_TRAINER_FSDP_TRY_COLLECTIVES_H_

#include <map>
#include <optional>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/mesh_communicators.h"
#include "trainer/core/dtype.h"
#include "trainer/fsdp/executor_options.h"
#include "trainer/fsdp/layout.h"
#include "trainer/runtime/device.h"

namespace fsdp {

class Model;

// By group: the largest call of each kind and dtypes.
using Collectives = std::map<Group, std::vector<Communicator::Size>>;
// Those of a step's flat parameters.
Collectives LargestCollectives(const Layout& layout, const ExecutorOptions& options,
                               const Mesh& mesh);
// All of a step: of scalars, statistics, embedding tables and matrices, too. The exchanges of
// matrices that are updated whole have no number of elements here.
Collectives CollectivesOf(const Model& model, const ExecutorOptions& options, const Mesh& mesh);

// Makes each communicator try its groups' calls, and all exchanges of matrices, so that it makes
// the connections and takes the memory of these, and of no others: see Communicator::Try().
// matrix_dtype: chosen for exchanges (matrix_layout.h).
void TryCollectives(Device& device, const Model& model, const ExecutorOptions& options,
                    const MeshCommunicators& communicators,
                    std::optional<DType> matrix_dtype = std::nullopt);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_TRY_COLLECTIVES_H_
