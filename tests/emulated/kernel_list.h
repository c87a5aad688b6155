// Every kernel that a program can launch on the emulator, and the number of its launches.
#ifndef FSDP_TRAIN_TESTS_EMULATED_KERNEL_LIST_H_
#define FSDP_TRAIN_TESTS_EMULATED_KERNEL_LIST_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

class EmulatedKernel {
 public:
  // `pretty`: __PRETTY_FUNCTION__ of a template over the kernel alone. `source`: the kernel's file,
  // given as "cast_cuda" for any path to cast_cuda.cc.
  EmulatedKernel(const char* pretty, const char* source, const void* function);

  const std::string& name() const { return name_; }
  const std::string& source() const { return source_; }
  const void* function() const { return function_; }

  std::atomic<int64_t> launches{0};

 private:
  std::string name_, source_;
  const void* function_;
};

// All kernels that Launch<>() is instantiated for, by source, then name.
std::vector<const EmulatedKernel*> EmulatedKernels();
// Whether a kernel of the file, named without its ending, can be launched.
bool HasKernels(const std::string& source);
// For a program that should have launched all kernels of this .cu file: a line for each kernel that
// it has not launched, and one where the file has none.
std::vector<std::string> NeverLaunched(const std::string& source);

template <auto kernel>
struct EmulatedKernelOf {
  static const char* Pretty() { return __PRETTY_FUNCTION__; }
  static inline EmulatedKernel kernel_record{Pretty(), __BASE_FILE__,
                                             reinterpret_cast<const void*>(kernel)};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_EMULATED_KERNEL_LIST_H_
