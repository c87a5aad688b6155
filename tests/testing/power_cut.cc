#include "tests/testing/power_cut.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace fsdp::testing {

namespace fs = std::filesystem;

RecordedDisk::RecordedDisk(const std::string& root, std::function<Answer(const FileCall&)> answer)
    : root_(root) {
  Load(root);
  before_ = now_;
  watch_ = std::make_unique<FileWatch>(root, std::move(answer),
                                       [this](const FileCall& call) { Add(call); });
}

int RecordedDisk::MakeNode(bool directory) {
  now_.push_back({.directory = directory});
  return static_cast<int>(now_.size()) - 1;
}

int RecordedDisk::Load(const std::string& path) {
  const int node = MakeNode(fs::is_directory(path));
  if (!now_[node].directory) {
    std::ifstream file(path, std::ios::binary);
    now_[node].data.assign(std::istreambuf_iterator<char>(file), {});
    return node;
  }
  for (const auto& entry : fs::directory_iterator(path)) {
    const int child = Load(entry.path());
    now_[node].entries[entry.path().filename()] = child;
  }
  return node;
}

int RecordedDisk::Find(const std::string& path) const {
  int node = 0;
  for (const fs::path& name : fs::path(path).lexically_relative(root_)) {
    if (name == "." || name.empty()) continue;
    const auto at = now_[node].entries.find(name);
    if (at == now_[node].entries.end()) return -1;
    node = at->second;
  }
  return node;
}

std::pair<int, std::string> RecordedDisk::Place(const std::string& path) const {
  const fs::path at = path;
  return {Find(at.parent_path()), at.filename()};
}

void RecordedDisk::Add(const FileCall& call) {
  using Kind = FileCall::Kind;
  Change change{.kind = Change::kWrite};
  switch (call.kind) {
    case Kind::kOpen: {
      if (call.creates) {
        std::tie(change.dir, change.name) = Place(call.path);
        change.kind = Change::kEnter;
        change.node = MakeNode(false);
        open_[call.fd] = change.node;
        break;
      }
      const int node = open_[call.fd] = Find(call.path);
      if (!call.empties || now_[node].directory) return;
      change.kind = Change::kResize;
      change.node = node;
      break;
    }
    case Kind::kClose:
      open_.erase(call.fd);
      return;
    case Kind::kWrite:
      change.node = open_.at(call.fd);
      change.offset = call.offset >= 0 ? call.offset : std::ssize(now_[change.node].data);
      change.bytes = call.bytes;
      break;
    case Kind::kResize:
      change.kind = Change::kResize;
      change.node = open_.at(call.fd);
      change.offset = call.size;
      break;
    case Kind::kSync:
      change.kind = Change::kSync;
      change.node = open_.at(call.fd);
      break;
    case Kind::kMkdir:
      std::tie(change.dir, change.name) = Place(call.path);
      change.kind = Change::kEnter;
      change.node = MakeNode(true);
      break;
    case Kind::kRename:
    case Kind::kExchange:
      std::tie(change.dir, change.name) = Place(call.path);
      std::tie(change.to_dir, change.to_name) = Place(call.to);
      change.kind = call.kind == Kind::kRename ? Change::kRename : Change::kExchange;
      break;
    case Kind::kUnlink:
      std::tie(change.dir, change.name) = Place(call.path);
      change.kind = Change::kRemove;
      break;
  }
  std::mt19937_64 none;
  Apply(now_, change, Fate::kThere, none);
  changes_.push_back(std::move(change));
}

// A change of names whose premise was lost has no effect.
void RecordedDisk::Apply(std::vector<Node>& nodes, const Change& change, Fate fate,
                         std::mt19937_64& random) {
  if (fate == Fate::kLost) return;
  switch (change.kind) {
    case Change::kSync:
      return;
    case Change::kWrite: {
      std::string bytes = change.bytes;
      if (fate == Fate::kTorn) bytes.resize(random() % (bytes.size() + 1));
      if (fate == Fate::kZeros) bytes.assign(bytes.size(), '\0');
      std::string& data = nodes[change.node].data;
      const auto at = static_cast<size_t>(change.offset);
      data.resize(std::max(data.size(), at + bytes.size()), '\0');
      data.replace(at, bytes.size(), bytes);
      return;
    }
    case Change::kResize:
      nodes[change.node].data.resize(static_cast<size_t>(change.offset), '\0');
      return;
    case Change::kEnter:
      nodes[change.dir].entries[change.name] = change.node;
      return;
    case Change::kRemove:
      nodes[change.dir].entries.erase(change.name);
      return;
    case Change::kRename: {
      auto& from = nodes[change.dir].entries;
      const auto entry = from.find(change.name);
      if (entry == from.end()) return;
      const int node = entry->second;
      from.erase(entry);
      nodes[change.to_dir].entries[change.to_name] = node;
      return;
    }
    case Change::kExchange: {
      const auto from = nodes[change.dir].entries.find(change.name);
      const auto to = nodes[change.to_dir].entries.find(change.to_name);
      if (from == nodes[change.dir].entries.end() || to == nodes[change.to_dir].entries.end()) {
        return;
      }
      std::swap(from->second, to->second);
      return;
    }
  }
}

