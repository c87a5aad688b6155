#include "tests/emulated/cudart.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "trainer/runtime/futex.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/thread_pool.h"

namespace {

using fsdp::HostAddress;

constexpr int kMostGpus = 16;
// A launch that waits this long for room waits for ever.
constexpr std::chrono::seconds kFullFor{20};

// A queue of the hardware: work of all streams that share it is issued in the order in which it is
// enqueued. So a stream that waits, also for its own earlier work, holds up the others.
struct Connection {
  int streams = 0;    // Guarded by the driver's lock, as the next.
  uint64_t next = 0;  // Number of the next item.
  // Without order between the streams: ThreadSanitizer would take it for theirs.
  std::atomic<uint64_t> issued{0};

  void WaitForTurn(uint64_t number) const {
    while (issued.load(std::memory_order_relaxed) != number) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  void Issue(uint64_t number) { issued.store(number + 1, std::memory_order_relaxed); }
};

struct Machine {
  Machine();

  std::mutex mutex;  // Guards what follows, down to the atomics.
  fsdp::EmulatedGpus gpus;
  std::map<std::string, int64_t> calls;
  std::map<std::string, std::pair<int64_t, cudaError_t>> failing;  // By which call, counted so.
  std::map<void*, std::pair<void*, size_t>> allocations;           // Address: block and bytes.
  size_t allocated = 0;
  std::map<void*, size_t> pinned;
  int64_t faulting_kernel = 0;                  // By which launch, counted from 1; 0: none.
  std::atomic<cudaError_t> fault{cudaSuccess};  // Once there is one, what every call returns.

  std::mutex driver[kMostGpus];  // A context's lock: of a process, one a GPU.
  // The connections of each GPU, guarded by its lock. CUDA_DEVICE_MAX_CONNECTIONS gives their
  // number when the first function is called.
  std::deque<Connection> connections[kMostGpus];
  std::atomic<int64_t> most_queued{0};

