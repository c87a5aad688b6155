#include "trainer/fsdp/moves.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "trainer/ops/cast.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/quantize.h"

namespace fsdp {
namespace {

constexpr MemoryPlace kDevice = MemoryPlace::kDevice, kPinned = MemoryPlace::kPinned,
                      kDisk = MemoryPlace::kDisk;

void CopyMove(const MoveContext&, Stream& stream, const PlacedView& from, const PlacedView& to) {
  Copy(stream, from.view, to.view);
}

void CastMove(const MoveContext&, Stream& stream, const PlacedView& from, const PlacedView& to) {
  Cast(stream, from.view, to.view);
}

// A piece after the other, each through memory that `scratch` names: `step(from, piece, to)`.
template <typename Step>
void InPieces(const MoveContext& context, Scratch scratch, const PlacedView& source,
              const PlacedView& target, const Step& step) {
  const View &from = source.view, &to = target.view;
  const int64_t n = from.NumElements();
  const ScratchBytes bytes(context.memory, scratch,
                           std::min(n, kFetchElements) * SizeOf(from.dtype), context.stream);
  const int64_t most = std::min(n, bytes.view().bytes() / SizeOf(from.dtype));
  for (int64_t at = 0; at < n; at += most) {
    const int64_t count = std::min(most, n - at);
    step(from.Slice(at, count), View(bytes.view().data, from.dtype, Shape{count}),
         to.Slice(at, count));
  }
}

void CastOnTheWay(const MoveContext& context, Stream& stream, const PlacedView& from,
                  const PlacedView& to) {
  InPieces(context, Scratch::kFetch, from, to,
           [&](const View& part, const View& piece, const View& there) {
             Copy(stream, part, piece);
             Cast(stream, piece, there);
           });
}

void ToDisk(const MoveContext& context, Stream& stream, const PlacedView& from,
            const PlacedView& to) {
  InPieces(context, Scratch::kLeaving, from, to,
           [&](const View& part, const View& piece, const View& there) {
             Copy(stream, part, piece);
             WriteSpilled(stream, context.disk, piece, there);
           });
}

void FromDisk(const MoveContext& context, Stream& stream, const PlacedView& from,
              const PlacedView& to) {
  InPieces(context, Scratch::kComing, from, to,
           [&](const View& part, const View& piece, const View& there) {
             ReadSpilled(stream, context.disk, part, piece);
             Copy(stream, piece, there);
           });
}

void Write(const MoveContext& context, Stream& stream, const PlacedView& from,
           const PlacedView& to) {
  WriteSpilled(stream, context.disk, from.view, to.view);
}

void Read(const MoveContext& context, Stream& stream, const PlacedView& from,
          const PlacedView& to) {
  ReadSpilled(stream, context.disk, from.view, to.view);
}

void QuantizeMove(const MoveContext&, Stream& stream, const PlacedView& from,
                  const PlacedView& to) {
  Quantize(stream, from.view, *to.table, to.view);
}

void DequantizeMove(const MoveContext&, Stream& stream, const PlacedView& from,
                    const PlacedView& to) {
  Dequantize(stream, from.view, *from.table, to.view);
}

void SumMove(const MoveContext&, Stream& stream, const PlacedView& from, const PlacedView& to) {
  DequantizeSum(stream, from.view, *from.table, to.view);
}

}  // namespace

Moves::Moves() {
  for (const MemoryPlace from : {kDevice, kPinned}) {
    for (const MemoryPlace to : {kDevice, kPinned}) Set({from, to}, CopyMove);
  }
  Set({.from = kDevice, .to = kDevice, .cast = true}, CastMove);
  Set({.from = kPinned, .to = kPinned, .cast = true}, CastMove);
  Set({.from = kPinned, .to = kDevice, .cast = true}, CastOnTheWay);
  Set({kPinned, kDisk}, Write);
  Set({kDisk, kPinned}, Read);
  Set({kDevice, kDisk}, ToDisk);
  Set({kDisk, kDevice}, FromDisk);
  Set({kDevice, kDevice, 0, kQuantizedCode, /*cast=*/true}, QuantizeMove);
  Set({kDevice, kDevice, kQuantizedCode, 0, /*cast=*/true}, DequantizeMove);
  Set({kDevice, kDevice, kSummandsCode, 0, /*cast=*/true}, SumMove);
}

void Moves::Set(const Ends& ends, Move move) { moves_[ends] = std::move(move); }

void Moves::operator()(const MoveContext& context, Stream& stream, const PlacedView& from,
                       const PlacedView& to) const {
  const auto move =
      moves_.find({from.place, to.place, from.code, to.code, from.view.dtype != to.view.dtype});
  if (move == moves_.end()) {
    throw std::logic_error("[Moves] nothing leads from place " +
                           std::to_string(static_cast<int>(from.place)) + ", code " +
                           std::to_string(from.code) + ", " + std::string(Name(from.view.dtype)) +
                           " to place " + std::to_string(static_cast<int>(to.place)) + ", code " +
                           std::to_string(to.code) + ", " + std::string(Name(to.view.dtype)));
  }
  move->second(context, stream, from, to);
}

}  // namespace fsdp
