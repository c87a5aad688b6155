#include "trainer/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <stdexcept>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/observe/whole_file.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr char kTemporary[] = ".tmp";  // Being written, or being removed.
constexpr char kSetAside[] = ".old";   // Counts as long as the step has no other.

// ---- Names ----

std::string StepName(int64_t step) { return "step_" + std::to_string(step); }

bool AllDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Of step_<n> followed by `suffix`, written as StepName writes it.
std::optional<int64_t> StepOf(std::string_view name, std::string_view suffix = "") {
  constexpr std::string_view kPrefix = "step_";
  constexpr size_t kMaxDigits = 18;
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() < kPrefix.size() + suffix.size()) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(suffix.size());
  if (!AllDigits(name) || name.size() > kMaxDigits || (name.size() > 1 && name[0] == '0')) {
    return std::nullopt;
  }
  return std::stoll(std::string(name));
}

bool IsOurs(std::string_view file) {
  constexpr std::string_view kPrefix = "rank_", kSuffix = ".safetensors";
  if (file == kManifestName || file == std::string(kManifestName) + ".tmp") return true;
  return file.size() > kPrefix.size() + kSuffix.size() && file.starts_with(kPrefix) &&
         file.ends_with(kSuffix) &&
         AllDigits(file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
}

// ---- Directories ----

[[noreturn]] void Fail(const std::string& path, const char* what) {
  const int error = errno;
  throw CheckpointError(path + ": cannot be " + what + ": " + std::strerror(error));
}

bool Exists(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0;
}

// The names in it; none where there is no such directory.
std::vector<std::string> List(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename());
  }
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory) {  // Who wants to write there will say so.
    throw CheckpointError(directory + ": cannot be listed: " + error.message());
  }
  return names;
}

void SyncDirectory(const std::string& path) {
  const FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0 || ::fsync(directory.get()) != 0) Fail(path, "synced");
}

void Rename(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) Fail(from, "renamed");
}

// Removes our files, the manifest first, and the directory if nothing else was in it. What cannot
// be removed stays: the next save tries again.
void RemoveOurFiles(const std::string& directory) {
  ::unlink((directory + "/" + kManifestName).c_str());
  try {
    for (const std::string& name : List(directory)) {
      if (IsOurs(name)) ::unlink((directory + "/" + name).c_str());
    }
  } catch (const CheckpointError&) {
  }
  ::rmdir(directory.c_str());
}

// By way of the name that never counts, so that a crash in between leaves nothing behind that the
// next save would not remove. A directory that holds files of others keeps its name.
void RemoveCheckpoint(const std::string& directory, const std::string& temporary) {
  try {
    const std::vector<std::string> names = List(directory);
    const bool only_ours = std::all_of(names.begin(), names.end(), IsOurs);
    const bool renamed = only_ours && std::rename(directory.c_str(), temporary.c_str()) == 0;
    RemoveOurFiles(renamed ? temporary : directory);
  } catch (const CheckpointError&) {
  }
}

// ---- What there is ----

