#include "trainer/runtime/near_gpu.h"

#include <cstdlib>

#include "trainer/core/cores.h"
#include "trainer/core/read_file.h"

namespace fsdp {

std::string StayNearGpu(const std::string& pci, const std::string& root) {
  const Cores mine = AllowedCores(), host = CoresOfHost(root);
  if (mine.empty() || host.empty()) return "";
  if (mine != host) return ", on cores " + CoresText(mine) + ", which it was given";
  const std::string device = root + "/sys/bus/pci/devices/" + pci;
  const auto text = [&](const char* name) {
    return ReadFileText(device + "/" + name, kMostTextBytes).text;
  };
  const Cores near = ParseCores(text("local_cpulist"));
  if (near.empty() || near == host || !StayOn(near)) return "";
  return ", on cores " + CoresText(near) + " of NUMA node " +
         std::to_string(std::atoi(text("numa_node").c_str()));
}

}  // namespace fsdp
