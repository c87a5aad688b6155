#include "trainer/core/process_limits.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string_view>

#include "trainer/core/cores.h"

namespace fsdp {
namespace {

// cgroup v1 has no word for "no limit" but a number of pages near 2^63 bytes.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> ParseNumber(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::vector<std::string> Lines(const std::optional<std::string>& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text.value_or(""));
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Whether `name` is one of "cpu,memory".
bool Lists(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// mountinfo writes a blank as \040.
std::string Unescape(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    int byte = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, byte, 8).ec == std::errc()) {
      plain += static_cast<char>(byte);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

struct Mount {
  bool v2;
  std::string root;   // The part of the hierarchy that it shows ...
  std::string point;  // ... and where.
};

// Those that may have files of a controller of v1, from the lines of mountinfo:
// id parent device root point options [optional ...] - type source options
std::vector<Mount> MountsOf(const std::string& controller, const std::vector<std::string>& lines) {
  std::vector<Mount> mounts;
  for (const std::string& line : lines) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
    std::string id, parent, device, root, point, type, source, options;
    left >> id >> parent >> device >> root >> point;
    right >> type >> source >> options;
    const bool v2 = type == "cgroup2";
    if (v2 || (type == "cgroup" && Lists(options, controller))) {
      mounts.push_back({v2, Unescape(root), Unescape(point)});
    }
  }
  // Where a sandbox hides its mounts.
  if (mounts.empty())
    mounts = {{true, "/", "/sys/fs/cgroup"}, {false, "/", "/sys/fs/cgroup/" + controller}};
  return mounts;
}

// The process's group as seen from the root of a mount; empty where the mount does not show it: in
// a namespace the two are those of different worlds, and then the mount's top is what there is.
std::string Below(const std::string& root, const std::string& path) {
  const std::string top = root == "/" ? "" : root;
  if (path.find("/..") != std::string::npos || !path.starts_with(top)) return "";
  const std::string rest = path.substr(top.size());
  return rest == "/" || !rest.starts_with("/") ? "" : rest;
}

}  // namespace

std::optional<std::string> MemoryLimits::Text(const std::string& path) const {
  std::ifstream file(root_ + path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<int64_t> MemoryLimits::Number(const std::string& path) const {
  const std::optional<std::string> text = Text(path);
  return text ? ParseNumber(*text) : std::nullopt;  // "max" is no number: no limit.
}

std::optional<int64_t> MemoryLimits::Field(const std::string& path, const std::string& key) const {
  for (const std::string& line : Lines(Text(path))) {
    if (line.starts_with(key)) return ParseNumber(std::string_view(line).substr(key.size()));
  }
  return std::nullopt;
}

// This process's own first, then those above it, up to the top of what is mounted.
std::vector<MemoryLimits::Group> MemoryLimits::Groups(const std::string& controller) const {
  std::string paths[2];  // For v1 and v2.
  for (const std::string& line : Lines(Text("/proc/self/cgroup"))) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path.ends_with(" (deleted)"))
      path.resize(path.size() - std::string_view(" (deleted)").size());
    if (controllers.empty()) paths[1] = path;
    if (Lists(controllers, controller)) paths[0] = path;
  }
  std::vector<Group> groups;
  for (const Mount& mount : MountsOf(controller, Lines(Text("/proc/self/mountinfo")))) {
    std::string below = Below(mount.root, paths[mount.v2 ? 1 : 0]);
    while (true) {
      groups.push_back({mount.v2, mount.point + below});
      if (below.empty()) break;
      below.resize(below.rfind('/'));
      // Old kernels: a group without hierarchy does not count its children's.
      const std::string above = mount.point + below;
      if (!mount.v2 && Number(above + "/memory.use_hierarchy") == 0) break;
    }
  }
  return groups;
}

std::vector<MemoryRoom> MemoryLimits::RoomsOf(const Group& group) const {
  const std::string stat = group.path + "/memory.stat";
  int64_t cache = 0;  // The kernel drops cached files before it kills.
  for (const char* name : {"inactive_file ", "active_file ", "slab_reclaimable "}) {
    cache += Field(stat, (group.v2 ? "" : "total_") + std::string(name)).value_or(0);
  }
  std::vector<MemoryRoom> rooms;
  const auto add = [&](const std::string& what, std::optional<int64_t> limit, const char* used) {
    if (!limit || *limit >= kNoLimit) return;
    const int64_t taken = Number(group.path + used).value_or(0) - cache;
    rooms.push_back(
        {std::max<int64_t>(0, *limit - std::max<int64_t>(0, taken)), what + " of " + group.path});
  };
  if (group.v2) {
    for (const std::string name : {"memory.max", "memory.high"}) {
      add(name, Number(group.path + "/" + name), "/memory.current");
    }
    return rooms;
  }
  add("memory.limit_in_bytes", Number(group.path + "/memory.limit_in_bytes"),
      "/memory.usage_in_bytes");
  add("memory.memsw.limit_in_bytes", Number(group.path + "/memory.memsw.limit_in_bytes"),
      "/memory.memsw.usage_in_bytes");
  // A limit of groups above, which a container does not see.
  add("hierarchical_memory_limit", Field(stat, "hierarchical_memory_limit "),
      "/memory.usage_in_bytes");
  return rooms;
}

std::optional<MemoryRoom> MemoryLimits::Shared() const {
  std::optional<MemoryRoom> tightest;
  const auto take = [&](const MemoryRoom& room) {
    if (!tightest || room.bytes < tightest->bytes) tightest = room;
  };
  if (const auto kib = Field("/proc/meminfo", "MemAvailable:")) {
    take({*kib << 10, "MemAvailable of the host"});
  }
  for (const Group& group : Groups("memory")) {
    for (const MemoryRoom& room : RoomsOf(group)) take(room);
  }
  return tightest;
}

std::optional<MemoryRoom> MemoryLimits::Own(const std::string& limit, const std::string& used,
                                            const std::string& name) const {
  const std::optional<int64_t> bytes = Field("/proc/self/limits", limit);
  if (!bytes || *bytes >= kNoLimit) return std::nullopt;  // "unlimited" is no number.
  const int64_t taken = Field("/proc/self/status", used).value_or(0) << 10;
  return MemoryRoom{std::max<int64_t>(0, *bytes - taken), name};
}

std::optional<MemoryRoom> MemoryLimits::AddressSpace() const {
  return Own("Max address space", "VmSize:", "ulimit -v");
}

std::optional<MemoryRoom> MemoryLimits::DataSegment() const {
  return Own("Max data size", "VmData:", "ulimit -d");
}

std::optional<int> MemoryLimits::Cores() const {
  std::optional<int64_t> fewest;
  for (const Group& group : Groups("cpu")) {
    std::optional<int64_t> quota, period;  // v2 has both in one line: "150000 100000".
    if (group.v2) {
      const std::string text = Text(group.path + "/cpu.max").value_or("");
      quota = ParseNumber(text);
      period = ParseNumber(std::string_view(text).substr(std::min(text.find(' '), text.size())));
    } else {
      quota = Number(group.path + "/cpu.cfs_quota_us");
      period = Number(group.path + "/cpu.cfs_period_us");
    }
    if (!quota || !period || *quota <= 0 || *period <= 0) continue;  // "max" and -1: no quota.
    fewest = std::min(fewest.value_or(kNoLimit), *quota / *period);
  }
  if (!fewest) return std::nullopt;
  return static_cast<int>(std::clamp<int64_t>(*fewest, 1, std::numeric_limits<int>::max()));
}

int64_t MemoryLimits::Resident() const {
  return Field("/proc/self/status", "VmRSS:").value_or(0) << 10;
}

// The kernel counts a kill in the group of whom it kills, whichever level was full.
std::optional<MemoryLimits::OomKills> MemoryLimits::OutOfMemoryKills() const {
  for (const Group& group : Groups("memory")) {
    const std::string file = group.path + (group.v2 ? "/memory.events" : "/memory.oom_control");
    if (const auto count = Field(file, "oom_kill ")) return OomKills{*count, file};
    if (!group.v2 && Text(file)) break;  // An old kernel. Levels above count their own kills alone.
  }
  return std::nullopt;
}

void SpareAddressSpace() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    mallopt(M_ARENA_MAX, 1);
  }
}

int AvailableCores(const MemoryLimits& limits) {
  const Cores cores = AllowedCores();
  const long count = cores.empty() ? ::sysconf(_SC_NPROCESSORS_ONLN) : std::ssize(cores);
  return std::clamp(static_cast<int>(count), 1,
                    limits.Cores().value_or(std::numeric_limits<int>::max()));
}

}  // namespace fsdp
