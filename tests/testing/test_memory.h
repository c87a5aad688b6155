// Where the tensors of op tests lie, and what holds a kernel to what its operation declares.
#ifndef FSDP_TRAIN_TESTS_TESTING_TEST_MEMORY_H_
#define FSDP_TRAIN_TESTS_TESTING_TEST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/runtime/device.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// Where a tensor lies. kEnd: it ends at a page, so that an access too far is seen; its first
// element is aligned only where its size is. kBegin: it begins at a page, so that its rows are
// aligned only where their length is, as those of an arena.
enum class TensorPlace { kEnd, kBegin };

class TestMemory {
 public:
  using Bytes = std::vector<std::byte>;

  virtual ~TestMemory() = default;

  // A tensor's memory until Clear(): an address for kernels, which the host must not follow.
  virtual std::byte* Allocate(int64_t bytes, TensorPlace place) = 0;
  virtual void Clear() = 0;

  // For the host, between operations. `at` lies in a tensor.
  virtual void Read(const std::byte* at, int64_t bytes, std::byte* to) const = 0;
  virtual void Write(std::byte* at, const std::byte* from, int64_t bytes) = 0;
  // The bytes of all tensors, in the order in which they were made.
  virtual std::vector<Bytes> Save() const = 0;
  virtual void Restore(const std::vector<Bytes>& saved) = 0;

  // Nobody may touch a tensor from here on, until Open().
  virtual void Close() = 0;
  virtual void Open() = 0;
  // Before and after a kernel of this operation, and of no other, runs. End() says what else than
  // the declared was written, where the kernel was not ended on the spot.
  virtual void Begin(const Operation& operation) = 0;
  virtual std::vector<std::string> End(const Operation& operation) = 0;
};

// The host's pages: nobody may touch the one before those of a tensor, nor the one behind, and a
// kernel that does what its operation does not declare is ended by SIGSEGV. Memory is of `device`,
// the CPU.
std::unique_ptr<TestMemory> CreatePageMemory(Device& device);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_TEST_MEMORY_H_
