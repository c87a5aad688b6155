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
#include <memory>
#include <set>
#include <stdexcept>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/manifest_writer.h"
#include "trainer/checkpoint/state_format.h"
#include "trainer/comm/store/together.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/read_file.h"
#include "trainer/core/round_up.h"
#include "trainer/runtime/memory.h"

namespace fsdp {
namespace {

std::vector<StateFormat> FormatsOf(const std::vector<CheckpointState>& states) {
  std::vector<StateFormat> formats;
  for (const CheckpointState& state : states) {
    StateFormat& format = formats.emplace_back();
    format.name = state.name;
    format.grid = state.grid;
    for (const View& shard : state.shards) {
      format.dtypes.push_back(shard.dtype);
      if (state.grid == Grid::kBlock) format.coded.push_back(shard.NumElements() > 0);
    }
    for (const CheckpointState::Tensor& t : state.tensors) {
      Shape shape = t.value.shape;
      if (state.grid == Grid::kRows) {
        shape = shape.rank() == 1 ? Shape{t.rows} : Shape{t.rows, shape[1]};
      }
      format.tensors.push_back({t.name, t.owner, t.value.dtype, shape, t.writer});
    }
  }
  return formats;
}

// Whether it is the place of a rank, with `shards` of them a replica.
bool IsPlaceOfMesh(const ShardPlace& place, int shards) {
  try {
    return PlaceOn(Mesh(place.rank, place.world, shards)) == place;
  } catch (const std::invalid_argument&) {  // There is no such mesh.
    return false;
  }
}

void CheckArguments(const char* function, const Layout& layout, const ShardPlace& place,
                    const std::vector<CheckpointState>& states) {
  const auto wrong = [&](const std::string& why) {
    throw std::invalid_argument("[" + std::string(function) + "] " + why);
  };
  if (!IsPlaceOfMesh(place, layout.shards)) {
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
    const bool own = HasOwnTensors(state.grid);
    const size_t shards = own ? 0 : layout.flat_parameters.size();
    if (state.shards.size() != shards || (!own && !state.tensors.empty())) {
      wrong("state '" + state.name + "' has " + std::to_string(state.shards.size()) +
            " shards and " + std::to_string(state.tensors.size()) + " tensors, want " +
            std::to_string(shards) + " shards" + (own ? "" : " and no tensors"));
    }
    for (size_t u = 0; u < shards; ++u) {
      const FlatParameter& flat = layout.flat_parameters[u];
      const View& shard = state.shards[u];
      int64_t want = FlatHasState(flat, state.name) ? flat.shard_size : 0;
      if (state.grid == Grid::kBlock) want = shard.NumElements() == 0 ? 0 : want / kCodeBlock;
      if (!IsStateDType(shard.dtype, state.grid) || shard.NumElements() != want) {
        wrong("state '" + state.name + "', unit " + flat.name + ": " +
              std::string(Name(shard.dtype)) + " of " + std::to_string(shard.NumElements()) +
              " values, want " + std::to_string(want) + " of fp32, bf16, fp16 or uint8");
      }
    }
    std::set<std::string> tensors;
    for (const CheckpointState::Tensor& t : state.tensors) {
      if (t.name.empty() || !tensors.insert(t.name).second ||
          !IsStateDType(t.value.dtype, state.grid) ||
          (state.grid == Grid::kTensor && t.value.NumElements() == 0)) {
        wrong("state '" + state.name + "': tensor '" + t.name + "' has no name of its own, is " +
              "empty, or of dtype " + std::string(Name(t.value.dtype)));
      }
    }
  }
}

bool IsSpilled(const CheckpointState& state, ConstView shard) {
  return state.spill != nullptr && state.spill->Holds(shard);
}

ManifestFile WriteRankFile(const std::string& directory, const Layout& layout,
                           const ShardPlace& place, const std::vector<CheckpointState>& states,
                           int64_t step, const Store& store) {
  constexpr int64_t kBlock = int64_t{1} << 22;  // Values between two looks at the store.
  const std::vector<StateFormat> formats = FormatsOf(states);
  RankFileWriter file(directory, layout, place, formats);
  const auto append = [&](size_t i, ConstView values) {
    file.Append(i, values);
    if (!file.not_finite().empty()) {
      throw Error(ExitCode::kNotFinite,
                  file.not_finite() + ": not finite after step " + std::to_string(step) +
                      ", so its update has overflowed. The checkpoint before, if there is one, "
                      "stays in force; a lower optimizer.lr or more schedule.warmup_steps "
                      "usually helps");
    }
    // A job that has ended waits for us.
    if (const std::string why = store.FailureReason(); !why.empty()) throw CommError(why);
  };
  for (size_t i = 0; i < file.slices().size(); ++i) {
    const RankFileWriter::Slice& slice = file.slices()[i];
    const CheckpointState& state = states[slice.state];
    View values;
    if (slice.tensor >= 0) {
      values = state.tensors[slice.tensor].value;
      if (state.grid == Grid::kRows) values = values.Reshape(Shape{values.NumElements()});
      if (values.data == nullptr) {
        throw std::invalid_argument("[SaveCheckpoint] rank " + std::to_string(place.rank) +
                                    " does not hold tensor '" + state.tensors[slice.tensor].name +
                                    "' of state '" + state.name + "', which it has to write");
      }
    } else {
      const int64_t at = slice.begin - layout.flat_parameters[slice.flat].ShardBegin(place.shard);
      values = state.shards[slice.flat].Slice(at / slice.elements_per_value, slice.values());
    }
    if (IsSpilled(state, values)) {
      state.spill->ReadInOrder(values, [&](ConstView block) { append(i, block); });
      continue;
    }
    for (int64_t done = 0; done < slice.values(); done += kBlock) {
      append(i, values.Slice(done, std::min(kBlock, slice.values() - done)));
    }
  }
  return file.Finish();
}

// Removes the leftovers of crashed runs: checkpoints half-written, set aside or half-removed.
void RemoveLeftovers(const std::string& checkpoints) {
  for (const std::string& name : ListDirectory(checkpoints)) {
    const std::string path = checkpoints + "/" + name;
    if (StepOf(name, kTemporarySuffix)) RemoveOurFiles(path);
    const auto step = StepOf(name, kSetAsideSuffix);
    if (step && WhyIncomplete(checkpoints + "/" + StepName(*step), *step).empty()) {
      RemoveReplaced(checkpoints, path, *step);
    }
  }
}

// Whether a directory that is there holds the step, whole. Throws where its manifest cannot be
// read: it may be whole, and is not taken for a damaged one.
bool HoldsWhole(const std::string& directory, int64_t step) {
  if (WhyIncomplete(directory, step).empty()) return true;
  const std::string path = directory + "/" + kManifestName;
  const int error = ReadFileText(path, kAnySize).error;
  if (error == 0 || error == ENOENT || error == EISDIR) {
    return WhyIncomplete(directory, step).empty();  // It could not be read a moment ago.
  }
  errno = error;
  FailOn(path, "read");
}

// Makes `temporary` the step's checkpoint; at no moment is there none where there was one.
void Publish(const std::string& checkpoints, const std::string& temporary, int64_t step) {
  const std::string path = checkpoints + "/" + StepName(step), old = path + kSetAsideSuffix;
  if (!PathExists(path)) {
    RenamePath(temporary, path);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) !=
             0) {
    if (errno != EINVAL && errno != ENOSYS) FailOn(temporary, "exchanged with the one there is");
    if (HoldsWhole(path, step)) {
      RemoveReplaced(checkpoints, old, step);
      RenamePath(path, old);
    } else {
      RemoveOurFiles(path);  // `old` may be the one that counts.
    }
    RenamePath(temporary, path);
  }
  SyncDirectory(checkpoints);
  RemoveReplaced(checkpoints, temporary, step);
  RemoveReplaced(checkpoints, old, step);
}

// Removes what `keep` does not keep, with `best` named anew before. `step` is new.
void RemoveOlder(const std::string& checkpoints, int64_t step, const KeptCheckpoints& keep) {
  try {
    std::vector<int64_t> steps = StepsIn(checkpoints);
    std::erase_if(steps, [&](int64_t other) { return other > step; });
    const bool all = keep.last <= 0;
    const std::set<int64_t> best = BestOf(checkpoints, steps, all ? 0 : keep.best);
    std::vector<int64_t> kept, removed;
    int64_t newest = 1;  // `step` itself.
    for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
      const bool stays = all || *it == step || !IsPublished(checkpoints, *it) ||
                         ++newest <= keep.last || best.count(*it) > 0;
      (stays ? kept : removed).push_back(*it);
    }
    try {
      NameBest(checkpoints, kept, step);
    } catch (const CheckpointError&) {  // A full disk, say: the next save names it.
      ::unlink((checkpoints + "/best").c_str());
    }
    for (const int64_t other : removed) {
      const std::string path = checkpoints + "/" + StepName(other);
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
    const ExitCode code =
        error.code() == ExitCode::kNotFinite ? error.code() : ExitCode::kCheckpoint;
    if (dynamic_cast<const ReportedElsewhere*>(&error))
      throw ReportedElsewhere(Error(code, reason));
    if (code == ExitCode::kCheckpoint) throw CheckpointError(reason);
    throw Error(code, reason);
  }
}

}  // namespace

