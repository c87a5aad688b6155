// Preloaded into a process, this sends it SIGTERM at the earliest moment at which the code of any
// library runs: before main(), and before the constructors of the libraries that the program is
// linked with. A signal that comes while those run could otherwise be met by chance alone.
//
// Its children are left alone: the variable that preloads is taken away first.
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace {

const struct Stops {
  Stops() {
    unsetenv("LD_PRELOAD");
    // Not raise(): the signal is for the process, as a scheduler's is, and not for this thread.
    kill(getpid(), SIGTERM);
  }
} stops;

}  // namespace
