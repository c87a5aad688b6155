#include "trainer/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <stdexcept>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/comm/together.h"
#include "trainer/core/errors.h"
#include "trainer/core/whole_file.h"

namespace fsdp {
namespace {

std::vector<std::string> NamesOf(const std::vector<CheckpointState>& states) {
  std::vector<std::string> names;
  for (const CheckpointState& state : states) names.push_back(state.name);
  return names;
}

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
    if (state.shards.size() != layout.flat_parameters.size()) {
      wrong("state '" + state.name + "' has " + std::to_string(state.shards.size()) +
            " shards, want " + std::to_string(layout.flat_parameters.size()));
    }
    for (size_t u = 0; u < layout.flat_parameters.size(); ++u) {
      const FlatParameter& flat = layout.flat_parameters[u];
      const int64_t want = FlatHasState(flat, state.name) ? flat.shard_size : 0;
      const View& shard = state.shards[u];
      if (shard.dtype != DType::kFloat32 || shard.NumElements() != want) {
        wrong("state '" + state.name + "', flat parameter " + flat.name + ": " +
              std::string(Name(shard.dtype)) + " of " + std::to_string(shard.NumElements()) +
              " elements, want fp32 of " + std::to_string(want));
      }
    }
  }
}

ManifestFile WriteRankFile(const std::string& directory, const Layout& layout,
                           const ShardPlace& place, const std::vector<CheckpointState>& states,
                           int64_t step, const Store& store) {
  constexpr int64_t kBlock = int64_t{1} << 22;  // Elements between two looks at the store.
  std::map<std::string, const CheckpointState*> by_name;
  for (const CheckpointState& state : states) by_name[state.name] = &state;
  RankFileWriter file(directory, layout, place, NamesOf(states));
  for (size_t i = 0; i < file.slices().size(); ++i) {
    const RankFileWriter::Slice& slice = file.slices()[i];
    const int64_t at = slice.begin - layout.flat_parameters[slice.flat].ShardBegin(place.shard);
    const View& shard = by_name.at(slice.state)->shards[slice.flat];
    for (int64_t done = 0; done < slice.count; done += kBlock) {
      const View from = shard.Slice(at + done, std::min(kBlock, slice.count - done));
      file.Append(i, {from.As<float>(), static_cast<size_t>(from.NumElements())});
      if (!file.not_finite().empty()) {
        throw Error(ExitCode::kNotFinite,
                    file.not_finite() + ": not finite after step " + std::to_string(step) +
                        ", so its update has overflowed. The checkpoint before, if there is one, "
                        "stays in force; a lower optimizer.lr or more schedule.warmup_steps "
                        "usually helps");
      }
      // A job that has ended waits for us.
      if (const std::string why = store.FailureReason(); !why.empty()) throw CommError(why);
    }
  }
  return file.Finish();
}

// What crashed runs left: half-written checkpoints, and such as were set aside or half-removed.
void RemoveLeftovers(const std::string& checkpoints) {
  for (const std::string& name : ListDirectory(checkpoints)) {
    const std::string path = checkpoints + "/" + name;
    if (StepOf(name, kTemporarySuffix)) RemoveOurFiles(path);
    const auto step = StepOf(name, kSetAsideSuffix);
    if (step && WhyIncomplete(checkpoints + "/" + StepName(*step), *step).empty()) {
      RemoveOurFiles(path);
    }
  }
}

// Makes `temporary` the step's checkpoint; at no moment is there none where there was one.
void Publish(const std::string& checkpoints, const std::string& temporary, int64_t step) {
  const std::string path = checkpoints + "/" + StepName(step), old = path + kSetAsideSuffix;
  if (!PathExists(path)) {
    RenamePath(temporary, path);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) !=
             0) {
    if (errno != EINVAL && errno != ENOSYS) FailOn(temporary, "exchanged with the one there is");
    if (WhyIncomplete(path, step).empty()) {
      RemoveOurFiles(old);
      RenamePath(path, old);
    } else {
      RemoveOurFiles(path);  // `old` may be the one that counts.
    }
    RenamePath(temporary, path);
  }
  SyncDirectory(checkpoints);
  RemoveOurFiles(temporary);
  RemoveOurFiles(old);
}

