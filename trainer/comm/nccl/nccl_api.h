// NCCL's functions, of a library that is found when the program runs.
// Tests: tests/trainer/comm/nccl_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_API_H_
#define FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_API_H_

#include <nccl.h>

#include <string>

namespace fsdp {

// As nccl.h has them, without their prefix. NCCL is thread-safe between communicators alone.
class NcclLibrary {
 public:
  NcclLibrary();  // Throws DeviceError: why there is none to be used, and where it was looked for.

  std::string path;
  int version = 0;  // 22809 is 2.28.9.

  decltype(&ncclGetErrorString) GetErrorString;
  decltype(&ncclGetLastError) GetLastError;
  decltype(&ncclGetUniqueId) GetUniqueId;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError;
  decltype(&ncclCommFinalize) CommFinalize;
  decltype(&ncclCommDestroy) CommDestroy;
  decltype(&ncclCommAbort) CommAbort;
  decltype(&ncclAllGather) AllGather;
  decltype(&ncclReduceScatter) ReduceScatter;
  decltype(&ncclAllReduce) AllReduce;
  decltype(&ncclAlltoAll) AlltoAll;  // From 2.28 on.
  decltype(&ncclBroadcast) Broadcast;
  decltype(&ncclGroupStart) GroupStart;
  decltype(&ncclGroupEnd) GroupEnd;
  decltype(&ncclSend) Send;
  decltype(&ncclRecv) Recv;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_API_H_