// Empty where the directory holds the step, complete; otherwise why not.
std::string WhyIncomplete(const std::string& directory, int64_t step) {
  try {
    const int64_t held = ReadManifest(directory).meta.step;
    return held == step ? "" : directory + ": holds step " + std::to_string(held);
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

std::optional<std::string> CompleteStep(const std::string& checkpoints, int64_t step) {
  const std::string path = checkpoints + "/" + StepName(step);
  for (const std::string& directory : {path, path + kSetAside}) {
    if (Exists(directory) && WhyIncomplete(directory, step).empty()) return directory;
  }
  return std::nullopt;
}

// All that look like one, complete or not.
std::set<int64_t> Steps(const std::string& checkpoints) {
  std::set<int64_t> steps;
  for (const std::string& name : List(checkpoints)) {
    if (const auto step = StepOf(name)) steps.insert(*step);
    if (const auto step = StepOf(name, kSetAside)) steps.insert(*step);
  }
  return steps;
}

// ---- Saving ----

void CheckArguments(const char* function, const Layout& layout, const ShardPlace& place,
                    const std::vector<CheckpointState>& states) {
  const auto wrong = [&](const std::string& why) {
    throw std::invalid_argument("[" + std::string(function) + "] " + why);
  };
  if (place.shard < 0 || place.shard >= layout.shards || place.replica < 0 ||
      place.replica >= place.replicas ||
      place.rank != place.replica * layout.shards + place.shard ||
      place.world != layout.shards * place.replicas) {
    wrong("rank " + std::to_string(place.rank) + " of " + std::to_string(place.world) +
          " is not shard " + std::to_string(place.shard) + " of " + std::to_string(layout.shards) +
          " in replica " + std::to_string(place.replica) + " of " + std::to_string(place.replicas));
  }
  std::set<std::string> names;
  for (const CheckpointState& state : states) {
    if (state.name.empty() || state.name.find('/') != std::string::npos ||
        !names.insert(state.name).second) {
      wrong("state '" + state.name + "' has no name of its own, or a '/' in it");
    }
    if (state.shards.size() != layout.units.size()) {
      wrong("state '" + state.name + "' has " + std::to_string(state.shards.size()) +
            " shards, want " + std::to_string(layout.units.size()));
    }
    for (size_t u = 0; u < layout.units.size(); ++u) {
      const View& shard = state.shards[u];
      if (shard.dtype != DType::kFloat32 || shard.NumElements() != layout.units[u].shard_size) {
        wrong("state '" + state.name + "', unit " + layout.units[u].name + ": " +
              std::string(Name(shard.dtype)) + " of " + std::to_string(shard.NumElements()) +
              " elements, want fp32 of " + std::to_string(layout.units[u].shard_size));
      }
    }
  }
}

// The part of a shard that a replica writes: whole multiples of the alignment, as equal as can be.
struct Part {
  int64_t begin, count;
};
Part PartOfReplica(int64_t shard_size, const ShardPlace& place) {
  const int64_t blocks = shard_size / kShardAlignment;
  const auto edge = [&](int64_t replica) {
    return blocks * replica / place.replicas * kShardAlignment;
  };
  return {edge(place.replica), edge(place.replica + 1) - edge(place.replica)};
}

ManifestFile WriteRankFile(const std::string& directory, const Layout& layout,
                           const ShardPlace& place, const std::vector<CheckpointState>& states) {
  struct Source {
    std::string tensor;
    std::span<const std::byte> bytes;
  };
  std::vector<SafetensorsEntry> entries;
  std::vector<Source> sources;
  ManifestFile file;
  file.name = RankFileName(place.rank);
  for (const CheckpointState& state : states) {
    for (size_t u = 0; u < layout.units.size(); ++u) {
      const UnitLayout& unit = layout.units[u];
      const Part part = PartOfReplica(unit.shard_size, place);
      if (part.count == 0) continue;
      const View from = state.shards[u].Slice(part.begin, part.count);
      const std::string tensor = state.name + "/" + unit.name + "/fp32";
      entries.push_back({tensor, SafetensorsType::kF32, {part.count}});
      sources.push_back({tensor, {from.data, static_cast<size_t>(from.bytes())}});
      file.slices.push_back(
          {state.name, unit.name, unit.ShardBegin(place.shard) + part.begin, part.count, /*at=*/0});
    }
  }

  SafetensorsWriter writer(directory + "/" + file.name, entries);
  file.bytes = writer.file_bytes();
  file.chunk_bytes = ChunkBytes(file.bytes);
  ChunkChecksums checksums(file.chunk_bytes);
  checksums.Update(std::as_bytes(std::span(writer.header())));
  auto reached = static_cast<int64_t>(writer.header().size());
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto& [tensor, bytes] = sources[i];
    file.slices[i].at = writer.Info(tensor).begin;
    FSDP_CHECK_EQ(file.slices[i].at, reached) << "checksums need the order of the file";
    constexpr size_t kBlock = size_t{1} << 18;  // Bytes: still in the cache when it is written.
    for (size_t done = 0; done < bytes.size(); done += kBlock) {
      const auto block = bytes.subspan(done, std::min(kBlock, bytes.size() - done));
      checksums.Update(block);
      writer.WriteBytes(tensor, static_cast<int64_t>(done), block);
    }
    reached += static_cast<int64_t>(bytes.size());
  }
  writer.Finish();
  file.chunks = checksums.Finish();
  return file;
}

// What crashed runs left: half-written checkpoints, and such as were set aside or half-removed.
void RemoveLeftovers(const std::string& checkpoints) {
  for (const std::string& name : List(checkpoints)) {
    const std::string path = checkpoints + "/" + name;
    if (StepOf(name, kTemporary)) RemoveOurFiles(path);
    const auto step = StepOf(name, kSetAside);
    if (step && WhyIncomplete(checkpoints + "/" + StepName(*step), *step).empty()) {
      RemoveOurFiles(path);
    }
  }
}

// Makes `temporary` the step's checkpoint; at no moment is there none where there was one.
void Publish(const std::string& checkpoints, const std::string& temporary, int64_t step) {
  const std::string path = checkpoints + "/" + StepName(step), old = path + kSetAside;
  if (!Exists(path)) {
    Rename(temporary, path);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) !=
             0) {
    if (errno != EINVAL && errno != ENOSYS) Fail(temporary, "exchanged with the one there is");
    if (WhyIncomplete(path, step).empty()) {
      RemoveOurFiles(old);
      Rename(path, old);
    } else {
      RemoveOurFiles(path);  // `old` may be the one that counts.
    }
    Rename(temporary, path);
  }
  SyncDirectory(checkpoints);
  RemoveOurFiles(temporary);
  RemoveOurFiles(old);
}

