// A mapped page raises SIGBUS when its file has lost it, by becoming shorter or by an error of the
// disk or network. In a guarded range the handler replaces that page and all later ones by zeros,
// remembers that, and the reader goes on: no thread dies, and the owner can ask afterwards whether
// the bytes were real. Elsewhere the signal keeps its earlier effect.
// Reading by pread(2) instead would need a descriptor for each of thousands of files.
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
  // Guards one mapping, page-aligned, that outlives this. Any thread may read the mapping.
  MappingGuard(const void* begin, size_t bytes);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  // Whether any of it has been replaced by zeros. The answer covers the bytes that the thread read
  // before the call.
  bool lost() const;

 private:
  internal::GuardedRange* range_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_MAPPING_GUARD_H_
