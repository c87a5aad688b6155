// A mapped page whose file has lost it, by becoming shorter or by an error of the disk or network,
// raises SIGBUS. In a guarded range the handler puts zeros in place of it and of all that follows,
// remembers that it did, and the reader goes on: no thread dies, and whoever asks afterwards knows
// that what was read is nothing. Elsewhere the signal does what it did without us.
// Tests: tests/trainer/data/data_files_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_MAPPING_GUARD_H_
#define FSDP_TRAIN_TRAINER_DATA_MAPPING_GUARD_H_

#include <cstddef>

namespace fsdp {

namespace internal {
struct GuardedRange;
}

class MappingGuard {
 public:
  // Of one mapping, page-aligned, that outlives this. Any thread may read it.
  MappingGuard(const void* begin, size_t bytes);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  // Whether any of it has been replaced by zeros. What a thread read before it asks is what the
  // answer is about.
  bool lost() const;

 private:
  internal::GuardedRange* range_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_MAPPING_GUARD_H_
