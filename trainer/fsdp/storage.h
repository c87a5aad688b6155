// A table of the place and form of everything that is kept or made for a flat parameter. It has a
// row for each flat parameter and each Resource, and follows from the layout and the schedule
// alone. The executor, and through it snapshots and optimizers, reads the table. Moves between its
// rows are found by place and form (moves.h). The schedule is made before, from ScheduleOptions'
// sets of units.
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

// How elements are stored: plainly in a dtype, or by a code that Moves can encode and decode. Code
// 0: plainly.
struct Form {
  DType dtype = DType::kFloat32;
  int code = 0;

  bool operator==(const Form&) const = default;
};

inline constexpr int kQuantizedCode = 1;  // Bytes of ops/quantize.h.
inline constexpr int kSummandsCode = 2;   // Such bytes of several ranks, [ranks, bytes], to be
                                          // added up.

enum class ShardExtent {
  kShard,  // This rank's elements.
  kPart,   // This rank's elements of the secondary copy.
  kWhole
};

enum class Home {
  kNone,  // It does not exist.
  kRun,   // Memory of its own, as long as the run.
  kStep,  // As kRun, for values that each step makes anew before it uses them.
  kUnit,  // Its unit's memory, from the action that takes it to the one that gives it back.
  kSlot,  // A slot in host memory.
  kSame   // Another resource's memory.
};

struct StorageRow {
  Home home = Home::kNone;
  Resource same = Resource::kMaster;  // kSame.
  MemoryPlace place = MemoryPlace::kDevice;
  Form form = {};
  ShardExtent extent = ShardExtent::kShard;
  int64_t elements = 0;
  int64_t offset = 0;  // kUnit, kSlot: bytes, in the unit's memory.

  int64_t bytes() const { return elements * SizeOf(form.dtype); }
};

class Storage {
 public:
  // `train`: a training step's schedule. `change`, for tests, may be null: changes a row before
  // memory is taken.
  using Change = std::function<void(Resource what, int flat, StorageRow& row)>;
  Storage(const Layout& layout, const Schedule& train, bool averages,
          const Change& change = nullptr);

  // The row of the resource, or of the one whose memory it shares.
  const StorageRow& At(Resource what, int flat) const;
  // The row as declared, kSame included.
  const StorageRow& Declared(Resource what, int flat) const {
    return rows_[flat][static_cast<int>(what)];
  }
  bool Has(Resource what, int flat) const { return Declared(what, flat).home != Home::kNone; }
  bool Same(Resource a, Resource b, int flat) const { return &At(a, flat) == &At(b, flat); }
  MemoryPlace PlaceOf(Resource what, int flat) const { return At(what, flat).place; }
  // Where the flat parameter is updated: on the device, or by the host in pinned memory.
  MemoryPlace UpdatePlace(int flat) const;

  // kUnit, kSlot: bytes of all flat parameters of the unit, one behind the other at multiples of
  // 64. LargestBytes(): those of the unit that has most.
  int64_t BytesOf(Resource what, int unit) const;
  int64_t LargestBytes(Resource what) const;
  // Bytes of the unit's largest flat parameter: for resources that exist one at a time.
  int64_t LargestRow(Resource what, int unit) const;
  // The most elements that are cast at a time on the way from the host, piece by piece. 0: nothing
  // is cast there.
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
