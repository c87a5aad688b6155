#include "trainer/ops/cuda/elements.h"
#include "trainer/ops/feature_backends.h"

namespace fsdp {
namespace {

// kTake: a row of `listed` from its place; otherwise to it.
template <typename T, bool kTake>
__global__ void MoveRows(const T* from, const int64_t* places, int64_t rows, int64_t width,
                         bool packs, T* to) {
  constexpr int kPiece = kPack<T>;
  ForEachPiece(rows, CeilDiv(width, kPiece), [&](int64_t row, int64_t piece) {
    const int64_t col = piece * kPiece, count = width - col, place = places[row];
    if (!kTake && place < 0) return;
    Elements<T, kPiece> elements{};
    if (place >= 0) elements.Read(from + (kTake ? place : row) * width + col, count, packs);
    elements.Write(to + (kTake ? row : place) * width + col, count, packs);
  });
}

template <bool kTake>
void Move(CudaStreamHandle stream, const ConstView& from, const ConstView& places, const View& to) {
  const int64_t width = to.shape[1], rows = places.NumElements();
  const auto move = [&]<typename T>(Is<T>) {
    const RowGrid on = GridOfRows(rows, CeilDiv(width, kPack<T>));
    Launch<MoveRows<T, kTake>>(
        stream, on.grid, on.block, 0, from.As<T>(), places.As<int64_t>(), rows, width,
        InPacks(from.As<T>(), width) && InPacks(to.As<T>(), width), to.As<T>());
  };
  to.dtype == DType::kFloat32 ? move(Is<float>()) : move(Is<__nv_bfloat16>());
}

__device__ int64_t RoundOfRow(int64_t row, int log2_rounds) {
  return log2_rounds == 0 ? 0
                          : static_cast<int64_t>(static_cast<uint64_t>(row) * kRowKeyFactor >>
                                                 (64 - log2_rounds));
}

// A row of threads an owner.
__global__ void PlacesKernel(int64_t round, int log2_rounds, const int64_t* rows,
                             const int32_t* owners, int64_t count, int64_t capacity,
                             int64_t* places, int64_t* ids) {
  ForEachPiece(count, capacity, [&](int64_t owner, int64_t i) {
    int64_t begin = owners[owner], behind = owners[owner + 1];
    const int64_t end = behind;
    while (begin < behind) {  // The first that is of this round, or of a later one.
      const int64_t middle = (begin + behind) / 2;
      if (RoundOfRow(rows[middle], log2_rounds) < round) {
        begin = middle + 1;
      } else {
        behind = middle;
      }
    }
    const int64_t at = begin + i;
    const bool there = at < end && RoundOfRow(rows[at], log2_rounds) == round;
    places[owner * capacity + i] = there ? at : -1;
    ids[owner * capacity + i] = there ? rows[at] : -1;
  });
}

}  // namespace

void TakeRowsCuda(CudaStreamHandle stream, const ConstView& from, const ConstView& places,
                  const View& to) {
  Move<true>(stream, from, places, to);
}

void PutRowsCuda(CudaStreamHandle stream, const ConstView& from, const ConstView& places,
                 const View& to) {
  Move<false>(stream, from, places, to);
}

void PlacesOfRoundCuda(CudaStreamHandle stream, const ExchangeRound& round, const ConstView& rows,
                       const ConstView& owners, const View& places, const View& ids) {
  const RowGrid on = GridOfRows(places.shape[0], places.shape[1]);
  Launch<PlacesKernel>(stream, on.grid, on.block, 0, round.round, round.log2_rounds,
                       rows.As<int64_t>(), owners.As<int32_t>(), places.shape[0], places.shape[1],
                       places.As<int64_t>(), ids.As<int64_t>());
}

}  // namespace fsdp
