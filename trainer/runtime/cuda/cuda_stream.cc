#include "trainer/runtime/cuda/cuda_stream.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

namespace fsdp {
namespace {

// Words that two sides write are in cache lines of their own.
constexpr size_t kWordBytes = 64;
constexpr size_t kReachedWord = kWordBytes / sizeof(uint32_t);  // The first is of what is done.
constexpr size_t kProgressWord = 2 * kReachedWord;
constexpr size_t kRunAheadWord = 3 * kReachedWord;
constexpr size_t kWordsBytes = 4 * kWordBytes;

// A named range of the calling thread, for profilers (NVTX). Does nothing where the toolkit is
// missing.
class ProfilerRange {
 public:
#ifdef NVTX_VERSION
  explicit ProfilerRange(const char* name) { nvtxRangePushA(name); }
  ~ProfilerRange() { nvtxRangePop(); }
#else
  explicit ProfilerRange(const char*) {}
#endif
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace

CudaStream::Resources::Resources(int gpu, StreamPriority priority) {
  CheckCall(cudaSetDevice(gpu), "cudaSetDevice");
  int least = 0, greatest = 0;
  CheckCall(cudaDeviceGetStreamPriorityRange(&least, &greatest),
            "cudaDeviceGetStreamPriorityRange");
  void* data = nullptr;
  CheckCall(cudaHostAlloc(&data, kWordsBytes, cudaHostAllocDefault), "cudaHostAlloc");
  words = static_cast<uint32_t*>(data);
  std::memset(words, 0, kWordsBytes);
  const cudaError_t error = cudaStreamCreateWithPriority(
      &stream, cudaStreamNonBlocking, priority == StreamPriority::kHigh ? greatest : least);
  if (error != cudaSuccess) (void)cudaFreeHost(words);
  CheckCall(error, "cudaStreamCreateWithPriority");
}

CudaStream::Resources::~Resources() {
  (void)cudaStreamDestroy(stream);
  (void)cudaFreeHost(words);
}

CudaStream::CudaStream(Device& device, std::shared_ptr<GpuState> state, CudaTrace& trace,
                       std::string name, int threads, StreamPriority priority)
    : Stream(device, std::move(name)),
      state_(std::move(state)),
      trace_(trace),
      threads_(threads),
      resources_(state_->gpu, priority),
      index_(state_->failures.AddStream()),
      run_ahead_(resources_.stream, state_->driver.write_value, resources_.words + kRunAheadWord,
                 [this] { return !state_->failures.device_failed() && StillWorks(); }),
      progress_(resources_.stream, state_->driver.write_value, resources_.words + kProgressWord,
                run_ahead_) {
  state_->Add(this);
  std::lock_guard lock(trace_.mutex);
  trace_.streams.push_back(this);
}

CudaStream::~CudaStream() {
  (void)state_->Check(cudaStreamSynchronize(resources_.stream));
  std::unique_ptr<HostWorker> worker;
  {
    std::lock_guard lock(mutex_);  // Another's thread may be asking where the streams are.
    worker.swap(worker_);
  }
  worker.reset();
  state_->Remove(this);
  std::lock_guard lock(trace_.mutex);
  std::erase(trace_.streams, this);
  MoveSpans(trace_.of_ended);
}

std::optional<StreamPosition> CudaStream::Position() const {
  if (const auto failed = state_->failures.Position(index_)) return failed;
  {
    std::lock_guard lock(mutex_);
    if (worker_) {
      if (const auto at = worker_->Position()) return at;
    }
  }
  return progress_.Position();
}

void CudaStream::MoveSpans(std::vector<Span>& to) {
  for (const TimedSpan& span : spans_) {
    if (span.begin == nullptr || span.end == nullptr) continue;  // The GPU has failed.
    to.push_back({span.name, name(), state_->timed_events->TimeOf(span.begin),
                  state_->timed_events->TimeOf(span.end), span.tag, span.bytes});
  }
  spans_.clear();
}

template <typename Work>
void CudaStream::Put(const char* name, int64_t bytes, bool wait, const Work& work) {
  if (state_->failures.device_failed()) return;
  if (!state_->Check(cudaSetDevice(state_->gpu))) return;
  const StreamPosition at{name, tag()};
  const bool tracing = trace_.on.load(std::memory_order_relaxed);
  progress_.Enter(at, wait);
  EventPool::Handle begin = tracing ? Mark(/*timed=*/true) : nullptr;
  work(at);
  if (tracing) {
    spans_.push_back({name, std::move(begin), Mark(/*timed=*/true), tag(), bytes});
  }
  if (!state_->synchronous) return;
  const cudaError_t error = cudaStreamSynchronize(resources_.stream);
  if (error != cudaSuccess) state_->Fail(Describe(error) + ": in " + Describe(*this, at));
}

void CudaStream::DoEnqueue(Operation operation) {
  DeviceKernels& kernels = operation.kernels;
  Put(operation.name, BytesMoved(operation.costs), /*wait=*/false, [&](const StreamPosition& at) {
    if (kernels.cuda) {
      Launch(operation.name, kernels.cuda);
    } else {
      HostTask task;
      task.kernel = std::move(kernels.host);
      task.at = at;
      PutHostTask(std::move(task));
    }
  });
}

EventPool::Handle CudaStream::Mark(bool timed) {
  run_ahead_.Take(1);
  return state_->Recorded(resources_.stream, timed);
}

std::shared_ptr<Event> CudaStream::DoRecord(bool timed) {
  EventPool::Handle event;
  if (!state_->failures.device_failed()) {
    progress_.EndSection();
    event = Mark(timed);
  }
  return std::make_shared<CudaEvent>(state_, std::move(event), index_, before_);
}

void CudaStream::DoWait(const EventPtr& event) {
  const auto* ours = dynamic_cast<const CudaEvent*>(event.get());
  if (ours != nullptr && ours->state() != state_.get()) ours = nullptr;
  Put("wait", 0, /*wait=*/true, [&](const StreamPosition& at) {
    if (ours == nullptr) {
      HostTask task;
      task.awaited = event;
      task.at = at;
      PutHostTask(std::move(task));
    } else if (ours->handle() != nullptr) {
      run_ahead_.Take(1);
      (void)state_->Check(cudaStreamWaitEvent(resources_.stream, ours->handle(), 0));
    }
  });
  if (ours != nullptr) Merge(ours->before(), before_);
}

void CudaStream::Launch(const char* name, const CudaKernel& kernel) {
  std::exception_ptr error;
  try {
    const ProfilerRange range(name);
    return kernel({resources_.stream, resources(), &run_ahead_});
  } catch (const fsdp::DeviceError& refused) {
    const StreamPosition at{name, tag()};
    error = std::make_exception_ptr(
        fsdp::DeviceError(state_->name + ": " + Describe(*this, at) + ": " + refused.what()));
  } catch (...) {
    error = std::current_exception();
  }
  if (!StillWorks()) return;  // It had faulted before: this operation has no part in it.
  state_->failures.Fail(index_, TakeTicket(), error, {name, tag()});
}

FailHere CudaStream::MayFailHere(const char* name) {
  return [state = state_, index = index_, ticket = TakeTicket(),
          at = StreamPosition{name, tag()}](std::exception_ptr error) {
    state->failures.Fail(index, ticket, std::move(error), at);
  };
}

FailHere MayFailHere(Stream& stream, const char* name) {
  return dynamic_cast<CudaStream&>(stream).MayFailHere(name);
}

uint64_t CudaStream::TakeTicket() {
  const uint64_t ticket = state_->NextTicket();
  before_.resize(std::max(before_.size(), static_cast<size_t>(index_) + 1));
  before_[index_] = ticket;
  return ticket;
}

void CudaStream::PutHostTask(HostTask task) {
  HostWorker& worker = Worker();
  task.clock = before_;
  const auto ticket = static_cast<uint32_t>(task.ticket = TakeTicket());
  run_ahead_.Take(2);
  worker.Push(std::move(task));
  const auto call = [&](const char* name, StreamValueCall value, size_t word) {
    const int error =
        value(resources_.stream, reinterpret_cast<uintptr_t>(resources_.words + word), ticket,
              /*flags=*/0);  // A wait with flag 0 passes at the ticket or beyond.
    if (error != 0 && StillWorks()) {
      state_->Fail(std::string(name) + " returns " + std::to_string(error));
    }
  };
  call("cuStreamWriteValue32", state_->driver.write_value, kReachedWord);
  call("cuStreamWaitValue32", state_->driver.wait_value, 0);
}

bool CudaStream::StillWorks() {
  (void)cudaGetLastError();  // A refused launch is no fault.
  const cudaError_t error = cudaStreamQuery(resources_.stream);
  return error == cudaErrorNotReady || state_->Check(error);
}

HostWorker& CudaStream::Worker() {
  if (worker_ == nullptr) {
    try {
      auto worker = std::make_unique<HostWorker>(*state_, index_, threads_,
                                                 resources_.words + kReachedWord, resources_.words);
      std::lock_guard lock(mutex_);
      worker_ = std::move(worker);
    } catch (const std::system_error& error) {
      ThrowNoThread("the " + std::to_string(threads_) + " threads of stream " + name(), error);
    }
  }
  return *worker_;
}

// Row by row: a pitch of cudaMemcpy2DAsync() is below 2 GiB.
void CopyRowsCuda(CudaStreamHandle stream, const Rows& rows, std::byte* to, const std::byte* from) {
  if (rows.bytes == 0) return;
  for (int64_t row = 0; row < rows.rows; ++row) {
    stream.WillPut(1);
    CheckCall(cudaMemcpyAsync(to + row * rows.to_pitch, from + row * rows.from_pitch, rows.bytes,
                              cudaMemcpyDefault, stream),
              "cudaMemcpyAsync");
  }
}

}  // namespace fsdp
