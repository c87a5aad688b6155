// Who limits the memory of this process, and what is left of it: the host, every level of its
// control groups (cgroup v1 and v2: Slurm, systemd and containers nest them), and ulimit.
#ifndef FSDP_TRAIN_TRAINER_CORE_MEMORY_LIMITS_H_
#define FSDP_TRAIN_TRAINER_CORE_MEMORY_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

// What can still be taken, at least 0, and who says so: "memory.max of /sys/fs/cgroup/job_1".
struct MemoryRoom {
  int64_t bytes = 0;
  std::string limit;
};

// Reads files on every call; one that is not there limits nothing.
class MemoryLimits {
 public:
  // `root` goes before each path: empty, or, for tests, a folder with a proc/ and a sys/ in it.
  explicit MemoryLimits(std::string root = "") : root_(std::move(root)) {}

  // The tightest of the host's and the control groups': what others in the same group use is gone,
  // but page cache that the kernel can drop is not. Swap does not count. Empty: nobody says.
  std::optional<MemoryRoom> Shared() const;

  // This process's own: addresses (ulimit -v), and private writable ones (ulimit -d).
  std::optional<MemoryRoom> AddressSpace() const;
  std::optional<MemoryRoom> DataSegment() const;

  // Resident bytes of this process.
  int64_t Resident() const;

  // How often the kernel, out of memory, has killed a process of this one's own control group.
  // Empty: it does not say.
  struct OomKills {
    int64_t count = 0;
    std::string file;
  };
  std::optional<OomKills> OutOfMemoryKills() const;

 private:
  struct Group {
    bool v2;
    std::string path;
  };
  std::vector<Group> Groups() const;
  std::vector<MemoryRoom> RoomsOf(const Group& group) const;
  std::optional<std::string> Text(const std::string& path) const;
  std::optional<int64_t> Number(const std::string& path) const;
  std::optional<int64_t> Field(const std::string& path, const std::string& key) const;
  std::optional<MemoryRoom> Own(const std::string& limit, const std::string& used,
                                const std::string& name) const;

  const std::string root_;
};

// glibc reserves 64 MiB of addresses for every thread that allocates. Where ulimit -v counts them,
// one such arena serves all from here on.
void SpareAddressSpace();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_MEMORY_LIMITS_H_
