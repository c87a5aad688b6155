// A long copy in two steps that go on side by side: what makes a block, and what uses it.
#ifndef FSDP_TRAIN_TRAINER_CORE_READ_AHEAD_H_
#define FSDP_TRAIN_TRAINER_CORE_READ_AHEAD_H_

#include <cstdint>
#include <functional>

namespace fsdp {

// [begin, begin + count) of what is copied, in one of two buffers: 0 or 1, by turns.
using BlockStep = std::function<void(int buffer, int64_t begin, int64_t count)>;

// [0, size) in blocks of `block`, the last one shorter: `read` for each, in order, and `use` for
// each after it, on the calling thread. While one is used the next is read on a thread of its own,
// which has ended when the call returns or throws; the first, and so a single one, is read on the
// calling thread. Throws what either throws; nothing is called after that.
void ReadAhead(int64_t size, int64_t block, const BlockStep& read, const BlockStep& use);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_READ_AHEAD_H_
