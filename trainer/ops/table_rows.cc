#include "trainer/ops/table_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "trainer/ops/arguments.h"
#include "trainer/ops/feature_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kGrain = 32;  // Rows.

size_t RowBytes(const ConstView& rows) {
  return static_cast<size_t>(rows.shape[1] * SizeOf(rows.dtype));
}

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

// `placed`, which the places name rows of, and `listed`, a row for each place.
Cost CheckRows(const Arguments& args, const char* placed_name, const ConstView& placed,
               const ConstView& places, const char* listed_name, const ConstView& listed) {
  args.CheckDType(listed_name, listed.dtype, {DType::kFloat32, DType::kBFloat16});
  args.CheckRank(listed_name, listed, listed.dtype, 2);
  args.CheckRank(placed_name, placed, listed.dtype, 2);
  args.Check("places", places, DType::kInt64, {listed.shape[0]});
  args.Check(placed_name, placed, listed.dtype, {placed.shape[0], listed.shape[1]});
  args.CheckDisjoint(listed_name, listed, placed_name, placed);
  return {.bytes_read = static_cast<double>(places.bytes() + listed.bytes()),
          .bytes_written = static_cast<double>(listed.bytes())};
}

}  // namespace

void TakeRows(Stream& stream, ConstView from, ConstView places, View to) {
  constexpr const char* kOp = "take_rows";
  const Arguments args(kOp);
  const Cost cost = CheckRows(args, "from", from, places, "to", to);
  args.CheckDisjoint("to", to, "places", places);
  stream.Enqueue({kOp,
                  {from, places},
                  {to},
                  {cost},
                  {.cpu = OnCpu(TakeRowsCpu, from, places, to),
                   .cuda = OnCuda(TakeRowsCuda, from, places, to)}});
}

void PutRows(Stream& stream, ConstView from, ConstView places, View to) {
  constexpr const char* kOp = "put_rows";
  const Arguments args(kOp);
  const Cost cost = CheckRows(args, "to", to, places, "from", from);
  args.CheckDisjoint("to", to, "places", places);
  // `to` is also declared as read, because rows without a place stay.
  stream.Enqueue({kOp,
                  {from, places, to},
                  {to},
                  {cost},
                  {.cpu = OnCpu(PutRowsCpu, from, places, to),
                   .cuda = OnCuda(PutRowsCuda, from, places, to)}});
}

void PlacesOfRound(Stream& stream, const ExchangeRound& round, ConstView rows, ConstView owners,
                   View places, View ids) {
  constexpr const char* kOp = "places_of_round";
  const Arguments args(kOp);
  args.Require(round.log2_rounds >= 0 && round.log2_rounds <= 62, "log2_rounds, want in [0, 62]");
  args.Require(round.round >= 0 && round.round >> round.log2_rounds == 0,
               "round, want in [0, 2^log2_rounds)");
  args.CheckRank("rows", rows, DType::kInt64, 1);
  args.CheckRank("places", places, DType::kInt64, 2);
  args.Check("ids", ids, DType::kInt64, places.shape);
  args.Check("owners", owners, DType::kInt32, {places.shape[0] + 1});
  for (const auto& [name, view] : {std::pair("rows", rows), std::pair("owners", owners)}) {
    args.CheckDisjoint("places", places, name, view);
    args.CheckDisjoint("ids", ids, name, view);
  }
  args.CheckDisjoint("places", places, "ids", ids);
  const Cost cost{.bytes_read = static_cast<double>(ids.bytes() + owners.bytes()),
                  .bytes_written = static_cast<double>(places.bytes() + ids.bytes())};
  stream.Enqueue({kOp,
                  {rows, owners},
                  {places, ids},
                  {cost},
                  {.cpu = OnCpu(PlacesOfRoundCpu, round, rows, owners, places, ids),
                   .cuda = OnCuda(PlacesOfRoundCuda, round, rows, owners, places, ids)}});
}

}  // namespace fsdp
