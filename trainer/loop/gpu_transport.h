// What the collectives of a job go over, as its ranks find out together.
#ifndef FSDP_TRAIN_TRAINER_LOOP_GPU_TRANSPORT_H_
#define FSDP_TRAIN_TRAINER_LOOP_GPU_TRANSPORT_H_

#include <memory>
#include <string>
#include <vector>

#include "trainer/comm/mesh_communicators.h"
#include "trainer/comm/nccl/nccl_communicator.h"
#include "trainer/loop/job.h"
#include "trainer/recipe/recipe.h"
#include "trainer/runtime/device.h"

namespace fsdp {

// Memory of the host; or NCCL where every rank has a GPU of its own. It refuses ranks that share
// one, so where any do, tensors of all go through pinned memory.
struct GpuTransport {
  std::shared_ptr<const NcclLibrary> nccl;  // Null: the host's memory.
  std::string note;                         // For people, a line; empty: nothing special.
};

// Who computes on what, by rank: a GPU's uuid, or "none". Whatever ranks see of their host's GPUs,
// which launchers and containers choose. All ranks call it; a world of one asks nobody.
std::vector<std::string> ExchangeGpus(const Job& job);
// Ranks that compute on this rank's GPU, this one among them; 1 without one.
int SharersOf(const std::vector<std::string>& gpus, const Job& job);

// All ranks call it; a world of one looks for nothing. Takes no memory. Throws as Together() does:
// DeviceError's exit code where NCCL cannot be used.
GpuTransport FindGpuTransport(const std::vector<std::string>& gpus, const Job& job);

// Connects groups of the job's ranks. `device`, this rank's, and `job` outlive what it returns,
// and so what that makes.
MeshCommunicators::Connect ConnectOver(const GpuTransport& transport, const Recipe& recipe,
                                       const Job& job, Device& device);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_GPU_TRANSPORT_H_
