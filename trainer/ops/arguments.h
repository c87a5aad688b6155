// Checks that every op makes before it enqueues anything. All throw std::invalid_argument; the
// message has the op's name in brackets, the value that came and the one that was wanted.
#ifndef FSDP_TRAIN_TRAINER_OPS_ARGUMENTS_H_
#define FSDP_TRAIN_TRAINER_OPS_ARGUMENTS_H_

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "trainer/core/view.h"
#include "trainer/runtime/device.h"

namespace fsdp {

// Dtypes of activations, of parameters and of their gradients.
inline constexpr std::initializer_list<DType> kFloatDTypes = {DType::kFloat32, DType::kBFloat16,
                                                              DType::kFloat16};

// One op's view of its arguments. `op` and the names are literals, as the op's header spells them.
class Arguments {
 public:
  explicit Arguments(const char* op) : op_(op) {}

  [[noreturn]] void Fail(const std::string& message) const;
  // Makes a string of `message` only when the condition fails.
  void Require(bool condition, const char* message) const {
    if (!condition) Fail(message);
  }

  // One of the dtypes that the op has kernels for.
  void CheckDType(const char* name, DType dtype, std::initializer_list<DType> supported) const;
  // The view has memory (unless it is empty), this dtype and this shape.
  void Check(const char* name, const ConstView& view, DType dtype, const Shape& shape) const;
  // The same for any shape of this rank.
  void CheckRank(const char* name, const ConstView& view, DType dtype, int rank) const;
  // The same for any shape of `n` elements.
  void CheckElements(const char* name, const ConstView& view, DType dtype, int64_t n) const;
  // For a parameter: it has the dtype of its activations, or fp32.
  void CheckWeight(const char* name, const ConstView& weight, DType activations,
                   const Shape& shape) const;
  // For a parameter's gradient: any of kFloatDTypes.
  void CheckGradient(const char* name, const ConstView& gradient, const Shape& shape) const;
  // For workspaces: the dtype of operand `name`, as in CheckDType(), and a device that has kernels.
  // The simulated device has none: a caller names the device that it stands for.
  void CheckHasKernels(const char* name, DType dtype, std::initializer_list<DType> supported,
                       DeviceType device) const;
  // At least `bytes` of memory, of any dtype and shape.
  void CheckWorkspace(const ConstView& workspace, int64_t bytes) const;
  // No byte in common.
  void CheckDisjoint(const char* name_a, const ConstView& a, const char* name_b,
                     const ConstView& b) const;
  // The result has no byte in common with any operand that is there.
  using Operand = std::pair<const char*, std::optional<ConstView>>;
  void CheckDisjoint(const char* name, const ConstView& result,
                     std::initializer_list<Operand> operands) const {
    for (const auto& [operand_name, operand] : operands) {
      if (operand) CheckDisjoint(name, result, operand_name, *operand);
    }
  }
  // One and the same memory, or no byte in common.
  void CheckSameOrDisjoint(const char* name_a, const ConstView& a, const char* name_b,
                           const ConstView& b) const;

 private:
  void CheckMemory(const char* name, const ConstView& view) const;

  const char* op_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OPS_ARGUMENTS_H_
