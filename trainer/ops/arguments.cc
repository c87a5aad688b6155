#include "trainer/ops/arguments.h"

#include <functional>
#include <stdexcept>

namespace fsdp {
namespace {

std::string Describe(DType dtype, const Shape& shape) {
  return std::string(Name(dtype)) + " " + shape.ToString();
}

}  // namespace

void Arguments::Fail(const std::string& message) const {
  throw std::invalid_argument("[" + std::string(op_) + "] " + message);
}

void Arguments::CheckMemory(const char* name, const ConstView& view) const {
  if (view.data == nullptr && view.NumElements() > 0) {
    Fail(std::string(name) + " is " + Describe(view.dtype, view.shape) + " without memory");
  }
}

void Arguments::CheckDType(const char* name, DType dtype,
                           std::initializer_list<DType> supported) const {
  std::string wanted;
  for (const DType* d = supported.begin(); d != supported.end(); ++d) {
    if (*d == dtype) return;
    if (d != supported.begin()) wanted += d + 1 == supported.end() ? " or " : ", ";
    wanted += Name(*d);
  }
  Fail(std::string(name) + " is " + std::string(Name(dtype)) + ", want " + wanted);
}

void Arguments::Check(const char* name, const ConstView& view, DType dtype,
                      const Shape& shape) const {
  if (view.dtype != dtype || view.shape != shape) {
    Fail(std::string(name) + " is " + Describe(view.dtype, view.shape) + ", want " +
         Describe(dtype, shape));
  }
  CheckMemory(name, view);
}

void Arguments::CheckRank(const char* name, const ConstView& view, DType dtype, int rank) const {
  if (view.dtype != dtype || view.shape.rank() != rank) {
    Fail(std::string(name) + " is " + Describe(view.dtype, view.shape) + ", want " +
         std::string(Name(dtype)) + " with " + std::to_string(rank) + " dimensions");
  }
  CheckMemory(name, view);
}

void Arguments::CheckElements(const char* name, const ConstView& view, DType dtype,
                              int64_t n) const {
  if (view.dtype != dtype || view.NumElements() != n) {
    Fail(std::string(name) + " is " + Describe(view.dtype, view.shape) + ", want " +
         std::string(Name(dtype)) + " with " + std::to_string(n) + " elements");
  }
  CheckMemory(name, view);
}

void Arguments::CheckWeight(const char* name, const ConstView& weight, DType activations,
                            const Shape& shape) const {
  if (activations == DType::kFloat32) return Check(name, weight, activations, shape);
  CheckDType(name, weight.dtype, {activations, DType::kFloat32});
  Check(name, weight, weight.dtype, shape);
}

void Arguments::CheckGradient(const char* name, const ConstView& gradient,
                              const Shape& shape) const {
  CheckDType(name, gradient.dtype, kFloatDTypes);
  Check(name, gradient, gradient.dtype, shape);
}

void Arguments::CheckHasKernels(const char* name, DType dtype,
                                std::initializer_list<DType> supported, DeviceType device) const {
  CheckDType(name, dtype, supported);
  Require(device != DeviceType::kSim, "the simulated device has no workspace of its own");
}

void Arguments::CheckWorkspace(const ConstView& workspace, int64_t bytes) const {
  if (workspace.bytes() < bytes) {
    Fail("workspace has " + std::to_string(workspace.bytes()) +
         " bytes, want >= " + std::to_string(bytes));
  }
  if (bytes > 0) CheckMemory("workspace", workspace);
}

void Arguments::CheckDisjoint(const char* name_a, const ConstView& a, const char* name_b,
                              const ConstView& b) const {
  const std::less<const std::byte*> before;
  if (before(a.data, b.data + b.bytes()) && before(b.data, a.data + a.bytes())) {
    Fail(std::string(name_a) + " and " + name_b + " overlap");
  }
}

void Arguments::CheckSameOrDisjoint(const char* name_a, const ConstView& a, const char* name_b,
                                    const ConstView& b) const {
  if (a.data == b.data && a.bytes() == b.bytes()) return;
  CheckDisjoint(name_a, a, name_b, b);
}

}  // namespace fsdp
