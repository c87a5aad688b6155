#include "trainer/comm/nccl/nccl_collectives.h"

#include <algorithm>
#include <bit>

#include "trainer/comm/nccl/sum_in_order.h"
#include "trainer/core/check.h"
#include "trainer/core/round_up.h"
#include "trainer/runtime/memory.h"

namespace fsdp {
namespace {

// Slices begin where a kernel may read packs of 16 bytes.
constexpr int64_t kAlignment = 16;
constexpr int64_t kApart = 256;  // A rehearsal's result begins at a multiple of these bytes.

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kUInt8:
      return ncclUint8;
  }
  FSDP_CHECK(false) << "dtype " << static_cast<int>(dtype);
}

bool Failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

// Bytes that a rank's call reads; and whether its result lies behind them, not in place.
int64_t BytesRead(const Communicator::Size& s, int rank, int ranks) {
  if (s.layout) return s.layout->InElements(rank) * SizeOf(s.dtype);
  return (s.kind == Collective::kAllReduce ? 1 : ranks) * s.n * SizeOf(s.dtype);
}

bool IsApart(const Communicator::Size& s) {
  return s.kind == Collective::kAllToAll || s.result != s.dtype;
}

}  // namespace

int64_t RehearsalBytes(const Communicator::Size& s, int rank, int ranks) {
  const int64_t read = BytesRead(s, rank, ranks);
  if (!IsApart(s)) return read;
  const int64_t written = s.layout ? s.layout->OutElements(rank) * SizeOf(s.dtype)
                          : s.kind == Collective::kAllToAll ? read
                                                            : s.n * SizeOf(s.result);
  return RoundUp(read, kApart) + std::max<int64_t>(1, written);
}

CollectiveCall RehearsalOf(const Communicator::Size& s, int rank, int ranks, std::byte* memory) {
  CollectiveCall call;
  call.kind = s.kind;
  call.dtype = s.dtype;
  call.result = s.kind == Collective::kReduceScatter ? s.result : s.dtype;
  call.n = s.layout ? s.layout->total() : s.n;
  call.layout = s.layout;
  call.layout_hash = s.layout ? s.layout->hash() : 0;
  call.in = call.out = memory;
  std::byte* const mine = memory + rank * s.n * SizeOf(s.dtype);
  if (s.kind == Collective::kAllGather) call.in = mine;
  if (s.kind == Collective::kReduceScatter) call.out = mine;
  if (IsApart(s)) call.out = memory + RoundUp(BytesRead(s, rank, ranks), kApart);
  return call;
}

void NcclCollectives::Run(CudaStreamHandle stream, const CollectiveCall& call) {
  if (call.n == 0) return Meet(stream);
  const ncclDataType_t type = TypeOf(call.dtype);
  switch (call.kind) {
    case Collective::kAllGather:
      return AllGather(stream, call.dtype, call.n, call.in, call.out);
    case Collective::kReduceScatter:
      return ReduceScatter(stream, call);
    case Collective::kAllReduce:
      return AllReduce(stream, call);
    case Collective::kAllToAll:
      if (call.layout) return Exchange(stream, call);
      return Do(stream, "ncclAlltoAll", [&](const NcclLibrary& nccl, ncclComm_t comm) {
        return nccl.AlltoAll(call.in, call.out, call.n, type, comm, stream);
      });
    case Collective::kBroadcast:
      return Do(stream, "ncclBroadcast", [&](const NcclLibrary& nccl, ncclComm_t comm) {
        return nccl.Broadcast(call.in, call.out, call.n, type, call.root, comm, stream);
      });
  }
}

void NcclCollectives::Do(CudaStreamHandle stream, const char* what, const NcclLink::Call& call) {
  stream.WillPut(kOperationsOfNccl);
  link_.Do(what, call);
}

// NCCL skips what is empty; here ranks meet in it, as in any other call.
void NcclCollectives::Meet(CudaStreamHandle stream) {
  Do(stream, "ncclAllReduce", [&](const NcclLibrary& nccl, ncclComm_t comm) {
    return nccl.AllReduce(meeting_.data, meeting_.data, 1, ncclUint8, ncclSum, comm, stream);
  });
}

void NcclCollectives::AllGather(CudaStreamHandle stream, DType dtype, int64_t n,
                                const std::byte* shard, std::byte* full) {
  Do(stream, "ncclAllGather", [&](const NcclLibrary& nccl, ncclComm_t comm) {
    return nccl.AllGather(shard, full, n, TypeOf(dtype), comm, stream);
  });
}

int64_t NcclCollectives::LargestSlice(DType dtype) const {
  const int64_t bytes = staging_.bytes() / size_ / kAlignment * kAlignment;
  FSDP_CHECK_LE(kAlignment, bytes) << "staging memory of " << staging_.bytes() << " bytes";
  return bytes / SizeOf(dtype);
}

void NcclCollectives::ReduceScatter(CudaStreamHandle stream, const CollectiveCall& call) {
  if (OverwritesInput(call)) return SumAndWiden(stream, call);
  if (!IsOurs(call)) {
    return Do(stream, "ncclReduceScatter", [&](const NcclLibrary& nccl, ncclComm_t comm) {
      return nccl.ReduceScatter(call.in, call.out, call.n, TypeOf(call.dtype), ncclSum, comm,
                                stream);
    });
  }
  const int64_t most = LargestSlice(call.dtype);
  for (int64_t begin = 0; begin < call.n; begin += most) {
    SumSlices(stream, call, call.in + begin * SizeOf(call.dtype), call.n,
              std::min(most, call.n - begin), call.out + begin * SizeOf(call.result));
  }
}