void RemoveOlder(const std::string& checkpoints, int64_t step, int64_t keep_last) {
  if (keep_last <= 0) return;
  int64_t kept = 1;  // `step` itself.
  try {
    const std::set<int64_t> steps = Steps(checkpoints);
    for (auto it = std::make_reverse_iterator(steps.lower_bound(step)); it != steps.rend(); ++it) {
      const std::optional<std::string> path = CompleteStep(checkpoints, *it);
      if (!path || ++kept <= keep_last) continue;
      RemoveCheckpoint(*path, checkpoints + "/" + StepName(*it) + kTemporary);
    }
  } catch (const CheckpointError&) {  // The new one is safe: that is what the caller asked for.
  }
}

// Does `work` on this rank and waits until all have done theirs. Returns the results by rank; where
// any failed, throws a CheckpointError with the first one's reason on all of them.
std::vector<std::string> Together(Store& store, const std::string& key, const ShardPlace& place,
                                  const std::function<std::string()>& work) {
  constexpr size_t kMaxReason = 4096;
  std::string outcome;  // '+' and the result, or '-' and the reason.
  try {
    outcome.append(1, '+').append(work());
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    outcome = std::string(1, '-').append(std::string(error.what()), 0, kMaxReason);
  }
  std::vector<std::string> all = Exchange(store, key, place.rank, place.world, outcome);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].starts_with('-')) {
      throw CheckpointError("the checkpoint was not saved: rank " + std::to_string(rank) + ": " +
                            all[rank].substr(1));
    }
    all[rank].erase(0, 1);
  }
  return all;
}

}  // namespace

SavedCheckpoint SaveCheckpoint(const std::string& checkpoints, const Layout& layout,
                               const ShardPlace& place, const std::vector<CheckpointState>& states,
                               const CheckpointMeta& meta, Store& store, int64_t attempt,
                               int64_t keep_last) {
  CheckArguments("SaveCheckpoint", layout, place, states);
  const std::string path = checkpoints + "/" + StepName(meta.step);
  const std::string temporary = path + kTemporary;
  const std::string key = "checkpoint/" + std::to_string(attempt);
  const auto file_key = [&](int rank) { return key + "/file/" + std::to_string(rank); };
  const bool first = place.rank == 0;

  Together(store, key + "/begin", place, [&] {
    if (!first) return "";
    std::error_code error;
    fs::create_directories(checkpoints, error);
    if (error) throw CheckpointError(checkpoints + ": cannot be made: " + error.message());
    RemoveLeftovers(checkpoints);
    if (::mkdir(temporary.c_str(), 0777) != 0 && errno != EEXIST) Fail(temporary, "made");
    return "";
  });
  try {
    Together(store, key + "/written", place, [&] {
      store.Set(file_key(place.rank),
                ManifestFileToJson(WriteRankFile(temporary, layout, place, states)));
      return "";
    });
    const std::vector<std::string> bytes = Together(store, key + "/done", place, [&] {
      if (!first) return std::string();
      Manifest manifest;
      manifest.meta = meta;
      manifest.world = place.world;
      manifest.shards = layout.shards;
      for (const CheckpointState& state : states) manifest.states.push_back(state.name);
      manifest.units = layout.units;
      for (int rank = 0; rank < place.world; ++rank) {
        manifest.files.push_back(ParseManifestFile(store.Get(file_key(rank)), file_key(rank)));
        store.Set(file_key(rank), "");  // The Store keeps what it is given.
      }
      const std::string text = ManifestToText(manifest);
      ParseManifest(text, temporary);  // What no load would accept must not replace what one would.
      WriteWholeFile(temporary + "/" + kManifestName, text);  // Syncs the directory, too.
      Publish(checkpoints, temporary, meta.step);
      WriteWholeFile(checkpoints + "/latest", StepName(meta.step));
      RemoveOlder(checkpoints, meta.step, keep_last);
      return std::to_string(manifest.DataBytes() + static_cast<int64_t>(text.size()));
    });
    return {path, std::stoll(bytes[0])};
  } catch (const CheckpointError&) {
    if (first) RemoveOurFiles(temporary);  // All ranks have said that they are done with it.
    throw;
  }
}

