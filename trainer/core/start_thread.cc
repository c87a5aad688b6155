#include "trainer/core/start_thread.h"

#include <pthread.h>
#include <sys/resource.h>

#include <optional>

#include "trainer/core/errors.h"
#include "trainer/core/process_limits.h"
#include "trainer/core/units.h"

namespace fsdp {

void RequireRoomForThread(const std::string& what) {
  // A thread begins by allocating a little, and would end by std::bad_alloc without it.
  constexpr int64_t kFirst = 1 << 20;
  const MemoryLimits limits;
  for (const std::optional<MemoryRoom>& room : {limits.AddressSpace(), limits.DataSegment()}) {
    const int64_t bytes = room ? StackBytes() + kFirst : 0;
    if (!room || room->bytes > bytes) continue;
    throw MemoryError("cannot start " + what + ": a thread takes " + HumanBytes(bytes) +
                      " of addresses with its stack, and " + HumanBytes(room->bytes) +
                      " are left (" + room->limit +
                      "): raise that limit, or lower ulimit -s or run.threads");
  }
}

void ThrowNoThread(const std::string& what, const std::system_error& error) {
  RequireRoomForThread(what);
  const std::string failed = "cannot start " + what + ": ";
  rlimit most;
  const bool limited = getrlimit(RLIMIT_NPROC, &most) == 0 && most.rlim_cur != RLIM_INFINITY;
  throw DeviceError(failed + error.code().message() + ": " +
                    (limited ? "a user may have " + std::to_string(most.rlim_cur) +
                                   " processes and threads (ulimit -u), and a control group "
                             : "a control group may have ") +
                    "pids.max of them: raise what is reached, or lower run.threads");
}

int64_t StackBytes() {
  pthread_attr_t attributes;
  size_t bytes = size_t{8} << 20;
  if (pthread_getattr_default_np(&attributes) == 0) {
    pthread_attr_getstacksize(&attributes, &bytes);
    pthread_attr_destroy(&attributes);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace fsdp
