#include "trainer/runtime/near_gpu.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "trainer/core/cores.h"

namespace fsdp {
namespace {

constexpr char kGpu[] = "0000:18:00.0";

// A /sys with a host of `online` cores and a GPU whose node has `near`.
std::string Sys(const std::string& online, const std::string& near) {
  const std::string root = ::testing::TempDir() + "/near_gpu";
  const std::string cpus = root + "/sys/devices/system/cpu";
  const std::string gpu = root + "/sys/bus/pci/devices/" + kGpu;
  std::filesystem::create_directories(cpus);
  std::filesystem::create_directories(gpu);
  std::ofstream(cpus + "/online") << online << "\n";
  std::ofstream(gpu + "/local_cpulist") << near << "\n";
  std::ofstream(gpu + "/numa_node") << "1\n";
  return root;
}

// In a thread, whose cores nobody inherits.
std::string Stays(const std::string& root, const Cores& given, const Cores& want,
                  const std::string& gpu = kGpu) {
  std::string words;
  std::thread([&] {
    ASSERT_TRUE(StayOn(given));
    words = StayNearGpu(gpu, root);
    EXPECT_EQ(AllowedCores(), want);
  }).join();
  return words;
}

TEST(NearGpu, KeepsToItsNodeWhereTheWholeHostIsGiven) {
  const Cores all = AllowedCores();
  const std::string online = CoresText(all);
  if (all.size() < 2) GTEST_SKIP() << "a host of one core has no other node";
  const Cores last = {all.back()};
  EXPECT_EQ(Stays(Sys(online, CoresText(last)), all, last),
            ", on cores " + CoresText(last) + " of NUMA node 1");
  // A host of one node, a GPU that sysfs does not list, cores that this process may not have.
  EXPECT_EQ(Stays(Sys(online, online), all, all), "");
  EXPECT_EQ(Stays(Sys(online, CoresText(last)), all, all, "feed:00:00.0"), "");
  EXPECT_EQ(Stays(Sys(online, "16383"), all, all), "");
}

TEST(NearGpu, LeavesCoresThatALauncherHasChosen) {
  const Cores all = AllowedCores(), first = {all.front()}, last = {all.back()};
  if (all.size() < 2) GTEST_SKIP() << "a host of one core leaves no choice";
  EXPECT_EQ(Stays(Sys(CoresText(all), CoresText(last)), first, first),
            ", on cores " + CoresText(first) + ", which it was given");
  EXPECT_EQ(Stays("/nowhere", all, all), "");
}

}  // namespace
}  // namespace fsdp