SavedCheckpoint SaveCheckpoint(const std::string& checkpoints, const Layout& layout,
                               const ShardPlace& place, const std::vector<CheckpointState>& states,
                               const CheckpointMeta& meta, Store& store, int64_t attempt,
                               const KeptCheckpoints& kept) {
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
      manifest.states = FormatsOf(states);
      manifest.flat_parameters = layout.flat_parameters;
      for (int rank = 0; rank < place.world; ++rank) {
        manifest.files.push_back(ParseManifestFile(store.Get(file_key(rank)), file_key(rank)));
        store.Set(file_key(rank), "");  // The Store keeps what it is given.
      }
      const std::string text = ManifestToText(manifest);
      ParseManifest(text, temporary);                          // Throws what a load would refuse.
      WriteAtomicFile(temporary + "/" + kManifestName, text);  // Syncs the directory, too.
      ReadManifest(
          temporary);  // As a reader sees it: the manifest, and all files with their sizes.
      Publish(checkpoints, temporary, meta.step);
      WriteAtomicFile(checkpoints + "/latest", StepName(meta.step));
      RemoveOlder(checkpoints, meta.step, kept);
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

namespace {

// A View of the dtype without elements: whoever is to fill it only looks whether it could.
View Nothing(DType dtype) { return {nullptr, dtype, Shape{0}}; }

// That the checkpoint has what this run asks it for, and no more: whatever this rank's shard holds
// of it, so that all ranks refuse alike.
void CheckContents(CheckpointReader& reader, const Layout& layout,
                   const std::vector<CheckpointState>& states) {
  std::set<std::string> wanted;
  for (size_t u = 0; u < layout.flat_parameters.size(); ++u) {
    const FlatParameter& flat = layout.flat_parameters[u];
    for (const Placement& p : flat.parameters) {
      wanted.insert(p.name);
      for (const CheckpointState& state : states) {
        if (state.grid == Grid::kElement && FlatHasState(flat, state.name)) {
          reader.Read(state.name, p.name, p.shape, 0, Nothing(state.shards[u].dtype));
        }
        if (state.grid == Grid::kBlock && state.shards[u].NumElements() > 0) {
          reader.ReadAbsmax(state.name, p.name, p.shape, 0, Nothing(DType::kFloat32));
        }
      }
    }
  }
  reader.RequireNoOther(wanted, "the model");
  for (const StateFormat& want : FormatsOf(states)) {
    for (int t = 0; want.grid == Grid::kRows && t < std::ssize(want.tensors); ++t) {
      reader.ReadRows(want, t, 0, 1, 0, Nothing(want.tensors[t].dtype));
    }
    if (want.grid != Grid::kTensor) continue;
    std::set<std::string> names;
    for (const OwnTensor& tensor : want.tensors) {
      names.insert(tensor.name);
      reader.ReadTensor(want.name, tensor, 0, Nothing(tensor.dtype));
    }
    const StateFormat* there = reader.manifest().FindState(want.name);
    if (there == nullptr) continue;  // It has no tensors here either.
    for (const OwnTensor& tensor : there->tensors) {
      if (names.count(tensor.name) == 0) {
        throw CheckpointError(reader.directory() + ": state '" + want.name + "' holds tensor '" +
                              tensor.name + "', which this run does not have");
      }
    }
  }
}

void CheckNoMoreTensors(const CheckpointReader& reader, const char* name, const char* kind,
                        const std::vector<CheckpointState>& states) {
  const StateFormat* const there = reader.manifest().FindState(name);
  const bool asked =
      std::ranges::any_of(states, [&](const CheckpointState& state) { return state.name == name; });
  if (there == nullptr || asked || there->tensors.empty()) return;
  throw CheckpointError(reader.directory() + ": holds " + kind + " '" + there->tensors[0].name +
                        "', which the model does not have");
}

void Clear(View values) { std::fill_n(values.data, values.bytes(), std::byte{0}); }

// The absmax of a rank's shard.
void ReadAbsmax(CheckpointReader& reader, const CheckpointState& state, const FlatParameter& flat,
                int shard, const View& out) {
  Clear(out);
  for (const Piece& piece : PiecesOfShard(flat, shard)) {
    const int64_t first = piece.at / kCodeBlock;
    reader.ReadAbsmax(
        state.name, piece.parameter->name, piece.parameter->shape, piece.begin,
        out.Slice(first, RoundUp(piece.at + piece.count, kCodeBlock) / kCodeBlock - first));
  }
}

// The values of a rank's shard from `begin` on.
void ReadShard(CheckpointReader& reader, const CheckpointState& state, const FlatParameter& flat,
               int shard, int64_t begin, const View& out) {
  const int64_t end = begin + out.NumElements();
  int64_t gap = begin;
  for (const Piece& piece : PiecesOfShard(flat, shard)) {
    const int64_t from = std::max(piece.at, begin), to = std::min(piece.at + piece.count, end);
    if (from >= to) continue;
    Clear(out.Slice(gap - begin, from - gap));
    reader.Read(state.name, piece.parameter->name, piece.parameter->shape,
                piece.begin + from - piece.at, out.Slice(from - begin, to - from));
    gap = to;
  }
  Clear(out.Slice(gap - begin, end - gap));
}

// Memory that a disk takes as it is.
struct alignas(kSpillAlignment) SpillBlock {
  std::byte bytes[size_t{4} << 20];
};

}  // namespace

LoadedCheckpoint LoadCheckpoint(const std::string& directory, const Layout& layout,
                                const ShardPlace& place,
                                const std::vector<CheckpointState>& states) {
  CheckArguments("LoadCheckpoint", layout, place, states);
  CheckpointReader reader(directory);
  CheckContents(reader, layout, states);
  CheckNoMoreTensors(reader, kBuffersState, "buffer", states);
  CheckNoMoreTensors(reader, kRowsState, "table", states);
  std::unique_ptr<SpillBlock> spill_block;
  for (const CheckpointState& state : states) {
    for (size_t u = 0; u < state.shards.size(); ++u) {
      const FlatParameter& flat = layout.flat_parameters[u];
      const View& shard = state.shards[u];
      if (!FlatHasState(flat, state.name)) continue;
      if (state.grid == Grid::kBlock) {
        if (shard.NumElements() > 0) ReadAbsmax(reader, state, flat, place.shard, shard);
        continue;
      }
      if (!IsSpilled(state, shard)) {
        ReadShard(reader, state, flat, place.shard, 0, shard);
        continue;
      }
      if (!spill_block) spill_block = std::make_unique_for_overwrite<SpillBlock>();
      const auto most = static_cast<int64_t>(sizeof(SpillBlock)) / SizeOf(shard.dtype);
      for (int64_t begin = 0; begin < shard.NumElements(); begin += most) {
        const View part = shard.Slice(begin, std::min(most, shard.NumElements() - begin));
        const View in_memory(spill_block->bytes, part.dtype, part.shape);
        ReadShard(reader, state, flat, place.shard, begin, in_memory);
        state.spill->Write(in_memory, part);
      }
    }
    if (state.grid == Grid::kRows) {
      const StateFormat format = FormatsOf({state})[0];
      for (int t = 0; t < std::ssize(state.tensors); ++t) {
        const View& rows = state.tensors[t].value;
        reader.ReadRows(format, t, place.rank, place.world, 0,
                        rows.Reshape(Shape{rows.NumElements()}));
      }
      continue;
    }
    for (const CheckpointState::Tensor& t : state.tensors) {
      if (t.value.data == nullptr) continue;
      reader.ReadTensor(state.name, {t.name, t.owner, t.value.dtype, t.value.shape}, 0, t.value);
    }
  }
  return {reader.manifest().meta, DescribeConversion(reader.manifest(), layout, FormatsOf(states))};
}

}  // namespace fsdp
