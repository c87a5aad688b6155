// A long copy in two steps that run side by side: one reads a block, the other uses it.
#ifndef FSDP_TRAIN_TRAINER_CORE_READ_AHEAD_H_
#define FSDP_TRAIN_TRAINER_CORE_READ_AHEAD_H_

#include <cstdint>
#include <functional>

namespace fsdp {

// One step for elements [begin, begin + count) of the copy, in one of two buffers, 0 and 1, by
// turns.
using BlockStep = std::function<void(int buffer, int64_t begin, int64_t count)>;

// Cuts [0, size) into blocks of `block`, the last one shorter, and calls `read` and then `use` for
// each, in order. `use` runs on the calling thread. `read` of the next block runs meanwhile on a
// thread of its own, which has ended when the call returns or throws; the first block is read on
// the calling thread. Throws what a step throws; no step is called after that.
void ReadAhead(int64_t size, int64_t block, const BlockStep& read, const BlockStep& use);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_READ_AHEAD_H_
