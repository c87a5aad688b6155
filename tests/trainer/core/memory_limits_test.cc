// On made-up /proc and /sys trees, as Slurm, systemd, Docker and Kubernetes leave them.
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>

#include "trainer/core/process_limits.h"

namespace fsdp {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr char kV2Mount[] = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
constexpr char kV1Mounts[] =
    "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
constexpr char kUnlimited[] = "9223372036854771712\n";

class MemoryLimitsTest : public ::testing::Test {
 protected:
  MemoryLimitsTest() {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo",
          "MemTotal:       64000 kB\nMemFree:         1000 kB\nMemAvailable:   32000 kB\n");
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void Write(const std::string& path, int64_t mebibytes) {
    Write(path, std::to_string(mebibytes * kMiB) + "\n");
  }
  void ProcessIs(const std::string& groups, const std::string& mounts) {
    Write("/proc/self/cgroup", groups);
    Write("/proc/self/mountinfo", mounts);
  }
  // Cores by affinity alone.
  static int MostCores() {
    cpu_set_t all;
    return sched_getaffinity(0, sizeof(all), &all) == 0 ? CPU_COUNT(&all) : -1;
  }
  // "BYTES of LIMIT", in MiB.
  std::string Shared() const {
    const std::optional<MemoryRoom> room = MemoryLimits(root_).Shared();
    return room ? std::to_string(room->bytes / kMiB) + ", " + room->limit : "nobody says";
  }

  int Cores() const { return MemoryLimits(root_).Cores().value_or(-1); }

