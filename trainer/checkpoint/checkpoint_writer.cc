#include "trainer/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <stdexcept>

#include "trainer/checkpoint/new_directory.h"
#include "trainer/core/whole_file.h"

namespace fsdp {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;  // Elements that are held.

// Elements [begin, begin + out.size()) of a flat parameter's state.
void ReadFlatParameter(const FlatParameter& flat, const std::string& state, int64_t begin,
                       std::span<float> out, const ReadElements& read) {
  std::fill(out.begin(), out.end(), 0.0f);
  const int64_t end = begin + static_cast<int64_t>(out.size());
  for (const Placement& p : flat.parameters) {
    const int64_t from = std::max(begin, p.offset), to = std::min(end, p.offset + p.size());
    if (from >= to) continue;
    read(state, p, from - p.offset,
         out.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from)));
  }
}

}  // namespace

SavedCheckpoint WriteCheckpoint(const std::string& out, const WholeCheckpoint& checkpoint,
                                const ReadElements& read, const ByteProgress& progress) {
  const Layout& layout = checkpoint.layout;
  if (checkpoint.world < 1 || layout.shards < 1 || checkpoint.world % layout.shards != 0) {
    throw std::invalid_argument("[WriteCheckpoint] a world of " + std::to_string(checkpoint.world) +
                                " is no multiple of F = " + std::to_string(layout.shards));
  }
  Manifest manifest;
  manifest.meta = checkpoint.meta;
  manifest.world = checkpoint.world;
  manifest.shards = layout.shards;
  manifest.states = checkpoint.states;
  manifest.flat_parameters = layout.flat_parameters;

  int64_t total = 0, done = 0;
  for (const FlatParameter& flat : layout.flat_parameters) {
    for (const std::string& state : checkpoint.states) {
      if (FlatHasState(flat, state)) total += flat.size * static_cast<int64_t>(sizeof(float));
    }
  }
  NewDirectory directory(out);
  std::vector<float> block;
  for (int rank = 0; rank < checkpoint.world; ++rank) {
    const ShardPlace place = PlaceOfRank(rank, checkpoint.world, layout.shards);
    RankFileWriter file(directory.temporary(), layout, place, checkpoint.states);
    for (size_t i = 0; i < file.slices().size(); ++i) {
      const RankFileWriter::Slice& slice = file.slices()[i];
      for (int64_t at = 0; at < slice.count; at += kBlock) {
        block.resize(static_cast<size_t>(std::min(kBlock, slice.count - at)));
        ReadFlatParameter(layout.flat_parameters[slice.flat], slice.state, slice.begin + at, block,
                          read);
        file.Append(i, block);
        done += static_cast<int64_t>(block.size() * sizeof(float));
        if (progress) progress(done, total);
      }
    }
    manifest.files.push_back(file.Finish());
  }
  const std::string text = ManifestToText(manifest);
  ParseManifest(text, out);  // What no load would accept must not come to exist.
  WriteWholeFile(directory.temporary() + "/" + kManifestName, text);
  directory.Publish();
  return {out, manifest.DataBytes() + static_cast<int64_t>(text.size())};
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
    const int64_t to = kShardAlignment * shards;
    flat.size = (end + to - 1) / to * to;
    flat.shard_size = flat.size / shards;
  }
  return layout;
}

SavedCheckpoint ReshardCheckpoint(const std::string& source, int world, int shards,
                                  const std::string& out, const ByteProgress& progress) {
  CheckpointReader reader(source);
  const Manifest& from = reader.manifest();
  const WholeCheckpoint checkpoint{from.meta, Relayout(from.flat_parameters, shards), world,
                                   from.states};
  return WriteCheckpoint(
      out, checkpoint,
      [&](const std::string& state, const Placement& parameter, int64_t begin,
          std::span<float> values) {
        reader.Read(state, parameter.name, parameter.shape, begin, values);
      },
      progress);
}

}  // namespace fsdp
