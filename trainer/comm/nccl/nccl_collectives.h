// NCCL's calls for a collective.
// Tests: tests/trainer/comm/nccl_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_COLLECTIVES_H_
#define FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>

#include "trainer/comm/communicator.h"
#include "trainer/comm/nccl/nccl_communicator.h"
#include "trainer/comm/nccl/nccl_link.h"
#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream_handle.h"

namespace fsdp {

// A call of Communicator::Try(), in memory of so many bytes: in place where it may be.
int64_t RehearsalBytes(const Communicator::Size& size, int rank, int ranks);
CollectiveCall RehearsalOf(const Communicator::Size& size, int rank, int ranks, std::byte* memory);

class NcclCollectives {
 public:
  // `meeting`: a few bytes of the GPU's memory, for calls of nothing.
  NcclCollectives(NcclLink& link, int rank, int size, const NcclOptions& options,
                  const View& meeting)
      : link_(link), rank_(rank), size_(size), options_(options), meeting_(meeting) {}

  // Whether a call writes to what it reads, beside its result.
  bool OverwritesInput(const CollectiveCall& call) const {
    return call.kind == Collective::kReduceScatter && call.result != call.dtype && !IsOurs(call);
  }
  // Memory of the GPU, for one call at a time whose sum is ours: SumsHere().
  void SetStaging(const View& staging) { staging_ = staging; }

  // Puts the call on the stream. Addresses are the device's. Throws CommError, DeviceError.
  void Run(CudaStreamHandle stream, const CollectiveCall& call);

 private:
  bool IsOurs(const CollectiveCall& call) const {
    return SumsHere(options_, call.kind, call.dtype, call.result);
  }
  // Elements of the largest slice that ranks can give each other in the staging memory.
  int64_t LargestSlice(DType dtype) const;
  void Do(CudaStreamHandle stream, const char* what, const NcclLink::Call& call);
  void Meet(CudaStreamHandle stream);
  void AllGather(CudaStreamHandle stream, DType dtype, int64_t n, const std::byte* shard,
                 std::byte* full);
  void ReduceScatter(CudaStreamHandle stream, const CollectiveCall& call);
  // By NCCL, in the dtype that travels, over the call's input; then widened.
  void SumAndWiden(CudaStreamHandle stream, const CollectiveCall& call);
  void AllReduce(CudaStreamHandle stream, const CollectiveCall& call);
  // Sends each peer p `n` elements from data + p * pitch elements. The peers' slices for this rank
  // come into the staging memory, and are summed into `out` with its own.
  void SumSlices(CudaStreamHandle stream, const CollectiveCall& call, const std::byte* data,
                 int64_t pitch, int64_t n, std::byte* out);
  void Exchange(CudaStreamHandle stream, const CollectiveCall& call);
  // Every rank's `n` elements of data, summed on every rank, in place.
  void SumWhole(CudaStreamHandle stream, const CollectiveCall& call, std::byte* data, int64_t n);
  void Sum(CudaStreamHandle stream, const CollectiveCall& call, const std::byte* own,
           int64_t stride, int64_t n, std::byte* out);

  NcclLink& link_;
  const int rank_, size_;
  const NcclOptions options_;
  const View meeting_;
  View staging_;  // Elements are bytes. Empty before SetStaging().
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_NCCL_NCCL_COLLECTIVES_H_
