// The way that a job's collectives go, as its ranks find out together.
#ifndef FSDP_TRAIN_TRAINER_LOOP_GPU_TRANSPORT_H_
#define FSDP_TRAIN_TRAINER_LOOP_GPU_TRANSPORT_H_

#include "trainer/comm/mesh_communicators.h"
#include "trainer/loop/choice.h"
#include "trainer/loop/job.h"
#include "trainer/loop/resolved_run.h"
#include "trainer/runtime/device.h"

namespace fsdp {

// ChoiceId::kTransport, into run.nccl: NCCL where every rank has a GPU of its own, otherwise the
// host's memory. NCCL refuses ranks that share a GPU, so where any do, tensors of all ranks go
// through pinned memory; but NCCL from 2.30.3 on takes two on a GPU where every rank's environment
// has NCCL_MULTI_RANK_GPU_ENABLE=1, which tries NCCL's half of this program on one GPU. A world of
// one looks for nothing. Ranks tell each other what they compute on. run.sharers and run.target,
// the room on a GPU, are therefore known from here on, whichever of their host's GPUs launchers and
// containers let ranks see.
const Choice& TransportChoice();

// The number of ranks that compute on this rank's GPU, as ranks have told; 1 without a GPU.
int SharersOf(const Choosing& choosing);

// The bytes that communicators of a recipe's run over NCCL take of a GPU: those that are certain,
// and with `all` those that NCCL is expected to take besides, with so many multiprocessors for a
// collective (multiprocessors.h).
PlanTarget::CommunicatorBytes BytesOverNccl(const Recipe& recipe, bool all, int blocks = 0);

// Connects groups of the run's ranks. `device` is this rank's. It and `job` outlive the function
// returned and the communicators that the function makes.
MeshCommunicators::Connect ConnectOver(const ResolvedRun& run, const Job& job, Device& device);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LOOP_GPU_TRANSPORT_H_
