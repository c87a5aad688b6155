#include "trainer/data/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>
#include <vector>

#include "trainer/core/read_file.h"

namespace fsdp {

std::string WhereInHubCache(const std::string& directory) {
  namespace fs = std::filesystem;
  fs::path top = fs::path(directory) / "";
  if (top.parent_path().filename() == "snapshots") top = top.parent_path().parent_path();
  const std::string folder = (top / "snapshots").string();
  if (!PathExists(folder)) return "";
  std::string name = ReadFileText((top / "refs/main").string(), kMostTextBytes).text;
  while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back())) != 0) {
    name.pop_back();
  }
  if (name.empty() || !PathExists(folder + "/" + name)) {
    std::vector<std::string> all;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      all.push_back(at->path().filename());
    }
    name = all.empty() ? "" : *std::min_element(all.begin(), all.end());
  }
  return ". It is a folder of the Hugging Face Hub's cache" +
         (name.empty() ? ", without a snapshot" : ": its files are in " + folder + "/" + name);
}

}  // namespace fsdp
