#include "trainer/data/data_changes.h"

#include <algorithm>
#include <cstdio>

namespace fsdp {
namespace {

bool SameContents(const DataFile& a, const DataFile& b) {
  return a.bytes == b.bytes && a.hash == b.hash;
}

std::string Contents(const DataFile& file) {
  char hash[17];
  std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(file.hash));
  return std::to_string(file.bytes) + " bytes with hash " + hash;
}

// Takes from `list` the first that `is`.
template <typename Is>
bool Take(std::vector<DataFile>& list, const Is& is, DataFile* taken = nullptr) {
  const auto found = std::find_if(list.begin(), list.end(), is);
  if (found == list.end()) return false;
  if (taken != nullptr) *taken = *found;
  list.erase(found);
  return true;
}

}  // namespace

std::vector<std::string> DataChanges(const std::vector<DataFile>& before,
                                     const std::vector<DataFile>& now) {
  if (std::equal(before.begin(), before.end(), now.begin(), now.end(), SameContents)) return {};
  // Files that only one list has. A changed file is in both lists, most likely under one path.
  std::vector<DataFile> gone, come = now;
  for (const DataFile& file : before) {
    if (!Take(come, [&](const DataFile& f) { return SameContents(f, file); })) gone.push_back(file);
  }
  std::vector<std::string> changes;
  std::vector<DataFile> moved;
  const auto pair = [&](const DataFile& was, const DataFile& is) {
    changes.push_back(is.path + ": has " + Contents(is) + ", but the run was trained on " +
                      Contents(was) + (was.path == is.path ? "" : " (" + was.path + ")"));
  };
  DataFile is;
  for (const DataFile& was : gone) {
    const auto same_path = [&](const DataFile& f) { return f.path == was.path; };
    Take(come, same_path, &is) ? pair(was, is) : moved.push_back(was);
  }
  for (const DataFile& was : moved) {
    if (Take(
            come, [](const DataFile&) { return true; }, &is)) {
      pair(was, is);
    } else {
      changes.push_back(was.path + ": the run was trained on it, " + Contents(was) +
                        ", and it is missing");
    }
  }
  for (const DataFile& file : come) {
    changes.push_back(file.path + ": the run was not trained on it, " + Contents(file));
  }
  if (changes.empty()) {  // The same files.
    const auto [was, is_now] =
        std::mismatch(before.begin(), before.end(), now.begin(), SameContents);
    changes.push_back(is_now->path + ": the files are in another order: here the run had " +
                      was->path);
  }
  return changes;
}

}  // namespace fsdp
