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

// By group: the largest call of each kind and dtypes, over all flat parameters. The step's scalars
// and a model's statistics are left out.
std::map<Group, std::vector<Communicator::Size>> LargestCollectives(const Layout& layout,
                                                                    const ExecutorOptions& options,
                                                                    const Mesh& mesh);

// Makes each communicator try its groups' largest calls, those of embedding tables and statistics
// among them, and all exchanges of matrices that are updated whole: see Communicator::Try().
// matrix_dtype: chosen for these (matrix_layout.h).
void TryCollectives(Device& device, const Model& model, const ExecutorOptions& options,
                    const MeshCommunicators& communicators,
                    std::optional<DType> matrix_dtype = std::nullopt);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_TRY_COLLECTIVES_H_