  std::mutex of_streams;  // Guards what follows.
  std::set<CUstream_st*> streams;
};

Machine::Machine() {
  const char* const words = std::getenv("FSDP_TRAIN_EMULATED_GPUS");
  std::istringstream in(words == nullptr ? "" : words);
  for (std::string word; in >> word;) {
    const std::string key = word.substr(0, word.find('='));
    const int64_t value = std::atoll(word.substr(std::min(word.size(), key.size() + 1)).c_str());
    if (key == "count") {
      gpus.count = static_cast<int>(value);
    } else if (key == "capability") {
      gpus.major = static_cast<int>(value / 10);
      gpus.minor = static_cast<int>(value % 10);
    } else if (key == "bytes") {
      gpus.bytes = value;
    } else if (key == "driver") {
      gpus.driver = static_cast<int>(value);
    } else if (key == "cublaslt") {
      gpus.cublaslt = static_cast<int>(value);
    } else if (key == "cudnn") {
      gpus.cudnn = static_cast<int>(value);
    } else if (key == "nccl") {
      gpus.nccl = static_cast<int>(value);
    } else if (key == "cudnn_late_plans") {
      gpus.cudnn_late_plans = value != 0;
    } else if (key == "code") {
      gpus.code = value;
    } else if (key == "queue") {
      gpus.queue = value;
    } else if (key == "unplanned") {
      gpus.unplanned = value;
    } else if (key == "cublaslt_refuses") {
      gpus.cublaslt_refuses = value;
    } else if (key == "cudnn_plans") {
      gpus.cudnn_plans = value;
    } else if (key == "nccl_middle") {
      gpus.nccl_middle = value;
    } else if (key == "nccl_late_connections") {
      gpus.nccl_late_connections = value != 0;
    } else if (key == "nccl_fails") {
      gpus.nccl_fails = value;
    } else if (key == "nccl_hangs") {
      gpus.nccl_hangs = value;
    } else if (key == "nccl_blocks") {
      gpus.nccl_blocks = value;
    } else if (key == "nccl_strands") {
      gpus.nccl_strands = value;
    } else if (key == "cudaMalloc") {
      failing[key] = {value, cudaErrorMemoryAllocation};
    } else if (key == "fault") {
      faulting_kernel = value;
    } else {
      std::fprintf(stderr, "FSDP_TRAIN_EMULATED_GPUS: %s\n", word.c_str());
      std::abort();
    }
  }
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::string list = visible;
    const auto listed = static_cast<int>(std::count(list.begin(), list.end(), ',')) + 1;
    gpus.count = std::min(gpus.count, list.empty() ? 0 : listed);
  }
}

Machine& TheMachine() {
  static auto* const machine = new Machine;  // Streams' threads may outlive main().
  return *machine;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local bool device_is_set = false;
thread_local int current_device = 0;
thread_local fsdp::EmulatedLaunches launches;

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

int ConnectionsOfGpu() {
  static const int connections = [] {
    const char* const text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    return text == nullptr ? 8 : std::clamp(std::atoi(text), 1, 32);
  }();
  return connections;
}

// Every call of a function begins so, and ends where this is an error.
cudaError_t Begin(const char* function) {
  (void)ConnectionsOfGpu();
  Machine& machine = TheMachine();
  std::lock_guard lock(machine.mutex);
  const int64_t call = ++machine.calls[function];
  if (const auto at = machine.failing.find(function);
      at != machine.failing.end() && at->second.first == call) {
    return Return(at->second.second);
  }
  return Return(machine.fault.load());
}

// The same, of a function that needs the lock of the thread's GPU.
cudaError_t BeginInDriver(const char* function) {
  const std::lock_guard lock(TheMachine().driver[current_device]);
  return Begin(function);
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool Faulted() { return TheMachine().fault.load() != cudaSuccess; }

// One recording of an event. One that was never recorded has passed.
struct Mark {
  std::atomic<uint32_t> passed{0};
  double time = 0;

  void Pass() {
    time = Now();
    passed.store(1, std::memory_order_release);
    fsdp::WakeAll(passed);
  }
};

}  // namespace

// A guess that explains what was seen: see docs/contributing.md, "GPU rules".
constexpr int kBlockingEntries = 5;

struct CUevent_st {
  explicit CUevent_st(unsigned f) : flags(f) {}

  const unsigned flags;
  std::mutex mutex;
  std::shared_ptr<Mark> mark;

  std::shared_ptr<Mark> Get() {
    std::lock_guard lock(mutex);
    return mark;
  }
};

struct CUstream_st {
  CUstream_st(int g, unsigned f, int p) : gpu(g), flags(f), priority(p), connection(Connect(g)) {
    const std::lock_guard all(TheMachine().of_streams);
    TheMachine().streams.insert(this);
  }
  ~CUstream_st() {
    {
      const std::lock_guard driver(TheMachine().driver[gpu]);
      --connection.streams;
    }
    {
      const std::lock_guard all(TheMachine().of_streams);
      TheMachine().streams.erase(this);
    }
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    if (thread.joinable()) thread.join();
  }

  // Returns at once; queued work still runs, but not behind a fault.
  void Leave() {
    {
      const std::lock_guard lock(mutex);
      if (pending.load() > 0 && !Faulted()) {
        thread.detach();
        left = stop = true;
        wake.notify_all();
        return;
      }
    }
    delete this;
  }

  // The one that the fewest streams use.
  static Connection& Connect(int gpu) {
    const std::lock_guard driver(TheMachine().driver[gpu]);
    std::deque<Connection>& all = TheMachine().connections[gpu];
    while (static_cast<int>(all.size()) < ConnectionsOfGpu()) all.emplace_back();
    Connection& fewest = *std::min_element(
        all.begin(), all.end(),
        [](const Connection& a, const Connection& b) { return a.streams < b.streams; });
    ++fewest.streams;
    return fewest;
  }

  // `always`: even after a fault. `waits`: it is issued when it is over. Where the queue is full it
  // waits for room, with the driver's lock.
  void Push(std::function<void()> work, bool always = false, bool waits = false, int entries = 1) {
    {
      const std::lock_guard driver(TheMachine().driver[gpu]);
      WaitForRoom();
      std::lock_guard lock(mutex);
      queue.push_back({std::move(work), always, waits, entries, connection.next++});
      taken += entries;
      const int64_t queued = ++pending;
      std::atomic<int64_t>& most = TheMachine().most_queued;
      for (int64_t m = most; m < queued && !most.compare_exchange_weak(m, queued);) {
      }
    }
    wake.notify_one();
  }

  void WaitForRoom() {
    const auto begin = std::chrono::steady_clock::now();
    while (taken.load() >= TheMachine().gpus.queue) {
      if (std::chrono::steady_clock::now() - begin > kFullFor) {
        std::fprintf(stderr,
                     "a launch waits for room in its stream's queue, with the driver's lock: the "
                     "stream waits for a thread that needs the lock\n");
        std::abort();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  void Work() {
    fsdp::FlushSubnormals();
    for (;;) {
      Item item;
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop || !queue.empty(); });
        if (queue.empty()) break;
        item = std::move(queue.front());
        queue.pop_front();
      }
      connection.WaitForTurn(item.number);
      if (!item.waits) connection.Issue(item.number);
      if (item.always || !Faulted()) {
        try {
          item.work();
        } catch (const fsdp::EmulatedFault& fault) {
          TheMachine().fault = fault.error;
        } catch (const std::exception& error) {
          std::fprintf(stderr, "a kernel failed: %s\n", error.what());
          TheMachine().fault = cudaErrorLaunchFailure;
        }
      }
      if (item.waits) connection.Issue(item.number);
      item.work = nullptr;  // Its contents are gone before anybody hears that it is done.
      taken.fetch_sub(item.entries);
      pending.fetch_sub(1);
    }
    if (left) delete this;
  }

  struct Item {
    std::function<void()> work;
    bool always = false, waits = false;
    int entries = 1;      // Entries in the queue.
    uint64_t number = 0;  // On its connection.
  };

  const int gpu;
  const std::thread::id maker = std::this_thread::get_id();
  const unsigned flags;
  const int priority;
  Connection& connection;
  std::mutex mutex;  // Guards queue, stop and left.
  std::condition_variable wake;
  std::deque<Item> queue;
  bool stop = false, left = false;
  std::atomic<int64_t> pending{0};
  std::atomic<int64_t> taken{0};           // Entries of the queue.
  std::thread thread{[this] { Work(); }};  // Last: it uses all of the above.
};

namespace {

// Until none of the GPU's streams has work that this thread has made: ranks that share a GPU are
// processes, with contexts of their own, and threads in tests.
void WaitForStreams(int gpu) {
  const auto busy = [gpu] {
    const std::lock_guard all(TheMachine().of_streams);
    const auto& streams = TheMachine().streams;
    return std::any_of(streams.begin(), streams.end(), [gpu](const CUstream_st* stream) {
      return stream->gpu == gpu && stream->maker == std::this_thread::get_id() &&
             stream->pending.load() > 0;
    });
  };
  const auto begin = std::chrono::steady_clock::now();
  while (busy() && !Faulted()) {
    if (std::chrono::steady_clock::now() - begin > kFullFor) {
      std::fprintf(stderr, "cudaFree waits for work that waits for the thread that frees\n");
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

cudaError_t Push(cudaStream_t stream, std::function<void()> work, bool waits = false) {
  if (stream == nullptr) {
    work();
  } else {
    stream->Push(std::move(work), /*always=*/false, waits);
  }
  return cudaSuccess;
}

// The driver's functions, CUresult as int, with the numbers of cuda.h.
constexpr int kInvalidValue = 1, kNotSupported = 801;
enum WaitFlag : unsigned { kGeq = 0, kEq = 1, kAnd = 2, kNor = 3 };

bool Passes(uint32_t word, uint32_t value, unsigned flag) {
  switch (flag) {
    case kGeq:
      return static_cast<int32_t>(word - value) >= 0;
    case kEq:
      return word == value;
    case kAnd:
      return (word & value) != 0;
    default:
      return ~(word | value) != 0;
  }
}

int StreamWaitValue32(cudaStream_t stream, unsigned long long address, uint32_t value,
                      unsigned flags) {
  if (flags > kNor) return kInvalidValue;
  fsdp::CountEmulatedCall(flags == kGeq ? "cuStreamWaitValue32, GEQ"
                                        : "cuStreamWaitValue32, not GEQ");
  if (const cudaError_t error = BeginInDriver("cuStreamWaitValue32"); error) return error;
  const auto wait = [=] {
    const std::atomic_ref word(*reinterpret_cast<uint32_t*>(address));
    const auto there = [&] { return Passes(word.load(std::memory_order_acquire), value, flags); };
    for (int i = 0; i < 100 && !there(); ++i) std::this_thread::yield();
    while (!there() && !Faulted()) {
      std::this_thread::sleep_for(std::chrono::microseconds(TheMachine().gpus.poll_us));
    }
  };
  return Push(stream, wait, /*waits=*/true);
}

int StreamWriteValue32(cudaStream_t stream, unsigned long long address, uint32_t value,
                       unsigned flags) {
  if (flags != 0) return kInvalidValue;  // NO_MEMORY_BARRIER is not of this version.
  if (const cudaError_t error = BeginInDriver("cuStreamWriteValue32"); error) return error;
  return Push(stream, [=] {
    std::atomic_ref(*reinterpret_cast<uint32_t*>(address)).store(value, std::memory_order_release);
  });
}

// Before 11.7 these were functions that the driver has switched off.
int OldStreamValue32(cudaStream_t, unsigned long long, uint32_t, unsigned) { return kNotSupported; }
constexpr unsigned kNewStreamValues = 11070;

// The driver of an H100 (580.159) starts one where it is asked first, which stays.
void StartDriversThread() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::thread([] {
      pthread_setname_np(pthread_self(), fsdp::kDriversThread);
      for (;;) pause();
    }).detach();
  });
}

}  // namespace

namespace fsdp {

cudaError_t LaunchOnEmulatedStream(cudaStream_t stream, std::function<void()> kernel) {
  // The null stream's are not the driver's: kernels of fakes, on a stream's thread, too.
  const cudaError_t error =
      stream == nullptr ? Begin("cudaLaunchKernelExC") : BeginInDriver("cudaLaunchKernelExC");
  if (error) return error;
  if (EmulatedCalls("cudaLaunchKernelExC") == TheMachine().faulting_kernel) {
    kernel = [] { throw EmulatedFault(); };
  }
  ++launches.kernels;
  return Push(stream, std::move(kernel));
}

void ResetEmulatedGpus(const EmulatedGpus& gpus) {
  Machine& machine = TheMachine();
  std::lock_guard lock(machine.mutex);
  machine.gpus = gpus;
  machine.failing.clear();
  machine.faulting_kernel = 0;
  machine.fault = cudaSuccess;
  last_error = cudaSuccess;
}

EmulatedGpus TheEmulatedGpus() {
  Machine& machine = TheMachine();
  std::lock_guard lock(machine.mutex);
  return machine.gpus;
}

void FailEmulatedCall(const std::string& function, int n, cudaError_t error) {
  Machine& machine = TheMachine();
  std::lock_guard lock(machine.mutex);
  machine.failing[function] = {machine.calls[function] + n, error};
}

int64_t EmulatedCalls(const std::string& function) {
  Machine& machine = TheMachine();
  std::lock_guard lock(machine.mutex);
  return machine.calls[function];
}

void* EmulatedAllocation(size_t bytes) {
  Machine& machine = TheMachine();
  std::lock_guard lock(machine.mutex);
  for (const auto& [data, block] : machine.allocations) {
    if (block.second == bytes) return data;
  }
  return nullptr;
}

int64_t TakeMostQueued() { return TheMachine().most_queued.exchange(0); }

EmulatedLaunches operator-(const EmulatedLaunches& a, const EmulatedLaunches& b) {
  return {a.kernels - b.kernels, a.copies - b.copies, a.fills - b.fills,
          a.library_calls - b.library_calls};
}

EmulatedLaunches EmulatedLaunchesOfThread() { return launches; }

EmulatedLibraryCall::EmulatedLibraryCall() : before_(launches) {}

EmulatedLibraryCall::~EmulatedLibraryCall() {
  launches = before_;
  ++launches.library_calls;
}

void CountEmulatedCall(const std::string& function) {
  Machine& machine = TheMachine();
  std::lock_guard lock(machine.mutex);
  ++machine.calls[function];
}

bool TakeEmulatedMemory(int64_t bytes) {
  Machine& machine = TheMachine();
  std::lock_guard lock(machine.mutex);
  if (bytes > machine.gpus.bytes - static_cast<int64_t>(machine.allocated)) return false;
  machine.allocated = static_cast<size_t>(static_cast<int64_t>(machine.allocated) + bytes);
  return true;
}

}  // namespace fsdp

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchOutOfResources:
      return "cudaErrorLaunchOutOfResources";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
  }
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return cudaGetErrorName(error);
  }
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t fault = TheMachine().fault;
  return fault ? fault : last_error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  std::lock_guard lock(TheMachine().mutex);
  *version = TheMachine().gpus.driver;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  if (const cudaError_t error = Begin("cudaGetDriverEntryPointByVersion"); error) return error;
  *function = nullptr;
  const std::string name = symbol;
  if (name == "cuStreamWaitValue32") *function = reinterpret_cast<void*>(&StreamWaitValue32);
  if (name == "cuStreamWriteValue32") *function = reinterpret_cast<void*>(&StreamWriteValue32);
  if (*function != nullptr && version < kNewStreamValues) {
    *function = reinterpret_cast<void*>(&OldStreamValue32);
  }
  *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t error = Begin("cudaGetDeviceCount"); error) return error;
  StartDriversThread();
  std::lock_guard lock(TheMachine().mutex);
  const fsdp::EmulatedGpus& gpus = TheMachine().gpus;
  *count = 0;
  if (gpus.driver == 0) return Return(cudaErrorInsufficientDriver);
  if (gpus.count == 0) return Return(cudaErrorNoDevice);
  *count = gpus.count;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t error = Begin("cudaGetDeviceProperties"); error) return error;
  std::lock_guard lock(TheMachine().mutex);
  const fsdp::EmulatedGpus& gpus = TheMachine().gpus;
  if (device < 0 || device >= gpus.count) return Return(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "Emulated GPU");
  std::memcpy(properties->uuid.bytes, &device, sizeof(device));
  properties->totalGlobalMem = gpus.bytes;
  properties->major = gpus.major;
  properties->minor = gpus.minor;
  properties->multiProcessorCount = gpus.multiprocessors;
  properties->pciDomainID = 0xfeed;  // No machine has it.
  properties->pciBusID = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* reaches, int device, int peer) {
  if (const cudaError_t error = Begin("cudaDeviceCanAccessPeer"); error) return error;
  std::lock_guard lock(TheMachine().mutex);
  const int count = TheMachine().gpus.count;
  if (device < 0 || device >= count || peer < 0 || peer >= count || device == peer) {
    return Return(cudaErrorInvalidDevice);
  }
  *reaches = TheMachine().gpus.peers ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = Begin("cudaSetDevice"); error) return error;
  std::lock_guard lock(TheMachine().mutex);
  const bool there = device >= 0 && device < TheMachine().gpus.count;
  device_is_set = device_is_set || there;
  if (there) current_device = device;
  return there ? cudaSuccess : Return(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int* device) {
  if (const cudaError_t error = Begin("cudaGetDevice"); error) return error;
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (const cudaError_t error = Begin("cudaMemGetInfo"); error) return error;
  std::lock_guard lock(TheMachine().mutex);
  *total = TheMachine().gpus.bytes;
  *free = *total - TheMachine().allocated;
  return cudaSuccess;
}