std::optional<std::string> FindLatestCheckpoint(const std::string& checkpoints) {
  std::string named;
  if (const std::string latest = checkpoints + "/latest"; Exists(latest)) {
    named = ReadWholeFile(latest);
    while (!named.empty() && named.back() == '\n') named.pop_back();
    const std::optional<int64_t> step = StepOf(named);
    if (auto path = step ? CompleteStep(checkpoints, *step) : std::nullopt) return path;
  }
  const std::set<int64_t> steps = Steps(checkpoints);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (auto path = CompleteStep(checkpoints, *step)) return path;
  }
  if (!named.empty()) {
    const std::optional<int64_t> step = StepOf(named);
    throw CheckpointError(
        checkpoints + "/latest names a checkpoint, but none is complete: " +
        (step ? WhyIncomplete(checkpoints + "/" + named, *step) : "it is not the name of one"));
  }
  return std::nullopt;
}

std::string FindCheckpoint(const std::string& checkpoints, int64_t step) {
  if (auto path = CompleteStep(checkpoints, step)) return *path;
  std::string others;
  for (const int64_t other : Steps(checkpoints)) {
    if (!CompleteStep(checkpoints, other)) continue;
    others += (others.empty() ? "" : ", ") + std::to_string(other);
  }
  const std::string path = checkpoints + "/" + StepName(step);
  throw CheckpointError("no complete checkpoint of step " + std::to_string(step) + ": " +
                        WhyIncomplete(path, step) + "; there are those of steps " +
                        (others.empty() ? "none" : others));
}

CheckpointMeta ReadCheckpointMeta(const std::string& directory) {
  return ReadManifest(directory).meta;
}

CheckpointMeta LoadCheckpoint(const std::string& directory, const Layout& layout,
                              const ShardPlace& place, const std::vector<CheckpointState>& states) {
  CheckArguments("LoadCheckpoint", layout, place, states);
  CheckpointReader reader(directory);
  // All of it, whatever this rank's shard holds: so all ranks refuse alike.
  std::set<std::string> wanted;
  for (const UnitLayout& unit : layout.units) {
    for (const Placement& p : unit.parameters) {
      wanted.insert(p.name);
      for (const CheckpointState& state : states) reader.Read(state.name, p.name, p.shape, 0, {});
    }
  }
  for (const UnitLayout& unit : reader.manifest().units) {
    for (const Placement& p : unit.parameters) {
      if (wanted.count(p.name) == 0) {
        throw CheckpointError(directory + ": holds parameter '" + p.name +
                              "', which the model does not have");
      }
    }
  }

  for (const CheckpointState& state : states) {
    for (size_t u = 0; u < layout.units.size(); ++u) {
      const std::span<float> shard(state.shards[u].As<float>(),
                                   static_cast<size_t>(layout.units[u].shard_size));
      auto gap = shard.begin();
      for (const Piece& piece : PiecesOfShard(layout.units[u], place.shard)) {
        const auto at = shard.begin() + piece.at;
        std::fill(gap, at, 0.0f);
        reader.Read(state.name, piece.parameter->name, piece.parameter->shape, piece.begin,
                    {at, static_cast<size_t>(piece.count)});
        gap = at + piece.count;
      }
      std::fill(gap, shard.end(), 0.0f);
    }
  }
  return reader.manifest().meta;
}

}  // namespace fsdp
