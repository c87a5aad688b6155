// Memory of the tensors of op tests: it holds a kernel to the operation's declaration.
#ifndef FSDP_TRAIN_TESTS_TESTING_TEST_MEMORY_H_
#define FSDP_TRAIN_TESTS_TESTING_TEST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/runtime/device.h"

namespace fsdp {

struct Operation;

// Place of a tensor. kEnd: it ends at a page, so that an access too far is seen; its first element
// is aligned only if its size is. kBegin: it begins at a page, so that its rows are aligned only if
// their length is, as in an arena.
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

  // Forbids all access to tensors until Open().
  virtual void Close() = 0;
  virtual void Open() = 0;
  // Called before and after a kernel of this operation runs, and no other. End() names the
  // undeclared writes that have not ended the kernel at once.
  virtual void Begin(const Operation& operation) = 0;
  virtual std::vector<std::string> End(const Operation& operation) = 0;
};

// Memory of `device`, the CPU, in pages of the host. The pages before and behind a tensor are
// inaccessible, and a kernel that accesses what its operation does not declare ends by SIGSEGV.
std::unique_ptr<TestMemory> CreatePageMemory(Device& device);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TESTING_TEST_MEMORY_H_
