// Preloaded into the binary by memory_test.cc: counts what is allocated behind the plan's back.
//
//   ALLOC_PROBE_METRICS  the run's metrics.jsonl: the record of the step below starts the watch,
//                        its "end" or this process's end stops it
//   ALLOC_PROBE_STEP     that step's number
//   ALLOC_PROBE_REPORT   <this>.<pid> is written: a line for each call of kLarge bytes or more,
//                        "before|after|end <function> <bytes>" with a back trace where it is after,
//                        and at the process's end "peak <bytes resident>" and
//                        "last before|after|end"
//
// operator new goes through malloc. Uses nothing that allocates.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr size_t kLarge = 64 << 10;

enum Watch { kBefore, kAfter, kEnd };
const char* const kNames[] = {"before", "after", "end"};

std::atomic<int> watch{kBefore};
thread_local bool inside = false;  // A call that we make ourselves.

// Whether the file at `path` holds `text`.
bool Holds(const char* path, const char* text) {
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return false;
  char buffer[4096 + 64];
  size_t kept = 0;
  bool found = false;
  for (;;) {
    const long n = syscall(SYS_read, fd, buffer + kept, 4096);
    if (n <= 0) break;
    const size_t size = kept + static_cast<size_t>(n);
    if (memmem(buffer, size, text, strlen(text)) != nullptr) {
      found = true;
      break;
    }
    kept = size < 63 ? size : 63;
    memmove(buffer, buffer + size - kept, kept);
  }
  syscall(SYS_close, fd);
  return found;
}

int Report() {
  static const int fd = [] {
    const char* stem = getenv("ALLOC_PROBE_REPORT");
    if (stem == nullptr) return -1;
    char path[4096];
    snprintf(path, sizeof(path), "%s.%d", stem, static_cast<int>(getpid()));
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  }();
  return fd;
}

void Line(const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  const int size = vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  if (size > 0) [[maybe_unused]]
    const ssize_t n = write(Report(), line, static_cast<size_t>(size));
}

void Look() {
  const char* metrics = getenv("ALLOC_PROBE_METRICS");
  const char* step = getenv("ALLOC_PROBE_STEP");
  if (metrics == nullptr || step == nullptr) return;
  char record[64];
  snprintf(record, sizeof(record), "\"kind\": \"step\", \"step\": %s,", step);
  if (watch == kBefore && Holds(metrics, record)) watch = kAfter;
  if (watch == kAfter && Holds(metrics, "\"kind\": \"end\"")) watch = kEnd;
}

void Note(const char* function, size_t bytes) {
  if (bytes < kLarge || inside || Report() < 0) return;
  inside = true;
  const int error = errno;
  Look();
  Line("%s %s %zu\n", kNames[watch], function, bytes);
  if (watch == kAfter) {
    void* frames[24];
    backtrace_symbols_fd(frames, backtrace(frames, 24), Report());
  }
  errno = error;
  inside = false;
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// dlsym may itself call calloc, once: from here.
alignas(64) char early[1 << 14];
std::atomic<size_t> early_used{0};
bool IsEarly(const void* p) { return p >= early && p < early + sizeof(early); }

__attribute__((constructor)) void Begin() {
  inside = true;
  void* frame;
  backtrace(&frame, 1);  // Loads what it needs now.
  Report();
  inside = false;
}

__attribute__((destructor)) void End() {
  if (Report() < 0) return;
  inside = true;
  FILE* status = fopen("/proc/self/status", "r");
  char line[256];
  long kib = 0;
  while (status != nullptr && fgets(line, sizeof(line), status) != nullptr) {
    sscanf(line, "VmHWM: %ld kB", &kib);
  }
  Look();
  Line("peak %ld\nlast %s\n", kib * 1024, kNames[watch]);
}

}  // namespace

extern "C" {

void* malloc(size_t size) {
  static void* (*const next)(size_t) = Next<void*(size_t)>("malloc");
  Note("malloc", size);
  return next(size);
}

void free(void* p) {
  static void (*const next)(void*) = Next<void(void*)>("free");
  if (!IsEarly(p)) next(p);
}

void* calloc(size_t count, size_t size) {
  static std::atomic<void* (*)(size_t, size_t)> next{nullptr};
  static thread_local bool resolving = false;
  if (resolving) {
    const size_t bytes = (count * size + 63) / 64 * 64;
    const size_t at = early_used.fetch_add(bytes);
    return at + bytes <= sizeof(early) ? early + at : nullptr;
  }
  if (next.load() == nullptr) {
    resolving = true;
    next = Next<void*(size_t, size_t)>("calloc");
    resolving = false;
  }
  Note("calloc", count * size);
  return next.load()(count, size);
}

void* realloc(void* p, size_t size) {
  static void* (*const next)(void*, size_t) = Next<void*(void*, size_t)>("realloc");
  Note("realloc", size);
  return next(p, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
  static void* (*const next)(size_t, size_t) = Next<void*(size_t, size_t)>("aligned_alloc");
  Note("aligned_alloc", size);
  return next(alignment, size);
}

void* memalign(size_t alignment, size_t size) {
  static void* (*const next)(size_t, size_t) = Next<void*(size_t, size_t)>("memalign");
  Note("memalign", size);
  return next(alignment, size);
}

int posix_memalign(void** p, size_t alignment, size_t size) {
  static int (*const next)(void**, size_t, size_t) =
      Next<int(void**, size_t, size_t)>("posix_memalign");
  Note("posix_memalign", size);
  return next(p, alignment, size);
}

void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  Note("mmap", size);
  const long result = syscall(SYS_mmap, address, size, protection, flags, fd, offset);
  return reinterpret_cast<void*>(result);
}

void* mmap64(void* address, size_t size, int protection, int flags, int fd, off64_t offset) {
  return mmap(address, size, protection, flags, fd, offset);
}

void* mremap(void* address, size_t old_size, size_t new_size, int flags, ...) {
  Note("mremap", new_size);
  va_list arguments;
  va_start(arguments, flags);
  void* const wanted = va_arg(arguments, void*);
  va_end(arguments);
  const long result = syscall(SYS_mremap, address, old_size, new_size, flags, wanted);
  return reinterpret_cast<void*>(result);
}

}  // extern "C"
