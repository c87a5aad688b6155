#include "trainer/ops/matrix_pieces.h"

#include <algorithm>

#include "trainer/ops/arguments.h"
#include "trainer/ops/matrix_backends.h"
#include "trainer/runtime/operation.h"

namespace fsdp {
namespace {

constexpr int64_t kRows = 16;  // Rows that are moved together: a cache line of a column.

// Moves the piece's elements in rows [begin, end) of the matrix. put(packed, spread) moves one.
template <typename Put>
void MoveRows(const SpreadPiece& p, int64_t begin, int64_t end, const Put& put) {
  const int64_t to_packed = p.packed - p.first, last = p.first + p.count;
  if (p.column_pitch == 1) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = std::max(p.first, r * p.width), to = std::min(last, (r + 1) * p.width);
      const int64_t to_spread = p.begin + r * p.row_pitch - r * p.width;
      for (int64_t i = from; i < to; ++i) put(i + to_packed, i + to_spread);
    }
    return;
  }
  for (int64_t c = 0; c < p.width; ++c) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t i = r * p.width + c;
      if (i < p.first || i >= last) continue;
      put(i + to_packed, p.begin + r * p.row_pitch + c * p.column_pitch);
    }
  }
}

template <typename From, typename To>
void Move(ThreadPool& pool, const SpreadPiece& p, bool pack, float scale, const From* from,
          To* to) {
  const int64_t first = p.first / p.width, end = (p.first + p.count + p.width - 1) / p.width;
  const int64_t groups = (end - first + kRows - 1) / kRows;
  pool.ParallelFor(groups, 1, [&](int64_t begin_group, int64_t end_group) {
    for (int64_t g = begin_group; g < end_group; ++g) {
      const int64_t row = first + g * kRows, stop = std::min(end, row + kRows);
      if (pack) {
        MoveRows(p, row, stop, [&](int64_t packed, int64_t spread) {
          to[packed] = static_cast<To>(static_cast<float>(from[spread]));
        });
      } else {
        MoveRows(p, row, stop, [&](int64_t packed, int64_t spread) {
          to[spread] = static_cast<To>(scale * static_cast<float>(from[packed]));
        });
      }
    }
  });
}

void MovePiecesCpu(ThreadPool& pool, const std::vector<SpreadPiece>& pieces, bool pack, float scale,
                   const ConstView& from, const View& to) {
  const auto run = [&](const auto* source, auto* target) {
    for (const SpreadPiece& piece : pieces) Move(pool, piece, pack, scale, source, target);
  };
  const bool wide = from.dtype == DType::kFloat32;
  if (to.dtype == DType::kFloat32) {
    wide ? run(from.As<float>(), to.As<float>()) : run(from.As<BFloat16>(), to.As<float>());
  } else {
    wide ? run(from.As<float>(), to.As<BFloat16>()) : run(from.As<BFloat16>(), to.As<BFloat16>());
  }
}

void Check(const Arguments& args, const std::vector<SpreadPiece>& pieces, const ConstView& spread,
           const ConstView& packed) {
  for (const auto& [name, view] : {std::pair("spread", spread), {"packed", packed}}) {
    args.CheckDType(name, view.dtype, {DType::kFloat32, DType::kBFloat16});
    args.CheckElements(name, view, view.dtype, view.NumElements());
  }
  args.CheckDisjoint("packed", packed, "spread", spread);
  for (const SpreadPiece& p : pieces) {
    args.Require(p.first >= 0 && p.count > 0 && p.width > 0 && p.packed >= 0,
                 "a piece is empty or begins below 0");
    args.Require(p.packed + p.count <= packed.NumElements(), "a piece leaves packed");
    // Both pitches are positive: a piece's least element is its first, or the first of its second
    // row, and its greatest its last, or the last of the row before.
    args.Require(p.row_pitch > 0 && p.column_pitch > 0, "a piece's pitches, want > 0");
    const int64_t last = p.first + p.count - 1;
    const auto at = [&](int64_t r, int64_t c) {
      return p.begin + r * p.row_pitch + c * p.column_pitch;
    };
    int64_t least = at(p.first / p.width, p.first % p.width);
    int64_t most = at(last / p.width, last % p.width);
    if (last / p.width > p.first / p.width) {
      least = std::min(least, at(p.first / p.width + 1, 0));
      most = std::max(most, at(last / p.width - 1, p.width - 1));
    }
    args.Require(least >= 0 && most < spread.NumElements(), "a piece leaves spread");
  }
}

void Enqueue(Stream& stream, const char* op, const std::vector<SpreadPiece>& pieces, bool pack,
             float scale, const ConstView& from, const View& to) {
  if (pieces.empty()) return;
  double elements = 0;
  for (const SpreadPiece& piece : pieces) elements += static_cast<double>(piece.count);
  const Cost cost{.flops = pack ? 0 : elements,
                  .bytes_read = elements * static_cast<double>(SizeOf(from.dtype)),
                  .bytes_written = elements * static_cast<double>(SizeOf(to.dtype))};
  stream.Enqueue({op,
                  {from},
                  {to},
                  {{cost, {.launches = static_cast<int64_t>(pieces.size())}}},
                  {OnCpu(MovePiecesCpu, pieces, pack, scale, from, to),
                   OnCuda(MovePiecesCuda, pieces, pack, scale, from, to)}});
}

}  // namespace

void PackPieces(Stream& stream, const std::vector<SpreadPiece>& pieces, ConstView spread,
                View packed) {
  constexpr const char* kOp = "pack_pieces";
  Check(Arguments(kOp), pieces, spread, packed);
  Enqueue(stream, kOp, pieces, /*pack=*/true, 1, spread, packed);
}

void SpreadPieces(Stream& stream, const std::vector<SpreadPiece>& pieces, float scale,
                  ConstView packed, View spread) {
  constexpr const char* kOp = "spread_pieces";
  Check(Arguments(kOp), pieces, spread, packed);
  Enqueue(stream, kOp, pieces, /*pack=*/false, scale, packed, spread);
}

}  // namespace fsdp
