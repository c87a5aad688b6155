#include "trainer/bench/bench_tensors.h"

#include <algorithm>
#include <optional>

#include "trainer/engine/gemm_algorithms.h"
#include "trainer/loop/gemm_choice.h"
#include "trainer/ops/cuda/cublaslt.h"
#include "trainer/ops/elementwise.h"

namespace fsdp {

BenchTensors::BenchTensors(Device& device, DType dtype)
    : device_(device), dtype_(dtype), stream_(device.CreateStream("fill")) {}

View BenchTensors::Values(const Shape& shape, DType dtype) {
  return Filled(dtype, shape, [](int64_t i) { return 1e-4f * static_cast<float>(i % 1021 - 510); });
}

View BenchTensors::Constant(const Shape& shape, float value, DType dtype) {
  return Filled(dtype, shape, [value](int64_t) { return value; });
}

View BenchTensors::Int(const Shape& shape, const std::function<int32_t(int64_t)>& value) {
  return Written(DType::kInt32, shape, [&](const View& host) {
    for (int64_t i = 0; i < host.NumElements(); ++i) host.As<int32_t>()[i] = value(i);
  });
}

View BenchTensors::Bytes(std::span<const std::byte> bytes) {
  return Written(DType::kUInt8, {static_cast<int64_t>(bytes.size())},
                 [&](const View& host) { std::ranges::copy(bytes, host.data); });
}

View BenchTensors::Workspace(int64_t bytes) {
  return bytes > 0 ? New(DType::kUInt8, {bytes}) : View(nullptr, DType::kUInt8, {0});
}

View BenchTensors::New(DType dtype, const Shape& shape) {
  buffers_.push_back(device_.Allocate(shape.NumElements() * SizeOf(dtype)));
  return buffers_.back().As(dtype, shape);
}

View BenchTensors::Filled(DType dtype, const Shape& shape,
                          const std::function<float(int64_t)>& value) {
  return Written(dtype, shape, [&](const View& host) {
    const auto fill = [&]<typename T>(T* data) {
      for (int64_t i = 0; i < host.NumElements(); ++i) data[i] = T(value(i));
    };
    if (dtype == DType::kFloat32) return fill(host.As<float>());
    dtype == DType::kBFloat16 ? fill(host.As<BFloat16>()) : fill(host.As<Float16>());
  });
}

// By the host, in place where it can, else by way of pinned memory.
View BenchTensors::Written(DType dtype, const Shape& shape,
                           const std::function<void(const View&)>& write) {
  const View view = New(dtype, shape);
  if (device_.type() == DeviceType::kSim) return view;
  if (const std::optional<View> host = device_.OnHost(view)) {
    write(*host);
    return view;
  }
  const Buffer pinned = device_.Allocate(view.bytes(), MemoryPlace::kPinned);
  write(pinned.As(dtype, shape));
  Copy(*stream_, pinned.As(dtype, shape), view);
  stream_->Synchronize();
  return view;
}

BenchLibrary::BenchLibrary(Device& device, Stream& stream, const std::vector<GemmShape>& shapes) {
  const FoundGpuLibrary found = FindGemmLibrary(device.type());
  if (!found.function) return;
  library_ = OpenCublasLt(found, /*deterministic=*/false);
  std::vector<GemmShape> resolved;
  for (const GemmShape& shape : shapes) {
    const std::optional<GemmShape> by = library_->Resolve(shape);
    if (by && std::find(resolved.begin(), resolved.end(), *by) == resolved.end()) {
      resolved.push_back(*by);
    }
  }
  GemmAlgorithms timed;
  TimeAlgorithms(device, resolved, *library_, &timed);
  workspace_ = device.Allocate(kGemmWorkspaceBytes);
  resources_ = {library_.get(), workspace_.data()};
  stream.Lend(&resources_);
  name_ = "cuBLASLt " + GpuLibraryVersionText(found.version);
}

}  // namespace fsdp