std::string RecordedDisk::Describe(size_t i) const {
  const Change& c = changes_[i];
  constexpr const char* kNames[] = {"write",  "resize",   "sync",  "enter",
                                    "rename", "exchange", "remove"};
  std::string text = std::string(kNames[c.kind]) + " " + c.name;
  if (!c.to_name.empty()) text += " to " + c.to_name;
  if (c.node >= 0) text += " node " + std::to_string(c.node);
  if (!c.bytes.empty()) text += ", " + std::to_string(c.bytes.size()) + " bytes";
  return text;
}

std::vector<bool> RecordedDisk::Synced(size_t count) const {
  std::vector<bool> synced(count, false);
  std::set<int> later;  // Nodes that are synced behind change i.
  for (size_t i = count; i-- > 0;) {
    const Change& c = changes_[i];
    if (c.kind == Change::kSync) {
      later.insert(c.node);
      synced[i] = true;
    } else if (c.is_name()) {
      synced[i] = later.contains(c.dir) && (c.to_dir < 0 || later.contains(c.to_dir));
    } else {
      synced[i] = later.contains(c.node);
    }
  }
  return synced;
}

DiskState RecordedDisk::StateOf(size_t count, const Fates& fates, std::mt19937_64& random) const {
  std::vector<Node> nodes = before_;
  nodes.resize(now_.size());
  for (size_t i = before_.size(); i < now_.size(); ++i) nodes[i].directory = now_[i].directory;
  for (size_t i = 0; i < count; ++i) Apply(nodes, changes_[i], fates[i], random);
  DiskState state;
  const std::function<void(int, const std::string&)> add = [&](int node, const std::string& path) {
    for (const auto& [name, child] : nodes[node].entries) {
      const std::string at = path + name;
      state[at] = std::nullopt;
      if (nodes[child].directory) {
        add(child, at + "/");
      } else {
        state[at] = nodes[child].data;
      }
    }
  };
  add(0, "");
  return state;
}

std::vector<DiskState> RecordedDisk::After(size_t count, int random_states,
                                           std::mt19937_64& random) const {
  const std::vector<bool> synced = Synced(count);
  std::vector<size_t> open;  // Changes that may be lost.
  for (size_t i = 0; i < count; ++i) {
    if (!synced[i]) open.push_back(i);
  }
  std::set<DiskState> seen;
  std::vector<DiskState> states;
  const auto add = [&](const Fates& fates) {
    DiskState state = StateOf(count, fates, random);
    if (seen.insert(state).second) states.push_back(std::move(state));
  };
  constexpr Fate kOfWrites[] = {Fate::kThere, Fate::kLost, Fate::kTorn, Fate::kZeros};
  const auto set = [&](Fates& fates, size_t i, Fate of_writes, bool name_is_there) {
    fates[i] = changes_[i].is_name() ? (name_is_there ? Fate::kThere : Fate::kLost) : of_writes;
  };
  const Fates all(count, Fate::kThere);
  for (const Fate of_writes : kOfWrites) {
    for (size_t kept = 0; kept <= open.size(); ++kept) {  // Beginnings.
      Fates fates = all;
      for (size_t j = 0; j < open.size(); ++j) set(fates, open[j], of_writes, j < kept);
      add(fates);
    }
  }
  for (const size_t one : open) {
    Fates but_one = all, alone = all;
    but_one[one] = Fate::kLost;
    for (const size_t i : open) {
      if (i != one) alone[i] = Fate::kLost;
    }
    add(but_one);
    add(alone);
  }
  for (int r = 0; r < random_states && !open.empty(); ++r) {
    Fates fates = all;
    for (const size_t i : open) set(fates, i, kOfWrites[random() % 4], random() % 2 == 0);
    add(fates);
  }
  return states;
}

void LayOut(const DiskState& state, const std::string& directory) {
  fs::remove_all(directory);
  fs::create_directories(directory);
  for (const auto& [path, contents] : state) {  // A directory comes before what is in it.
    const std::string at = directory + "/" + path;
    if (!contents) {
      fs::create_directory(at);
    } else if (!(std::ofstream(at, std::ios::binary) << *contents)) {
      throw std::runtime_error(at + ": cannot be written");
    }
  }
}

}  // namespace fsdp::testing
