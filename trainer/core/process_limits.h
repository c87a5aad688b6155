// Cores and memory that the host leaves this process.
// Tests: tests/trainer/core/memory_limits_test.cc
#ifndef FSDP_TRAIN_TRAINER_CORE_PROCESS_LIMITS_H_
#define FSDP_TRAIN_TRAINER_CORE_PROCESS_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

// Bytes that can still be taken, at least 0, and the limit's name: "memory.max of
// /sys/fs/cgroup/job_1".
struct MemoryRoom {
  int64_t bytes = 0;
  std::string limit;
};

// The limits of this process's memory and cores, and what each leaves: the host, every level of its
// control groups (cgroup v1 and v2: Slurm, systemd and containers nest them), and ulimit. Reads
// files on every call; a missing file limits nothing.
class MemoryLimits {
 public:
  // `root` goes before each path: empty, or, for tests, a folder with a proc/ and a sys/ in it.
  explicit MemoryLimits(std::string root = "") : root_(std::move(root)) {}

  // The tightest limit of the host and the control groups. Memory of others in the same group is
  // taken; page cache that the kernel can drop is not. Swap does not count. Empty: no limit is
  // known.
  std::optional<MemoryRoom> Shared() const;

  // This process's own limits: addresses (ulimit -v), and private writable addresses (ulimit -d).
  std::optional<MemoryRoom> AddressSpace() const;
  std::optional<MemoryRoom> DataSegment() const;

  // Whole cores that the tightest quota of the control groups leaves (cpu.max; cpu.cfs_quota_us),
  // at least 1. Rounded down, as Go's automaxprocs does: a thread more would be stopped for a part
  // of each period, and the others would wait for it. Empty: no quota.
  std::optional<int> Cores() const;

  // Resident bytes of this process.
  int64_t Resident() const;

  // How often the kernel, out of memory, has killed a process of this one's own control group.
  // Empty: the kernel does not say.
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
  std::vector<Group> Groups(const std::string& controller) const;
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

// Cores that the calling thread may run on and that quotas leave, at least 1: taskset, cpusets,
// Slurm and containers leave fewer than the host has.
int AvailableCores(const MemoryLimits& limits = MemoryLimits());

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_PROCESS_LIMITS_H_
