#include "trainer/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/manifest_writer.h"
#include "trainer/checkpoint/new_directory.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/read_file.h"
#include "trainer/core/round_up.h"

namespace fsdp {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;  // Values; two are held.

using ReadView = std::function<void(const std::string& state, const Placement& parameter,
                                    int64_t begin, View out)>;

// Elements [begin, begin + n) of a flat parameter's state.
void ReadFlatParameter(const FlatParameter& flat, const std::string& state, int64_t begin, View out,
                       const ReadView& read) {
  std::fill_n(out.data, out.bytes(), std::byte{0});
  const int64_t end = begin + out.NumElements();
  for (const Placement& p : flat.parameters) {
    const int64_t from = std::max(begin, p.offset), to = std::min(end, p.offset + p.size());
    if (from >= to) continue;
    read(state, p, from - p.offset, out.Slice(from - begin, to - from));
  }
}

// The values of a slice of that rank's file, from its element `at` on.
using ReadSlice =
    std::function<void(const RankFileWriter::Slice& slice, int rank, int64_t at, View out)>;

int64_t RowOf(const OwnTensor& table) { return table.shape.NumElements() / table.shape[0]; }

// All ranks' files and the manifest, of which `files` are still to come.
SavedCheckpoint Write(const std::string& out, Manifest manifest, const Layout& layout,
                      const std::map<std::string, std::string>& beside, const ReadSlice& read,
                      const ByteProgress& progress) {
  if (manifest.world < 1 || layout.shards < 1 || manifest.world % layout.shards != 0) {
    throw std::invalid_argument("[WriteCheckpoint] a world of " + std::to_string(manifest.world) +
                                " is no multiple of F = " + std::to_string(layout.shards));
  }
  manifest.shards = layout.shards;
  manifest.flat_parameters = layout.flat_parameters;

  int64_t total = 0, done = 0;
  for (const StateFormat& state : manifest.states) {
    for (size_t u = 0; u < state.dtypes.size(); ++u) {
      const FlatParameter& flat = layout.flat_parameters[u];
      if (!state.Has(flat, u)) continue;
      total += flat.size / state.elements_per_value() * SizeOf(state.dtypes[u]);
    }
    for (const OwnTensor& t : state.tensors) total += t.shape.NumElements() * SizeOf(t.dtype);
  }
  NewDirectory directory(out);
  std::array<std::vector<std::byte>, 2> blocks;
  for (int rank = 0; rank < manifest.world; ++rank) {
    const ShardPlace place = PlaceOn(Mesh(rank, manifest.world, layout.shards));
    RankFileWriter file(directory.temporary(), layout, place, manifest.states);
    for (size_t i = 0; i < file.slices().size(); ++i) {
      const RankFileWriter::Slice& slice = file.slices()[i];
      const auto in_block = [&](int b, int64_t count) {
        const auto bytes = static_cast<size_t>(count * SizeOf(slice.dtype));
        if (blocks[b].size() < bytes) blocks[b].resize(bytes);
        return View(blocks[b].data(), slice.dtype, Shape{count});
      };
      const auto read_block = [&](int b, int64_t at, int64_t count) {
        read(slice, rank, at, in_block(b, count));
      };
      const auto append = [&](int b, int64_t, int64_t count) {
        const View values = in_block(b, count);
        file.Append(i, values);
        done += values.bytes();
        if (progress) progress(done, total);
      };
      // Rows are read whole.
      const StateFormat& state = manifest.states[slice.state];
      const int64_t row = state.grid == Grid::kRows ? RowOf(state.tensors[slice.tensor]) : 1;
      ReadAhead(slice.values(), std::max<int64_t>(kBlock / row, 1) * row, read_block, append);
    }
    manifest.files.push_back(file.Finish());
  }
  manifest.meta.beside.clear();
  for (const auto& [name, contents] : beside) {
    directory.Write(name, contents);
    manifest.meta.beside.push_back(name);
  }
  const std::string text = ManifestToText(manifest);
  ParseManifest(text, out);  // Throws what a load would refuse.
  directory.Write(kManifestName, text);
  directory.Publish();
  return {out, manifest.DataBytes() + static_cast<int64_t>(text.size())};
}

}  // namespace

