// The work of an operation: a function and its arguments, kept by value until a stream's worker
// calls it or the device takes its launches. Arguments hold the addresses that the device gave out.
// The CPU may touch the memory at the address that Host() gives: OnCpu() gives it to a kernel when
// the kernel begins, and nothing else ever gets it.
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
#include "trainer/runtime/cuda_stream_handle.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {

// Made by OnCpu(). May throw only what operation.h allows; the stream then fails.
using CpuKernel = std::function<void(ThreadPool& pool)>;

// A struct with View members defines this function beside itself, so that Host() finds them:
//   template <typename Visit>
//   void ForEachAddress(Batch& batch, const Visit& visit) { visit(batch.tokens); ... }
struct VisitNothing {
  void operator()(auto&) const {}
};
template <typename T>
concept AddressStruct = requires(T& value) {
  ForEachAddress(value, VisitNothing());
};

// Types whose values hold addresses of device memory: Views, raw bytes, structs as above, and
// containers of these.
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

// Replaces device addresses by host addresses, in place.
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

// An argument as the CPU may use it: a copy if it holds addresses, otherwise itself.
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

// Calls function(stream, args...) of a .cu file. There is no kernel where the program was built
// without that file, so such a function is declared [[gnu::weak]]. Host() is for the emulator,
// whose addresses are a CPU's.
template <typename... Params, typename... Args>
CudaKernel OnCuda(void (*function)(CudaStreamHandle, Params...), Args... args) {
  if (function == nullptr) return nullptr;
  return [function, ... args = std::move(args)](CudaStreamHandle stream) {
    function(stream, Host(args)...);
  };
}

// For kernels: the data of an optional operand; null where it is left out.
template <typename T, typename AnyView>
auto* DataOrNull(const std::optional<AnyView>& view) {
  return view ? view->template As<T>() : nullptr;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_KERNEL_H_