// Like a GPU's: a small allocation begins at a multiple of 512 bytes, not of a page.
cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (const cudaError_t error = BeginInDriver("cudaMalloc"); error) return error;
  Machine& machine = TheMachine();
  std::lock_guard lock(machine.mutex);
  const size_t total = machine.gpus.bytes;
  if (bytes > total - machine.allocated) return Return(cudaErrorMemoryAllocation);
  const size_t offset = bytes < size_t{2} << 20 ? 512 : 0;
  void* block = nullptr;
  if (posix_memalign(&block, 4096, bytes + offset) != 0) return Return(cudaErrorMemoryAllocation);
  *data =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(block) + offset) | fsdp::kDeviceAddress);
  const size_t taken = bytes + (offset == 0 ? machine.gpus.unplanned : 0);
  machine.allocated += taken;
  machine.allocations[*data] = {block, taken};
  return cudaSuccess;
}

// Memory freed behind a fault is gone: a program that ends leaks nothing.
cudaError_t cudaFree(void* data) {
  const cudaError_t error = Begin("cudaFree");
  WaitForStreams(current_device);
  Machine& machine = TheMachine();
  std::lock_guard lock(machine.mutex);
  const auto at = machine.allocations.find(data);
  if (at == machine.allocations.end()) return Return(cudaErrorInvalidValue);
  std::free(at->second.first);
  machine.allocated -= at->second.second;
  machine.allocations.erase(at);
  return error;
}

