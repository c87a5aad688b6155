// `fsdp-train launch`: starts the ranks of one host, watches them, ends them together. On several
// hosts there is one launcher each; they know of each other only what their ranks hear.
#ifndef FSDP_TRAIN_TRAINER_LAUNCH_SUPERVISOR_H_
#define FSDP_TRAIN_TRAINER_LAUNCH_SUPERVISOR_H_

#include <string>
#include <vector>

#include "trainer/launch/launch_command.h"

namespace fsdp {

// Runs this host's options.nproc_per_node ranks of `program` with the arguments `argv` (without
// argv[0]) until all have ended, and returns the exit code for this process:
//   0    all ranks returned 0;
//   75   some ended early on a signal (75), none failed;
//   n    the exit code of the rank that failed first; 128 + s if signal s killed it.
// A rank that ends with 6, a collective failed, usually echoes the failure of another: the first
// that fails with anything else, before any was told to end, takes its place. A rank that ended
// without a word on stderr gives its place to one of the same code that has said why. One line on
// stderr names the rank, and the others end within the graces. Then all are started again, up to
// max_restarts times, on a new port (with an rdzv_endpoint, on the same), unless the code is one
// that would come again (2, 3, 4, 5, 7; 75 with options.has_time_limit) or a signal to stop has
// come. Ranks of other hosts end with 6 then, so that their launchers do the same;
// TORCHELASTIC_RESTART_COUNT keeps the starts apart.
//
// Behind a failure that another start may not meet again, options.how_to_go_on() is the last line.
//
// Where SIGKILL ended a rank, it says that the kernel was out of memory if the kernel has counted
// that in the control group since the start; otherwise nobody knows who killed the rank.
//
// The ranks' FSDP_TRAIN_SECRET is what secret_file holds, else what is set here, else, on one host,
// random; on several it is not set and the ranks use the job's name.
//
// Ranks see torchrun's environment (environment.h); stdin is /dev/null. Their lines come out on
// stdout and stderr as "[rank] line"; a line over 64 KiB comes in pieces. A slow reader slows the
// ranks down, but neither the supervisor nor a rank that is to end: up to 64 MiB are then kept for
// the reader, who has options.grace after the ranks' end. Without a reader, output is dropped. The
// log files get both streams of a rank by lines, without prefix and not cut.
//
// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 go to the groups of all ranks. The first three count
// as one: rank 0 says what comes of it; a repeat within options.repeat is dropped; later, a second
// one is passed on, and a third one sends SIGKILL. Each of the others is one signal, passed on at
// most once per options.repeat.
//
// When a rank ends with anything but 0, the others hear of it by SIGURG, and those that have yet to
// meet it do not wait. A rank that SIGINT, SIGTERM or SIGHUP kills within options.repeat of its
// start counts as stopped early: a rank that is further on takes the first of them for a request.
//
// A rank's program begins with those six blocked and takes them when it is ready for them: see
// HoldStopSignals(). Signals that come while the ranks are being started reach all of them.
//
// Takes over the process for the time of the call: it must have one thread and no children; all of
// its children, orphaned grandchildren included, have ended and are reaped on return and on throw.
// Where this process itself is killed, the kernel kills the ranks. Blocks. Throws ConfigError
// (options, log_dir) and DeviceError (no process, pipe or port to be had).
int Launch(const LaunchOptions& options, const std::vector<std::string>& argv);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_LAUNCH_SUPERVISOR_H_