void RemoveOlder(const std::string& checkpoints, int64_t step, int64_t keep_last) {
  if (keep_last <= 0) return;
  int64_t kept = 1;  // `step` itself.
  try {
    const std::vector<int64_t> steps = StepsIn(checkpoints);
    for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
      if (*it >= step || !IsPublished(checkpoints, *it) || ++kept <= keep_last) continue;
      const std::string path = checkpoints + "/" + StepName(*it);
      for (const std::string& directory : {path, path + kSetAsideSuffix}) {
        if (PathExists(directory)) RemoveCheckpoint(directory, path + kTemporarySuffix);
      }
    }
  } catch (const CheckpointError&) {  // The new one is safe: that is what the caller asked for.
  }
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A part of a save that all ranks must have done. Throws what SaveCheckpoint() does.
std::vector<std::string> Part(Store& store, const std::string& key, const ShardPlace& place,
                              const std::function<std::string()>& work) {
  try {
    return Together(store, key, place.rank, place.world, work);
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    const std::string reason = std::string("the checkpoint was not saved: ") + error.what();
    if (error.code() == ExitCode::kNotFinite) throw Error(error.code(), reason);
    throw CheckpointError(reason);
  }
}

}  // namespace

SavedCheckpoint SaveCheckpoint(const std::string& checkpoints, const Layout& layout,
                               const ShardPlace& place, const std::vector<CheckpointState>& states,
                               const CheckpointMeta& meta, Store& store, int64_t attempt,
                               int64_t keep_last) {
  CheckArguments("SaveCheckpoint", layout, place, states);
  const double begin = Now();
  const std::string path = checkpoints + "/" + StepName(meta.step);
  const std::string temporary = path + kTemporarySuffix;
  const std::string key = "checkpoint/" + std::to_string(attempt);
  const auto file_key = [&](int rank) { return key + "/file/" + std::to_string(rank); };
  const bool first = place.rank == 0;

  Part(store, key + "/begin", place, [&] {
    if (!first) return "";
    CreateDirectories(checkpoints);
    RemoveLeftovers(checkpoints);
    if (::mkdir(temporary.c_str(), 0777) != 0 && errno != EEXIST) FailOn(temporary, "made");
    return "";
  });
  if (first) {  // All have come out of the save before.
    const std::string before = "checkpoint/" + std::to_string(attempt - 1) + "/";
    store.Forget(before);
    store.Forget("barrier/" + before);
  }
  try {
    Part(store, key + "/written", place, [&] {
      store.Set(file_key(place.rank), ManifestFileToJson(WriteRankFile(temporary, layout, place,
                                                                       states, meta.step, store)));
      return "";
    });
    const std::vector<std::string> bytes = Part(store, key + "/done", place, [&] {
      if (!first) return std::string();
      Manifest manifest;
      manifest.meta = meta;
      manifest.world = place.world;
      manifest.shards = layout.shards;
      manifest.states = NamesOf(states);
      manifest.flat_parameters = layout.flat_parameters;
      for (int rank = 0; rank < place.world; ++rank) {
        manifest.files.push_back(ParseManifestFile(store.Get(file_key(rank)), file_key(rank)));
        store.Set(file_key(rank), "");  // The Store keeps what it is given.
      }
      const std::string text = ManifestToText(manifest);
      ParseManifest(text, temporary);  // What no load would accept must not replace what one would.
      WriteWholeFile(temporary + "/" + kManifestName, text);  // Syncs the directory, too.
      ReadManifest(
          temporary);  // As a reader sees it: the manifest, and all files with their sizes.
      Publish(checkpoints, temporary, meta.step);
      WriteWholeFile(checkpoints + "/latest", StepName(meta.step));
      RemoveOlder(checkpoints, meta.step, keep_last);
      return std::to_string(manifest.DataBytes() + static_cast<int64_t>(text.size()));
    });
    return {path, std::stoll(bytes[0]), Now() - begin};
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {
    if (first) RemoveOurFiles(temporary);  // All ranks have said that they are done with it.
    throw;
  }
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
  for (const FlatParameter& flat : layout.flat_parameters) {
    for (const Placement& p : flat.parameters) {
      wanted.insert(p.name);
      for (const CheckpointState& state : states) {
        if (FlatHasState(flat, state.name)) reader.Read(state.name, p.name, p.shape, 0, {});
      }
    }
  }
  for (const FlatParameter& flat : reader.manifest().flat_parameters) {
    for (const Placement& p : flat.parameters) {
      if (wanted.count(p.name) == 0) {
        throw CheckpointError(directory + ": holds parameter '" + p.name +
                              "', which the model does not have");
      }
    }
  }

  for (const CheckpointState& state : states) {
    for (size_t u = 0; u < layout.flat_parameters.size(); ++u) {
      if (!FlatHasState(layout.flat_parameters[u], state.name)) continue;
      const std::span<float> shard(state.shards[u].As<float>(),
                                   static_cast<size_t>(layout.flat_parameters[u].shard_size));
      auto gap = shard.begin();
      for (const Piece& piece : PiecesOfShard(layout.flat_parameters[u], place.shard)) {
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
