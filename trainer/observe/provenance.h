// provenance.json: what produced a run, for the person who has to repeat it.
#ifndef FSDP_TRAIN_TRAINER_OBSERVE_PROVENANCE_H_
#define FSDP_TRAIN_TRAINER_OBSERVE_PROVENANCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

struct HostInfo {
  std::string name;       // The host's.
  std::string kernel;     // "Linux 6.1.0 x86_64".
  std::string processor;  // Model name; "unknown" where /proc does not tell.
  int64_t cores = 0;      // Those that this process may run on.
  int64_t memory = 0;     // Bytes.
};
HostInfo DescribeHost();

struct Provenance {
  struct File {
    std::string path;
    int64_t bytes = 0;
    uint64_t hash = 0;  // A hash of the contents, as in trainer/data/data_files.h.
  };

  // Bytes of the GPU as its driver counts them. outside: taken by contexts, libraries and other
  // programs before the run's memory was allocated. taken: how many more are taken when steps
  // begin.
  struct GpuMemory {
    int64_t outside = 0, taken = 0;  // Bytes.
  };

  std::vector<std::string> command_line;
  std::string directory;               // The command line's.
  std::string started;                 // UtcNow().
  std::string version, git, compiler;  // build_info.h.
  std::string device;
  std::optional<GpuMemory> gpu_memory;
  std::vector<std::pair<std::string, std::string>> libraries;  // Name, version; see CLibrary().
  std::vector<std::string> refused_products = {};  // With the reasons. Known after a step.
  int64_t world_size = 1;
  int64_t threads = 1;
  uint64_t seed = 0;
  HostInfo host;
  std::vector<File> data;
};

std::pair<std::string, std::string> CLibrary();  // {"glibc", "2.36"}.
std::string UtcNow();                            // "2026-01-31T23:59:59Z".

std::string ToJson(const Provenance& provenance);  // Indented by hand: people read it.

// Blocks on the disk. Throws CheckpointError.
void WriteProvenance(const std::string& path, const Provenance& provenance);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_OBSERVE_PROVENANCE_H_
