#include "trainer/core/available_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace fsdp {

int AvailableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const long count = ::sched_getaffinity(0, sizeof(cores), &cores) == 0
                         ? CPU_COUNT(&cores)
                         : ::sysconf(_SC_NPROCESSORS_ONLN);  // A host of more than 1024.
  return std::max(1, static_cast<int>(count));
}

}  // namespace fsdp
