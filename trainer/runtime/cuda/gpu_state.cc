#include "trainer/runtime/cuda/gpu_state.h"

#include <exception>
#include <optional>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/runtime/cuda/cuda_call.h"

namespace fsdp {
namespace {

std::string NameOf(int gpu) {
  CheckCall(cudaSetDevice(gpu), "cudaSetDevice");
  cudaDeviceProp properties;
  CheckCall(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
  return "GPU " + std::to_string(gpu) + " (" + properties.name + ")";
}

}  // namespace

GpuState::GpuState(int g, bool s)
    : gpu(g),
      synchronous(s),
      driver(FindDriverCalls()),
      name(NameOf(g)),
      events(std::make_shared<EventPool>(g, /*timed=*/false)),
      timed_events(std::make_shared<EventPool>(g, /*timed=*/true)) {}

bool GpuState::Check(cudaError_t error) {
  if (error == cudaSuccess) return true;
  if (failures.device_failed()) return false;
  std::string where;
  {
    std::lock_guard lock(mutex_);
    for (const Stream* stream : streams_) {
      const std::optional<StreamPosition> at = stream->Position();
      if (at) where += (where.empty() ? "" : "; ") + Describe(*stream, *at);
    }
  }
  if (where.empty()) {
    where = "no stream had work";
  } else if (!synchronous) {
    where = "in or shortly behind " + where + "; FSDP_TRAIN_CUDA_SYNC=1 finds the operation";
  }
  Fail(Describe(error) + ": " + where);
  return false;
}

void GpuState::Fail(const std::string& what) {
  failures.FailDevice(std::make_exception_ptr(DeviceError(name + " failed: " + what)));
}

EventPool::Handle GpuState::Recorded(cudaStream_t stream, bool timed) {
  EventPool::Handle event;
  try {
    event = (timed ? timed_events : events)->Take();
  } catch (const DeviceError& error) {
    Fail(error.what());
    return nullptr;
  }
  return Check(cudaEventRecord(event.get(), stream)) ? event : nullptr;
}

void GpuState::Add(Stream* stream) {
  std::lock_guard lock(mutex_);
  streams_.push_back(stream);
}

void GpuState::Remove(Stream* stream) {
  std::lock_guard lock(mutex_);
  std::erase(streams_, stream);
}

std::string Describe(const Stream& stream, const StreamPosition& at) {
  return std::string(at.operation) + " on stream " + stream.name();
}

bool CudaEvent::Ready() const {
  if (passed_ || handle_ == nullptr) return true;
  // On a thread that has none current, CUDA would make a context of GPU 0.
  (void)cudaSetDevice(state_->gpu);
  const cudaError_t error = cudaEventQuery(handle_.get());
  if (error == cudaErrorNotReady) return false;
  if (state_->Check(error)) passed_ = true;
  return true;
}

void CudaEvent::Block() const {
  Await([this] { return Ready(); });
  if (const std::exception_ptr error = state_->failures.Find(stream_, before_)) {
    std::rethrow_exception(error);
  }
  if (!passed_) std::rethrow_exception(state_->failures.device_error());
}

double CudaEvent::DoTime() const {
  return handle_ ? state_->timed_events->TimeOf(handle_) : state_->timed_events->Now();
}

}  // namespace fsdp
