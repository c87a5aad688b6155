// NCCL's functions, of a library that is found when the program runs, and one rank's end of an NCCL
// communicator: every call of NCCL's that has one goes through here.
// Tests: tests/trainer/comm/nccl_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_LINK_H_
#define FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_LINK_H_

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
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

// Any thread may call any function: NCCL sees one call at a time. NCCL does not wait for peers in a
// call (config.blocking = 0). But where a driver does not return, neither does a launch. An abort
// beside that call would free what it uses, so the communicator is left behind with its thread
// (core/left_behind.h).
class NcclLink {
 public:
  // Begins to connect this rank of the thread's GPU. A collective takes at most `max_blocks`
  // multiprocessors; 0: NCCL decides. An abort may take `patience_s`. Throws CommError.
  NcclLink(std::shared_ptr<const NcclLibrary> nccl, const std::string& name, const ncclUniqueId& id,
           int rank, int size, int max_blocks, double patience_s);
  ~NcclLink() { Abort(); }
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  // Blocks until all ranks are connected, or `give_up`, asked every few ms, throws. Throws
  // CommError.
  void Connect(const std::function<void()>& give_up);

  // call(nccl, comm), and waits until what it asks for is on its stream: the first calls of a
  // communicator make connections, for which NCCL waits for the peers. Throws CommError, also
  // where an abort has come.
  using Call = std::function<ncclResult_t(const NcclLibrary& nccl, ncclComm_t comm)>;
  void Do(const char* what, const Call& call);

  // The error on the GPU or on the way to peers; empty: none so far, or another thread is in a
  // call. Never blocks.
  std::string AsyncError();

  // Ends the communicator as NCCL wants it where all is well. To be called once, with nothing in
  // flight and no call to come. Where the end takes longer than half of patience_s, or fails, it
  // is an abort.
  void Finish();

  // Ends this rank's work on the GPU; the peers' goes on waiting. To be called once. NCCL's abort
  // returns once all ranks have closed their connections, so it is left behind after
  // patience_s; and so is a communicator that another thread is inside for longer than
  // kCallPatience.
  void Abort();

 private:
  static constexpr std::chrono::milliseconds kCallPatience{500};  // An abort's, with a call.

  bool InProgress(const char* what);  // Throws CommError.
  std::string Describe(ncclResult_t error);

  const std::shared_ptr<const NcclLibrary> nccl_;
  const double patience_s_;
  std::mutex mutex_;                       // One call at a time. TSan knows no timed one.
  std::atomic<ncclComm_t> comm_{nullptr};  // Null: aborted.
};

// Throws CommError.
ncclUniqueId MakeNcclId(const NcclLibrary& nccl);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_LINK_H_
