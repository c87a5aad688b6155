#include "trainer/observe/provenance.h"

#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>

#include "trainer/core/atomic_file.h"
#include "trainer/core/hex.h"
#include "trainer/core/json.h"
#include "trainer/core/process_limits.h"

namespace fsdp {
namespace {

std::string Processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// One member or element a line.
std::string Lines(char open, const std::vector<std::string>& items, char close,
                  const std::string& indent) {
  if (items.empty()) return {open, close};
  std::string out(1, open);
  for (size_t i = 0; i < items.size(); ++i) {
    out += (i == 0 ? "\n" : ",\n") + indent + "  " + items[i];
  }
  return out + "\n" + indent + close;
}

std::string Member(std::string_view key, std::string_view json) {
  return JsonString(key) + ": " + std::string(json);
}

}  // namespace

HostInfo DescribeHost() {
  HostInfo host;
  utsname names{};
  if (::uname(&names) == 0) {
    host.name = names.nodename;
    host.kernel = std::string(names.sysname) + " " + names.release + " " + names.machine;
  }
  host.processor = Processor();
  host.cores = AvailableCores();
  host.memory = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  return host;
}

std::pair<std::string, std::string> CLibrary() { return {"glibc", ::gnu_get_libc_version()}; }

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char buffer[32];
  std::strftime(buffer, sizeof(buffer), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return buffer;
}

std::string ToJson(const Provenance& p) {
  std::vector<std::string> arguments, libraries, data;
  for (const std::string& argument : p.command_line) arguments.push_back(JsonString(argument));
  for (const auto& [name, version] : p.libraries) {
    libraries.push_back(Member(name, JsonString(version)));
  }
  for (const Provenance::File& file : p.data) {
    data.push_back(JsonObject()
                       .Add("path", file.path)
                       .Add("bytes", file.bytes)
                       .Add("hash", ToHex(file.hash))
                       .Text());
  }
  const std::string host = JsonObject()
                               .Add("name", p.host.name)
                               .Add("kernel", p.host.kernel)
                               .Add("processor", p.host.processor)
                               .Add("cores", p.host.cores)
                               .Add("memory", p.host.memory)
                               .Text();
  std::vector<std::string> members = {Member("command_line", JsonArray(arguments)),
                                      Member("directory", JsonString(p.directory)),
                                      Member("started", JsonString(p.started)),
                                      Member("version", JsonString(p.version)),
                                      Member("git", JsonString(p.git)),
                                      Member("compiler", JsonString(p.compiler)),
                                      Member("device", JsonString(p.device))};
  if (p.gpu_memory) {
    members.push_back(Member("gpu_memory", JsonObject()
                                               .Add("outside", p.gpu_memory->outside)
                                               .Add("taken", p.gpu_memory->taken)
                                               .Text()));
  }
  if (!p.refused_products.empty()) {
    std::vector<std::string> refused;
    for (const std::string& product : p.refused_products) refused.push_back(JsonString(product));
    members.push_back(Member("refused_products", Lines('[', refused, ']', "  ")));
  }
  members.insert(members.end(), {Member("libraries", Lines('{', libraries, '}', "  ")),
                                 Member("world_size", std::to_string(p.world_size)),
                                 Member("threads", std::to_string(p.threads)),
                                 Member("seed", std::to_string(p.seed)), Member("host", host),
                                 Member("data", Lines('[', data, ']', "  "))});
  return Lines('{', members, '}', "") + "\n";
}

void WriteProvenance(const std::string& path, const Provenance& provenance) {
  WriteAtomicFile(path, ToJson(provenance));
}

}  // namespace fsdp