void NcclCollectives::SumAndWiden(CudaStreamHandle stream, const CollectiveCall& call) {
  auto* const full = const_cast<std::byte*>(call.in);  // Communicator::ReduceScatter() allows it.
  std::byte* const mine = full + rank_ * call.bytes();
  const float divisor =
      call.dtype == DType::kFloat16 ? std::bit_floor(static_cast<unsigned>(size_)) : 1;
  if (divisor > 1) {
    SumInOrderCuda(
        stream,
        {.dtype = call.dtype, .result = call.dtype, .n = size_ * call.n, .factor = 1 / divisor},
        HostAddress(full), HostAddress(full), HostAddress(full));
  }
  Do(stream, "ncclReduceScatter", [&](const NcclLibrary& nccl, ncclComm_t comm) {
    return nccl.ReduceScatter(full, mine, call.n, TypeOf(call.dtype), ncclSum, comm, stream);
  });
  SumInOrderCuda(stream,
                 {.dtype = call.dtype, .result = call.result, .n = call.n, .factor = divisor},
                 HostAddress(mine), HostAddress(mine), HostAddress(call.out));
}

// A reduce-scatter and an all-gather of each piece; what is too little to be shared out, whole.
void NcclCollectives::AllReduce(CudaStreamHandle stream, const CollectiveCall& call) {
  if (!IsOurs(call)) {
    return Do(stream, "ncclAllReduce", [&](const NcclLibrary& nccl, ncclComm_t comm) {
      return nccl.AllReduce(call.in, call.out, call.n, TypeOf(call.dtype), ncclSum, comm, stream);
    });
  }
  const int64_t element = SizeOf(call.dtype), most = LargestSlice(call.dtype);
  if (call.bytes() <= std::min(kNcclWholeBytes, most * element)) {
    return SumWhole(stream, call, call.out, call.n);
  }
  for (int64_t begin = 0; begin < call.n; begin += most * size_) {
    const int64_t n = std::min(most * size_, call.n - begin), slice = n / size_;
    std::byte* const data = call.out + begin * element;
    if (slice > 0) {
      std::byte* const mine = data + rank_ * slice * element;
      SumSlices(stream, call, data, slice, slice, mine);
      AllGather(stream, call.dtype, slice, mine, data);
    }
    if (const int64_t rest = n % size_; rest > 0) {
      SumWhole(stream, call, data + slice * size_ * element, rest);
    }
  }
}

void NcclCollectives::SumSlices(CudaStreamHandle stream, const CollectiveCall& call,
                                const std::byte* data, int64_t pitch, int64_t n, std::byte* out) {
  const int64_t element = SizeOf(call.dtype), stride = LargestSlice(call.dtype);
  Do(stream, "ncclSend and ncclRecv", [&](const NcclLibrary& nccl, ncclComm_t comm) {
    const ncclDataType_t type = TypeOf(call.dtype);
    ncclResult_t first = nccl.GroupStart();
    const auto keep = [&](ncclResult_t result) {
      if (!Failed(first)) first = result;
    };
    for (int i = 1; i < size_; ++i) {
      const int peer = (rank_ + i) % size_;
      keep(nccl.Send(data + peer * pitch * element, n, type, peer, comm, stream));
      keep(nccl.Recv(staging_.data + peer * stride * element, n, type, peer, comm, stream));
    }
    keep(nccl.GroupEnd());
    return first;
  });
  Sum(stream, call, data + rank_ * pitch * element, stride, n, out);
}

// Every pair of ranks is in the group, also where it has nothing for each other.
void NcclCollectives::Exchange(CudaStreamHandle stream, const CollectiveCall& call) {
  Do(stream, "ncclSend and ncclRecv", [&](const NcclLibrary& nccl, ncclComm_t comm) {
    const ncclDataType_t type = TypeOf(call.dtype);
    const int64_t element = SizeOf(call.dtype);
    ncclResult_t first = nccl.GroupStart();
    const auto keep = [&](ncclResult_t result) {
      if (!Failed(first)) first = result;
    };
    for (int i = 0; i < size_; ++i) {
      const int peer = (rank_ + i) % size_;
      const Stretch sent = SentOf(call, rank_, peer), arrives = ArrivedOf(call, rank_, peer);
      keep(nccl.Send(call.in + sent.begin * element, sent.count, type, peer, comm, stream));
      keep(nccl.Recv(call.out + arrives.begin * element, arrives.count, type, peer, comm, stream));
    }
    keep(nccl.GroupEnd());
    return first;
  });
}

void NcclCollectives::SumWhole(CudaStreamHandle stream, const CollectiveCall& call, std::byte* data,
                               int64_t n) {
  AllGather(stream, call.dtype, n, data, staging_.data);
  Sum(stream, call, data, n, n, data);
}

void NcclCollectives::Sum(CudaStreamHandle stream, const CollectiveCall& call, const std::byte* own,
                          int64_t stride, int64_t n, std::byte* out) {
  SumInOrderCuda(stream, {call.dtype, call.result, rank_, size_, n, stride}, HostAddress(own),
                 HostAddress(staging_.data), HostAddress(out));
}

}  // namespace fsdp