// Freed memory is gone, also for a stream that still uses it.
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  if (const cudaError_t error = BeginInDriver("cudaHostAlloc"); error) return error;
#ifdef __SANITIZE_ADDRESS__  // It detects use after free by itself, and accesses beside the memory.
  return posix_memalign(data, 4096, bytes) == 0 ? cudaSuccess : Return(cudaErrorMemoryAllocation);
#else
  *data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*data == MAP_FAILED) return Return(cudaErrorMemoryAllocation);
  const std::lock_guard lock(TheMachine().mutex);
  TheMachine().pinned[*data] = bytes;
  return cudaSuccess;
#endif
}

cudaError_t cudaFreeHost(void* data) {
  const cudaError_t error = Begin("cudaFreeHost");
#ifdef __SANITIZE_ADDRESS__
  std::free(data);
#else
  const std::lock_guard lock(TheMachine().mutex);
  const auto at = TheMachine().pinned.find(data);
  if (at == TheMachine().pinned.end()) return Return(cudaErrorInvalidValue);
  munmap(data, at->second);
  TheMachine().pinned.erase(at);
#endif
  return error;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (const cudaError_t error = BeginInDriver("cudaMemcpyAsync"); error) return error;
  ++launches.copies;
  return Push(stream, [=] {
    std::memmove(HostAddress(static_cast<std::byte*>(to)),
                 HostAddress(static_cast<const std::byte*>(from)), bytes);
  });
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = BeginInDriver("cudaMemsetAsync"); error) return error;
  ++launches.fills;
  return Push(stream,
              [=] { std::memset(HostAddress(static_cast<std::byte*>(data)), value, bytes); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (const cudaError_t error = Begin("cudaDeviceGetStreamPriorityRange"); error) return error;
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  if (const cudaError_t error = BeginInDriver("cudaStreamCreateWithPriority"); error) return error;
  *stream = new CUstream_st(current_device, flags, std::clamp(priority, -5, 0));
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  if (const cudaError_t error = Begin("cudaStreamGetPriority"); error) return error;
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  if (const cudaError_t error = Begin("cudaStreamGetFlags"); error) return error;
  *flags = stream->flags;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t error = Begin("cudaStreamDestroy");
  stream->Leave();
  return error;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t error = BeginInDriver("cudaStreamQuery"); error) return error;
  return stream->pending.load() == 0 ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = BeginInDriver("cudaStreamSynchronize"); error) return error;
  const auto mark = std::make_shared<Mark>();
  stream->Push([mark] { mark->Pass(); }, /*always=*/true);
  fsdp::SleepWhile(mark->passed, 0);
  return Return(TheMachine().fault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const cudaError_t error = BeginInDriver("cudaStreamWaitEvent"); error) return error;
  fsdp::CountEmulatedCall((event->flags & cudaEventDisableTiming) != 0
                              ? "cudaStreamWaitEvent, without timing"
                              : "cudaStreamWaitEvent, timed");
  const auto wait = [mark = event->Get()] {
    if (mark) fsdp::SleepWhile(mark->passed, 0);
  };
  return Push(stream, wait, /*waits=*/true);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t error = BeginInDriver("cudaEventCreateWithFlags"); error) return error;
  *event = new CUevent_st(flags);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const cudaError_t error = Begin("cudaEventDestroy");
  delete event;
  return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = BeginInDriver("cudaEventRecord"); error) return error;
  const auto mark = std::make_shared<Mark>();
  {
    std::lock_guard lock(event->mutex);
    event->mark = mark;
  }
  const bool blocking = (event->flags & cudaEventBlockingSync) != 0;
  stream->Push([mark] { mark->Pass(); }, /*always=*/true, /*waits=*/false,
               blocking ? kBlockingEntries : 1);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = BeginInDriver("cudaEventQuery"); error) return error;
  const auto mark = event->Get();
  return mark && mark->passed.load(std::memory_order_acquire) == 0 ? cudaErrorNotReady
                                                                   : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t error = BeginInDriver("cudaEventSynchronize"); error) return error;
  if (!device_is_set) {
    std::fprintf(stderr, "a wait on a thread without a device: CUDA makes a context of GPU 0\n");
    std::abort();
  }
  if (const auto mark = event->Get()) fsdp::SleepWhile(mark->passed, 0);
  return Return(TheMachine().fault);
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  if (const cudaError_t error = Begin("cudaEventElapsedTime"); error) return error;
  if (((from->flags | to->flags) & cudaEventDisableTiming) != 0) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  const auto a = from->Get(), b = to->Get();
  if (a == nullptr || b == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (!a->passed.load(std::memory_order_acquire) || !b->passed.load(std::memory_order_acquire)) {
    return cudaErrorNotReady;
  }
  *ms = static_cast<float>((b->time - a->time) * 1e3);
  return cudaSuccess;
}
