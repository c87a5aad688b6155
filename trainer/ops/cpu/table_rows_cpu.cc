#include "trainer/ops/cpu/table_rows_cpu.h"

#include <algorithm>
#include <cstring>

namespace fsdp {
namespace {

constexpr int64_t kGrain = 32;  // Rows.

size_t RowBytes(const ConstView& rows) {
  return static_cast<size_t>(rows.shape[1] * SizeOf(rows.dtype));
}

}  // namespace

void TakeRowsCpu(ThreadPool& pool, const ConstView& from, const ConstView& places, const View& to) {
  const size_t bytes = RowBytes(from);
  pool.ParallelFor(to.shape[0], kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t place = places.As<int64_t>()[i];
      std::byte* const row = to.data + static_cast<size_t>(i) * bytes;
      if (place < 0) {
        std::memset(row, 0, bytes);
      } else {
        std::memcpy(row, from.data + static_cast<size_t>(place) * bytes, bytes);
      }
    }
  });
}

void PutRowsCpu(ThreadPool& pool, const ConstView& from, const ConstView& places, const View& to) {
  const size_t bytes = RowBytes(from);
  pool.ParallelFor(from.shape[0], kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t place = places.As<int64_t>()[i];
      if (place < 0) continue;
      std::memcpy(to.data + static_cast<size_t>(place) * bytes,
                  from.data + static_cast<size_t>(i) * bytes, bytes);
    }
  });
}

void PlacesOfRoundCpu(ThreadPool& pool, const ExchangeRound& round, const ConstView& rows,
                      const ConstView& owners, const View& places, const View& ids) {
  const int64_t capacity = places.shape[1];
  const int64_t* const row = rows.As<int64_t>();
  pool.ParallelFor(places.shape[0], 1, [&](int64_t first, int64_t last) {
    for (int64_t owner = first; owner < last; ++owner) {
      const int64_t begin = owners.As<int32_t>()[owner], end = owners.As<int32_t>()[owner + 1];
      const int64_t* at = std::partition_point(row + begin, row + end, [&](int64_t r) {
        return RoundOf(RowKey(r), round.log2_rounds) < round.round;
      });
      int64_t* const place = places.As<int64_t>() + owner * capacity;
      int64_t* const id = ids.As<int64_t>() + owner * capacity;
      int64_t n = 0;
      for (; n < capacity && at < row + end; ++n, ++at) {
        if (RoundOf(RowKey(*at), round.log2_rounds) != round.round) break;
        place[n] = at - row;
        id[n] = *at;
      }
      std::fill(place + n, place + capacity, -1);
      std::fill(id + n, id + capacity, -1);
    }
  });
}

}  // namespace fsdp