SavedCheckpoint WriteCheckpoint(const std::string& out, const WholeCheckpoint& checkpoint,
                                const ReadElements& read, const ByteProgress& progress,
                                const ReadBuffer& read_buffer) {
  Manifest manifest;
  manifest.meta = checkpoint.meta;
  manifest.world = checkpoint.world;
  manifest.states = ElementStates(checkpoint.states, checkpoint.layout.flat_parameters.size());
  if (!checkpoint.buffers.empty()) {
    manifest.states.push_back({kBuffersState, Grid::kTensor, {}, checkpoint.buffers});
  }
  const ReadView read_view = [&](const std::string& state, const Placement& parameter,
                                 int64_t begin, View values) {
    read(state, parameter, begin, {values.As<float>(), static_cast<size_t>(values.NumElements())});
  };
  return Write(
      out, std::move(manifest), checkpoint.layout, checkpoint.beside,
      [&](const RankFileWriter::Slice& slice, int, int64_t at, View values) {
        if (slice.tensor >= 0) return read_buffer(checkpoint.buffers[slice.tensor], at, values);
        ReadFlatParameter(checkpoint.layout.flat_parameters[slice.flat],
                          checkpoint.states[slice.state], slice.begin + at, values, read_view);
      },
      progress);
}

Layout Relayout(const std::vector<FlatParameter>& flats, int shards) {
  if (shards < 1) {
    throw std::invalid_argument("[Relayout] " + std::to_string(shards) + " shards, want >= 1");
  }
  Layout layout;
  layout.shards = shards;
  layout.flat_parameters = flats;
  for (FlatParameter& flat : layout.flat_parameters) {
    int64_t end = 0;
    for (const Placement& p : flat.parameters) end = std::max(end, p.offset + p.size());
    const int64_t to = ShardAlignment(flat.dtypes) * shards;
    flat.size = RoundUp(end, to);
    flat.shard_size = flat.size / shards;
  }
  return layout;
}

SavedCheckpoint ReshardCheckpoint(const std::string& source, int world, int shards,
                                  const std::string& out, const ByteProgress& progress) {
  return ReshardCheckpoint(CheckpointHold(source), world, shards, out, progress);
}

SavedCheckpoint ReshardCheckpoint(CheckpointHold source, int world, int shards,
                                  const std::string& out, const ByteProgress& progress) {
  CheckpointReader reader(std::move(source));
  const Manifest& from = reader.manifest();
  const Layout layout = Relayout(from.flat_parameters, shards);
  Manifest manifest;
  manifest.meta = from.meta;
  manifest.meta.records.reset();  // They belong to the run directory.
  manifest.world = world;
  manifest.states = from.states;
  const ReadView read_view = [&](const std::string& state, const Placement& parameter,
                                 int64_t begin, View values) {
    reader.Read(state, parameter.name, parameter.shape, begin, values);
  };
  const auto read = [&](const RankFileWriter::Slice& slice, int rank, int64_t at, View values) {
    const StateFormat& state = from.states[slice.state];
    const int64_t begin = slice.begin + at * slice.elements_per_value;
    switch (state.grid) {
      case Grid::kElement:
        return ReadFlatParameter(layout.flat_parameters[slice.flat], state.name, begin, values,
                                 read_view);
      case Grid::kBlock: {
        std::fill_n(values.data, values.bytes(), std::byte{0});
        const int64_t end = begin + values.NumElements() * kCodeBlock;
        for (const Piece& p : PiecesBetween(layout.flat_parameters[slice.flat], begin, end)) {
          const int64_t first = p.at / kCodeBlock;
          const int64_t count = RoundUp(p.at + p.count, kCodeBlock) / kCodeBlock - first;
          reader.ReadAbsmax(state.name, p.parameter->name, p.parameter->shape, p.begin,
                            values.Slice(first, count));
        }
        return;
      }
      case Grid::kTensor:
        return reader.ReadTensor(state.name, state.tensors[slice.tensor], begin, values);
      case Grid::kRows: {
        const int64_t row = RowOf(state.tensors[slice.tensor]);
        return reader.ReadRows(state, slice.tensor, rank, world, at / row, values);
      }
    }
  };
  std::map<std::string, std::string> beside;
  for (const std::string& name : from.meta.beside) {
    beside[name] = ReadWholeFile(reader.directory() + "/" + name, kAnySize);
  }
  return Write(out, std::move(manifest), layout, beside, read, progress);
}

}  // namespace fsdp