  const std::string root_ = ::testing::TempDir() + "/memory_limits";
};

// Not the host's total, not what is free: page cache is given back.
TEST_F(MemoryLimitsTest, WithoutGroupsTheHostsAvailableMemoryCounts) {
  EXPECT_EQ(MemoryLimits(root_).Shared()->bytes, 32000 * 1024);
  EXPECT_EQ(MemoryLimits(root_).Shared()->limit, "MemAvailable of the host");
  std::filesystem::remove(root_ + "/proc/meminfo");
  EXPECT_EQ(Shared(), "nobody says");
}

TEST_F(MemoryLimitsTest, EveryLevelOfV2Counts) {
  ProcessIs("0::/system.slice/slurm/job_1/step_0\n", kV2Mount);
  const std::string job = "/sys/fs/cgroup/system.slice/slurm/job_1";
  EXPECT_EQ(Shared(), "31, MemAvailable of the host");
  Write(job + "/step_0/memory.max", "max\n");
  Write(job + "/step_0/memory.current", 1);
  Write(job + "/memory.max", 20);  // The job's, which others use too.
  Write(job + "/memory.current", 5);
  EXPECT_EQ(Shared(), "15, memory.max of /sys/fs/cgroup/system.slice/slurm/job_1");
  Write("/sys/fs/cgroup/system.slice/memory.max", 30);
  Write("/sys/fs/cgroup/system.slice/memory.current", 28);
  EXPECT_EQ(Shared(), "2, memory.max of /sys/fs/cgroup/system.slice");
  Write(job + "/step_0/memory.high", 2);  // Beyond it the kernel all but stops the process.
  EXPECT_EQ(Shared(), "1, memory.high of " + job + "/step_0");
}

TEST_F(MemoryLimitsTest, PageCacheOfTheGroupCanBeDroppedAndSharedMemoryCannot) {
  ProcessIs("0::/job\n", kV2Mount);
  Write("/sys/fs/cgroup/job/memory.max", 20);
  Write("/sys/fs/cgroup/job/memory.current", 18);
  Write("/sys/fs/cgroup/job/memory.stat",
        "anon 4194304\nfile 12582912\nshmem 2097152\ninactive_anon 1\nactive_anon 1\n"
        "inactive_file 8388608\nactive_file 2097152\nslab_reclaimable 1048576\n");
  EXPECT_EQ(Shared(), "13, memory.max of /sys/fs/cgroup/job");  // 20 - (18 - 8 - 2 - 1).
}

TEST_F(MemoryLimitsTest, MoreUsedThanAllowedIsNothingLeft) {
  ProcessIs("0::/job\n", kV2Mount);
  Write("/sys/fs/cgroup/job/memory.max", 20);
  Write("/sys/fs/cgroup/job/memory.current", 21);
  EXPECT_EQ(Shared(), "0, memory.max of /sys/fs/cgroup/job");
}

TEST_F(MemoryLimitsTest, EveryLevelOfV1Counts) {
  ProcessIs("5:cpu:/elsewhere\n4:cpuacct,memory:/slurm/uid_1/job_1\n0::/\n", kV1Mounts);
  const std::string memory = "/sys/fs/cgroup/memory";
  Write(memory + "/memory.limit_in_bytes", kUnlimited);
  Write(memory + "/slurm/uid_1/job_1/memory.limit_in_bytes", kUnlimited);
  Write("/sys/fs/cgroup/cpu/elsewhere/memory.limit_in_bytes", 1);  // Not that hierarchy.
  EXPECT_EQ(Shared(), "31, MemAvailable of the host");
  Write(memory + "/slurm/uid_1/memory.limit_in_bytes", 24);
  Write(memory + "/slurm/uid_1/memory.usage_in_bytes", 10);
  Write(memory + "/slurm/uid_1/memory.stat",
        "inactive_file 0\ntotal_inactive_file 2097152\ntotal_active_file 1048576\n");
  EXPECT_EQ(Shared(), "17, memory.limit_in_bytes of /sys/fs/cgroup/memory/slurm/uid_1");
  // With swap: what of it others have taken is gone.
  Write(memory + "/slurm/memory.memsw.limit_in_bytes", 30);
  Write(memory + "/slurm/memory.memsw.usage_in_bytes", 22);
  EXPECT_EQ(Shared(), "8, memory.memsw.limit_in_bytes of /sys/fs/cgroup/memory/slurm");
  // Without hierarchy a group does not answer for those below it.
  Write(memory + "/slurm/memory.use_hierarchy", "0\n");
  EXPECT_EQ(Shared(), "17, memory.limit_in_bytes of /sys/fs/cgroup/memory/slurm/uid_1");
}

// A container sees its own group at the top of the mount, whatever /proc/self/cgroup calls it.
TEST_F(MemoryLimitsTest, InContainers) {
  const std::string bound =
      "41 30 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup memory rw,memory\n";
  ProcessIs("4:memory:/docker/abc\n", bound);  // No namespace: the mount begins there.
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", 12);
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", 2);
  EXPECT_EQ(Shared(), "10, memory.limit_in_bytes of /sys/fs/cgroup/memory");
  ProcessIs("4:memory:/docker/abc/inner\n", bound);
  Write("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", 3);
  EXPECT_EQ(Shared(), "3, memory.limit_in_bytes of /sys/fs/cgroup/memory/inner");
  ProcessIs("4:memory:/docker/abcd\n", bound);  // Another's: what the mount shows must do.
  EXPECT_EQ(Shared(), "10, memory.limit_in_bytes of /sys/fs/cgroup/memory");
  ProcessIs("4:memory:/../other\n", bound);
  EXPECT_EQ(Shared(), "10, memory.limit_in_bytes of /sys/fs/cgroup/memory");
  // The pod's limit, which only the kernel sees from here.
  Write("/sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 6291456\n");
  EXPECT_EQ(Shared(), "4, hierarchical_memory_limit of /sys/fs/cgroup/memory");

  ProcessIs("0::/\n", kV2Mount);  // A namespace of its own.
  Write("/sys/fs/cgroup/memory.max", 9);
  EXPECT_EQ(Shared(), "9, memory.max of /sys/fs/cgroup");
  ProcessIs("", "");  // Only /sys/fs/cgroup is there.
  EXPECT_EQ(Shared(), "4, hierarchical_memory_limit of /sys/fs/cgroup/memory");
}

TEST_F(MemoryLimitsTest, NamesWithBlanksAndGroupsThatAreGone) {
  ProcessIs("0::/a job (deleted)\n",
            "31 23 0:28 / /sys/fs/my\\040cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/my cgroup/a job/memory.max", 7);
  EXPECT_EQ(Shared(), "7, memory.max of /sys/fs/my cgroup/a job");
}

TEST_F(MemoryLimitsTest, OfUlimitWhatIsTakenIsGone) {
  const MemoryLimits limits(root_);
  Write("/proc/self/status", "VmSize:\t 2048 kB\nVmRSS:\t 512 kB\nVmData:\t 1024 kB\n");
  Write("/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max data size             unlimited            unlimited            bytes     \n"
        "Max address space         unlimited            unlimited            bytes     \n");
  EXPECT_FALSE(limits.AddressSpace());
  EXPECT_FALSE(limits.DataSegment());
  EXPECT_EQ(limits.Resident(), 512 * 1024);
  Write("/proc/self/limits",
        "Max data size             4194304              unlimited            bytes     \n"
        "Max address space         8388608              unlimited            bytes     \n");
  EXPECT_EQ(limits.AddressSpace()->bytes, 6 * kMiB);
  EXPECT_EQ(limits.AddressSpace()->limit, "ulimit -v");
  EXPECT_EQ(limits.DataSegment()->bytes, 3 * kMiB);
  EXPECT_EQ(limits.DataSegment()->limit, "ulimit -d");
}

TEST_F(MemoryLimitsTest, CountsTheKernelsKillsInItsOwnGroup) {
  const MemoryLimits limits(root_);
  ProcessIs("4:memory:/job/task\n", kV1Mounts);
  EXPECT_FALSE(limits.OutOfMemoryKills());
  Write("/sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\noom_kill 7\n");
  Write("/sys/fs/cgroup/memory/job/task/memory.oom_control", "under_oom 0\noom_kill 2\n");
  EXPECT_EQ(limits.OutOfMemoryKills()->count, 2);
  EXPECT_EQ(limits.OutOfMemoryKills()->file, "/sys/fs/cgroup/memory/job/task/memory.oom_control");
  // An old kernel counts nothing, and the group above says nothing about this one.
  Write("/sys/fs/cgroup/memory/job/task/memory.oom_control", "under_oom 0\n");
  EXPECT_FALSE(limits.OutOfMemoryKills());

  ProcessIs("0::/job\n", kV2Mount);
  Write("/sys/fs/cgroup/job/memory.events", "low 0\nhigh 3\nmax 9\noom 2\noom_kill 1\n");
  EXPECT_EQ(limits.OutOfMemoryKills()->count, 1);
}

// In v2 a group's cpu.max holds for all below it.
TEST_F(MemoryLimitsTest, EveryLevelsQuotaOfV2Counts) {
  ProcessIs("0::/kubepods.slice/pod_1/main\n", kV2Mount);
  const std::string pod = "/sys/fs/cgroup/kubepods.slice/pod_1";
  EXPECT_EQ(Cores(), -1);
  Write(pod + "/main/cpu.max", "max 100000\n");
  EXPECT_EQ(Cores(), -1);
  Write("/sys/fs/cgroup/kubepods.slice/cpu.max", "3200000 100000\n");
  EXPECT_EQ(Cores(), 32);
  Write(pod + "/cpu.max", "400000 200000\n");
  EXPECT_EQ(Cores(), 2);
  Write(pod + "/main/cpu.max", "800000 100000\n");  // More than the pod may.
  EXPECT_EQ(Cores(), 2);
  Write(pod + "/main/cpu.max", "100000 100000\n");
  EXPECT_EQ(Cores(), 1);
}

TEST_F(MemoryLimitsTest, APartOfACoreDoesNotCountButTheFirst) {
  ProcessIs("0::/\n", kV2Mount);  // A namespace of its own.
  const auto cores_of = [&](const std::string& text) {
    Write("/sys/fs/cgroup/cpu.max", text);
    return Cores();
  };
  EXPECT_EQ(cores_of("150000 100000\n"), 1);
  EXPECT_EQ(cores_of("399999 100000\n"), 3);
  EXPECT_EQ(cores_of("1000 100000\n"), 1);  // A hundredth.
  EXPECT_EQ(cores_of("max 100000\n"), -1);
  EXPECT_EQ(cores_of(""), -1);
  Write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(AvailableCores(MemoryLimits(root_)), 1);
  EXPECT_EQ(AvailableCores(MemoryLimits(root_ + "/nowhere")), MostCores());
}

TEST_F(MemoryLimitsTest, EveryLevelsQuotaOfV1Counts) {
  ProcessIs("5:cpu,cpuacct:/docker/abc\n4:memory:/elsewhere\n0::/\n",
            "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
            "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  const std::string cpu = "/sys/fs/cgroup/cpu,cpuacct";
  const auto quota = [&](const std::string& group, int quota_us, int period_us) {
    Write(group + "/cpu.cfs_quota_us", std::to_string(quota_us) + "\n");
    Write(group + "/cpu.cfs_period_us", std::to_string(period_us) + "\n");
  };
  quota(cpu, -1, 100000);
  quota(cpu + "/docker/abc", -1, 100000);
  quota("/sys/fs/cgroup/memory/elsewhere", 100000, 100000);  // Not that hierarchy.
  EXPECT_EQ(Cores(), -1);
  quota(cpu + "/docker", 1000000, 100000);
  EXPECT_EQ(Cores(), 10);
  quota(cpu + "/docker/abc", 75000, 25000);
  EXPECT_EQ(Cores(), 3);
  ProcessIs("", "");  // Where a sandbox hides its mounts.
  quota("/sys/fs/cgroup/cpu", 200000, 100000);
  EXPECT_EQ(Cores(), 2);
}

// The limits of this machine, whatever it is.
TEST(MemoryLimits, OfThisProcess) {
  const MemoryLimits limits;
  ASSERT_TRUE(limits.Shared());
  EXPECT_GT(limits.Shared()->bytes, 0);
  EXPECT_GT(limits.Resident(), 0);
}

}  // namespace
}  // namespace fsdp
