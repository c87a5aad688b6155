// Where spilled tensors lie in their file.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_SPILL_LAYOUT_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_SPILL_LAYOUT_H_

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp {

// What offsets in a spill file are multiples of, in bytes: no disk's blocks are larger.
inline constexpr int64_t kSpillAlignment = 4096;

struct SpillTensor {
  int unit = 0;       // From 0 on; a unit may have none.
  int64_t bytes = 0;  // >= 0.
};

// Offsets are multiples of kSpillAlignment; a tensor has the bytes up to the next one's.
struct SpillLayout {
  struct Range {
    int64_t begin = 0, end = 0;
  };
  std::vector<int64_t> offsets;  // Of each tensor.
  std::vector<Range> units;      // A unit's tensors lie side by side, in the order given.
  int64_t bytes = 0;             // All.
};

// Units in the order of their numbers, whatever that of the tensors. Throws std::invalid_argument
// for a negative number, or more bytes than can be counted.
SpillLayout LayOutSpill(std::span<const SpillTensor> tensors);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_SPILL_LAYOUT_H_
