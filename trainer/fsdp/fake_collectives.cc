#include "trainer/fsdp/fake_collectives.h"

#include <algorithm>

#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"

namespace fsdp {

void FakeAllGather(Stream& stream, ConstView shard, View full) {
  const int64_t n = shard.NumElements(), all = full.NumElements();
  if (n == 0) return;
  if (shard.data != full.data) {  // First place first; where that is the shard's own it is there.
    Copy(stream, shard, full.Slice(0, n));
  }
  // Then as much again as there is.
  for (int64_t done = n; done < all; done *= 2) {
    const int64_t more = std::min(done, all - done);
    Copy(stream, full.Slice(0, more), full.Slice(done, more));
  }
}

void FakeReduceScatter(Stream& stream, ConstView full, int rank, View shard) {
  const int64_t n = shard.NumElements();
  if (n == 0) return;
  Cast(stream, full.Slice(rank * n, n), shard);
  FakeAllReduce(stream, static_cast<int>(full.NumElements() / n), shard);
}

void FakeAllReduce(Stream& stream, int ranks, View data) {
  Scale(stream, static_cast<float>(ranks), data);
}

}  // namespace fsdp
