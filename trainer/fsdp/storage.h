// Where everything that is kept or made of a flat parameter lies, and in what form: a table with a
// row for each flat parameter and each thing, which follows from the layout and the schedule alone.
// The executor, and through it snapshots and optimizers, reads it, and moves between its rows are
// found by place and form (moves.h). The schedule is made before, of ScheduleOptions' sets of
// units.
// Tests: tests/trainer/engine/storage_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_STORAGE_H_
#define FSDP_TRAIN_TRAINER_FSDP_STORAGE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/core/dtype.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/schedule.h"
#include "trainer/runtime/memory.h"

namespace fsdp {

// How elements are written down: as they are, in a dtype, or by a code, of which Moves knows the
// way there and back. Code 0: as they are.
struct Form {
  DType dtype = DType::kFloat32;
  int code = 0;

  bool operator==(const Form&) const = default;
};

inline constexpr int kQuantizedCode = 1;  // Bytes of ops/quantize.h.
inline constexpr int kSummandsCode = 2;   // The same of several ranks, [ranks, bytes]: to be added.

enum class ShardExtent {
  kShard,  // This rank's elements.
  kPart,   // Those that it keeps of the secondary copy.
  kWhole
};

enum class Home {
  kNone,  // There is no such thing.
  kRun,   // Memory of its own, as long as the run.
  kStep,  // The same, of what is made anew in each step, before it is used.
  kUnit,  // Its unit's, from the action that takes it to the one that gives it back.
  kSlot,  // A slot in host memory.
  kSame   // That of another thing.
};

struct StorageRow {
  Home home = Home::kNone;
  Resource same = Resource::kMaster;  // kSame.
  MemoryPlace place = MemoryPlace::kDevice;
  Form form = {};
  ShardExtent extent = ShardExtent::kShard;
  int64_t elements = 0;
  int64_t offset = 0;  // kUnit, kSlot: bytes, in the memory of the unit.

  int64_t bytes() const { return elements * SizeOf(form.dtype); }
};

class Storage {
 public:
  // `train`: of a training step. `change`, for tests, may be null: of a row before memory is taken.
  using Change = std::function<void(Resource what, int flat, StorageRow& row)>;
  Storage(const Layout& layout, const Schedule& train, bool averages,
          const Change& change = nullptr);

  // The row of the thing, or of that whose memory it shares.
  const StorageRow& At(Resource what, int flat) const;
  // As it was declared: kSame, too.
  const StorageRow& Declared(Resource what, int flat) const {
    return rows_[flat][static_cast<int>(what)];
  }
  bool Has(Resource what, int flat) const { return Declared(what, flat).home != Home::kNone; }
  bool Same(Resource a, Resource b, int flat) const { return &At(a, flat) == &At(b, flat); }
  MemoryPlace PlaceOf(Resource what, int flat) const { return At(what, flat).place; }
  // Where the flat parameter is updated: on the device, or by the host in pinned memory.
  MemoryPlace UpdatePlace(int flat) const;

  // kUnit, kSlot: of all flat parameters of the unit, one behind the other at multiples of 64; and
  // of the unit that has most.
  int64_t BytesOf(Resource what, int unit) const;
  int64_t LargestBytes(Resource what) const;
  // The same of one flat parameter, that which has most: for things that are there one at a time.
  int64_t LargestRow(Resource what, int unit) const;
  // Elements in which what comes from the host in another form is cast, piece by piece: at most so
  // many at a time. 0: nothing is.
  int64_t FetchElements() const { return fetch_elements_; }

 private:
  void AddShards(int unit, int flat, const ScheduleOptions& train);
  void AddInUse(int unit, int flat, const ScheduleOptions& train);
  void AddQuantizedReduce(int flat, const ScheduleOptions& train);
  void PlaceInUnits();
  StorageRow& Row(Resource what, int flat) { return rows_[flat][static_cast<int>(what)]; }

  const Layout& layout_;
  std::vector<std::array<StorageRow, kNumResources>> rows_;  // By flat parameter.
  int64_t fetch_elements_ = 0;
};

// A cast on the way from the host goes in pieces of this many elements, 4 MiB.
inline constexpr int64_t kFetchElements = int64_t{1} << 20;

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_STORAGE_H_
