// How elements get from one place and form to another: a table.
// Tests: tests/trainer/engine/storage_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_MOVES_H_
#define FSDP_TRAIN_TRAINER_FSDP_MOVES_H_

#include <functional>
#include <map>
#include <tuple>

#include "trainer/core/view.h"
#include "trainer/fsdp/storage.h"
#include "trainer/fsdp/unit_memory.h"
#include "trainer/ops/quantize.h"
#include "trainer/runtime/spill_memory.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Elements, where they are.
struct Located {
  View view;
  MemoryPlace place = MemoryPlace::kDevice;
  int code = 0;
  const QuantizedTable* table = nullptr;  // kQuantizedCode, kSummandsCode: of one of them.

  bool Is(MemoryPlace at, Form form) const { return place == at && Form{view.dtype, code} == form; }
};

// A move works with it: memory of its stream, and the disk (null on a simulated device).
struct MoveContext {
  UnitMemory& memory;
  StreamId stream = StreamId::kCompute;
  SpillMemory* disk = nullptr;
};

class Moves {
 public:
  // Enqueues the move of as many elements on a stream of either end: of the host's, unless one end
  // is the device's. Views do not overlap.
  using Move = std::function<void(const MoveContext& context, Stream& stream, const Located& from,
                                  const Located& to)>;

  // Copies and casts between the device, pinned memory and a disk; what is cast on its way from
  // the host goes through Scratch::kFetch piece by piece, what goes between device and disk through
  // Scratch::kLeaving and kComing.
  Moves();

  // From one place and code to another; `cast`: also into another dtype. Takes the place of what
  // was there.
  struct Ends {
    MemoryPlace from, to;
    int from_code = 0, to_code = 0;
    bool cast = false;

    auto operator<=>(const Ends&) const = default;
  };
  void Set(const Ends& ends, Move move);

  // Throws std::logic_error where there is no such move.
  void operator()(const MoveContext& context, Stream& stream, const Located& from,
                  const Located& to) const;

 private:
  std::map<Ends, Move> moves_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_MOVES_H_
