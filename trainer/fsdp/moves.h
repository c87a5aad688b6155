// A table of moves: how elements get from one place and form to another.
// Tests: tests/trainer/engine/storage_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_MOVES_H_
#define FSDP_TRAIN_TRAINER_FSDP_MOVES_H_

#include <functional>
#include <map>
#include <tuple>

#include "trainer/core/view.h"
#include "trainer/fsdp/storage.h"
#include "trainer/fsdp/unit_memory.h"
#include "trainer/ops/quantized_layout.h"
#include "trainer/runtime/spill/spill_memory.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Elements, with their place and form.
struct PlacedView {
  View view;
  MemoryPlace place = MemoryPlace::kDevice;
  int code = 0;
  const QuantizedTable* table = nullptr;  // kQuantizedCode, kSummandsCode: one rank's table.

  bool Is(MemoryPlace at, Form form) const { return place == at && Form{view.dtype, code} == form; }
};

// Resources of a move: memory of its stream, and the disk (null on a simulated device).
struct MoveContext {
  UnitMemory& memory;
  StreamId stream = StreamId::kCompute;
  SpillMemory* disk = nullptr;
};

class Moves {
 public:
  // Enqueues the move on a stream: the device's if one end lies on the device, otherwise the
  // host's. Both views have the same number of elements and do not overlap.
  using Move = std::function<void(const MoveContext& context, Stream& stream,
                                  const PlacedView& from, const PlacedView& to)>;

  // Begins with copies and casts between the device, pinned memory and a disk. Casts on the way
  // from the host go through Scratch::kFetch piece by piece. Moves between device and disk go
  // through Scratch::kLeaving and kComing.
  Moves();

  // The ends of a move: from one place and code to another; `cast`: also into another dtype. Set()
  // replaces an earlier move with these ends.
  struct Ends {
    MemoryPlace from, to;
    int from_code = 0, to_code = 0;
    bool cast = false;

    auto operator<=>(const Ends&) const = default;
  };
  void Set(const Ends& ends, Move move);

  // Throws std::logic_error where there is no such move.
  void operator()(const MoveContext& context, Stream& stream, const PlacedView& from,
                  const PlacedView& to) const;

 private:
  std::map<Ends, Move> moves_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_MOVES_H_
