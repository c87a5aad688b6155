// The work of an operation: a function and its arguments, kept by value until a stream's worker
// calls it or the device takes its launches. Arguments hold the addresses that the device gave out.
// The CPU may touch the memory under the address that Host() gives: a kernel gets that one where it
// begins, through OnCpu(), and nothing else ever does.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_KERNEL_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_KERNEL_H_

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/runtime/cuda_stream.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Made by OnCpu(). May throw only what stream.h says; the stream then fails.
using CpuKernel = std::function<void(ThreadPool& pool)>;

// A struct with Views among its members says so beside its definition, for Host() to find them:
//   template <typename Visit>
//   void ForEachAddress(Batch& batch, const Visit& visit) { visit(batch.tokens); ... }
struct VisitNothing {
  void operator()(auto&) const {}
};
template <typename T>
concept AddressStruct = requires(T& value) {
  ForEachAddress(value, VisitNothing());
};

// Types whose values hold addresses of device memory: Views, raw bytes, structs as above, and what
// holds some of them.
template <typename T>
inline constexpr bool kHoldsAddresses = AddressStruct<T>;
template <typename Byte>
inline constexpr bool kHoldsAddresses<BasicView<Byte>> = true;
template <>
inline constexpr bool kHoldsAddresses<std::byte*> = true;
template <>
inline constexpr bool kHoldsAddresses<const std::byte*> = true;
template <typename T>
inline constexpr bool kHoldsAddresses<std::optional<T>> = kHoldsAddresses<T>;
template <typename T>
inline constexpr bool kHoldsAddresses<std::vector<T>> = kHoldsAddresses<T>;
template <typename T, size_t n>
inline constexpr bool kHoldsAddresses<std::array<T, n>> = kHoldsAddresses<T>;

// The same, in place.
struct MoveToHost {
  void operator()(std::byte*& address) const { address = HostAddress(address); }
  void operator()(const std::byte*& address) const { address = HostAddress(address); }
  template <typename Byte>
  void operator()(BasicView<Byte>& view) const {
    view.data = HostAddress(view.data);
  }
  template <typename T>
  void operator()(std::optional<T>& value) const {
    if (value) (*this)(*value);
  }
  template <typename T>
  void operator()(std::vector<T>& values) const {
    for (T& value : values) (*this)(value);
  }
  template <typename T, size_t n>
  void operator()(std::array<T, n>& values) const {
    for (T& value : values) (*this)(value);
  }
  template <AddressStruct T>
  void operator()(T& value) const {
    ForEachAddress(value, *this);
  }
};

// An argument as the CPU may use it: what holds addresses as a copy, all else itself.
template <typename T>
decltype(auto) Host(const T& argument) {
  if constexpr (kHoldsAddresses<T>) {
    T host = argument;
    MoveToHost()(host);
    return host;
  } else {
    return (argument);
  }
}

// function(pool, Host(args)...). A View is an argument and is never captured: a captured one keeps
// the device's address.
template <typename Function, typename... Args>
CpuKernel OnCpu(Function function, Args... args) {
  return [function = std::move(function), ... args = std::move(args)](ThreadPool& pool) {
    std::invoke(function, pool, Host(args)...);
  };
}

// Launches on this stream and returns. May throw DeviceError where a launch is refused.
using CudaKernel = std::function<void(CudaStreamHandle stream)>;

// function(stream, args...) of a .cu file; no kernel where the program was built without it, so a
// declaration of such a function says [[gnu::weak]]. What is emulated has addresses as a CPU's.
template <typename... Params, typename... Args>
CudaKernel OnCuda(void (*function)(CudaStreamHandle, Params...), Args... args) {
  if (function == nullptr) return nullptr;
  return [function, ... args = std::move(args)](CudaStreamHandle stream) {
    function(stream, Host(args)...);
  };
}

// For kernels: an operand that may be left out; null where it is.
template <typename T, typename AnyView>
auto* DataOrNull(const std::optional<AnyView>& view) {
  return view ? view->template As<T>() : nullptr;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_KERNEL_H_
