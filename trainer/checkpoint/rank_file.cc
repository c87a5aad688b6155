#include "trainer/checkpoint/rank_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "trainer/checkpoint/finite.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

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

std::string TensorName(const std::string& state, const std::string& of, DType dtype) {
  return state + "/" + of + "/" + std::string(Name(dtype));
}

// Who writes a tensor of its own: the same at any number of replicas.
int WriterOf(const Layout& layout, const std::string& owner) {
  if (owner.empty()) return 0;
  for (const FlatParameter& flat : layout.flat_parameters) {
    for (const Placement& p : flat.parameters) {
      if (p.name == owner)
        return static_cast<int>(p.offset / std::max<int64_t>(flat.shard_size, 1));
    }
  }
  throw std::invalid_argument("[RankFileWriter] no parameter '" + owner + "' to own a tensor");
}

}  // namespace

ShardPlace PlaceOn(const Mesh& mesh) {
  const Mesh::Coordinate at = mesh.coordinate();
  return {mesh.position(), mesh.world_size(), at.shard, at.replicate, mesh.replicate_size()};
}

RankFileWriter::RankFileWriter(const std::string& directory, const Layout& layout,
                               const ShardPlace& place, const std::vector<StateFormat>& states)
    : layout_(layout), states_(states) {
  for (size_t s = 0; s < states.size(); ++s) {
    const StateFormat& state = states[s];
    Slice slice;
    slice.state = static_cast<int>(s);
    for (size_t u = 0; u < state.dtypes.size(); ++u) {
      const FlatParameter& flat = layout.flat_parameters[u];
      const Part part = PartOfReplica(flat.shard_size, place);
      if (part.count == 0 || !state.Has(flat, u)) continue;
      slice.elements_per_value = state.elements_per_value();
      slice.flat = static_cast<int>(u);
      slice.begin = flat.ShardBegin(place.shard) + part.begin;
      slice.count = part.count;
      slice.dtype = state.dtypes[u];
      slices_.push_back(slice);
    }
    slice = {};
    slice.state = static_cast<int>(s);
    if (state.grid == Grid::kRows) {
      AddRows(state, slice, place);
      continue;
    }
    for (size_t t = 0; t < state.tensors.size(); ++t) {
      const OwnTensor& tensor = state.tensors[t];
      if (tensor.writer.value_or(WriterOf(layout, tensor.owner)) != place.rank) continue;
      slice.tensor = static_cast<int>(t);
      slice.count = tensor.shape.NumElements();
      slice.dtype = tensor.dtype;
      slices_.push_back(slice);
    }
  }
  // As SafetensorsWriter lays them: checksums need the order of the file.
  std::stable_sort(slices_.begin(), slices_.end(), [](const Slice& a, const Slice& b) {
    return SizeOf(a.dtype) > SizeOf(b.dtype);
  });
  std::vector<SafetensorsEntry> entries;
  file_.name = RankFileName(place.rank);
  for (const Slice& slice : slices_) {
    const std::string& state = states[slice.state].name;
    const bool own = slice.tensor >= 0;
    const std::string& of = own ? states[slice.state].tensors[slice.tensor].name
                                : layout.flat_parameters[slice.flat].name;
    tensors_.push_back(TensorName(state, of, slice.dtype));
    entries.push_back({tensors_.back(), ToSafetensorsType(slice.dtype), {}});
    SafetensorsEntry& entry = entries.back();
    if (own) {
      entry.shape = ShapeInFile(states[slice.state], slice.tensor, slice.count);
    } else {
      entry.shape = {slice.values()};
    }
    file_.slices.push_back({state, own ? "" : of, slice.begin, slice.count, /*at=*/0,
                            slice.values() * SizeOf(slice.dtype), own ? of : ""});
  }
  writer_.emplace(directory + "/" + file_.name, entries);
  file_.bytes = writer_->file_bytes();
  file_.chunk_bytes = ChunkBytes(file_.bytes);
  checksums_.emplace(file_.chunk_bytes);
  checksums_->Update(std::as_bytes(std::span(writer_->header())));
  for (size_t i = 0; i < slices_.size(); ++i) file_.slices[i].at = writer_->Info(tensors_[i]).begin;
  reached_ = static_cast<int64_t>(writer_->header().size());
}

// This rank's rows of each table that it has some of; `slice` says which state it is.
void RankFileWriter::AddRows(const StateFormat& state, Slice slice, const ShardPlace& place) {
  const RowPlacement deal = DealOf(state, place.world);
  for (int t = 0; t < std::ssize(state.tensors); ++t) {
    const OwnTensor& table = state.tensors[t];
    const int64_t row = table.shape.NumElements() / table.shape[0];
    slice.tensor = t;
    slice.begin = 0;
    for (int rank = 0; rank < place.rank; ++rank) slice.begin += deal.RowsOf(t, rank).count * row;
    slice.count = deal.RowsOf(t, place.rank).count * row;
    slice.dtype = table.dtype;
    if (slice.count > 0) slices_.push_back(slice);
  }
}

std::vector<int64_t> ShapeInFile(const StateFormat& state, int tensor, int64_t values) {
  const Shape& shape = state.tensors[tensor].shape;
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  if (state.grid == Grid::kRows) dims[0] = values / (shape.NumElements() / shape[0]);
  return dims;
}

void RankFileWriter::Append(size_t index, ConstView values) {
  const Slice& slice = slices_[index];
  const int64_t at = file_.slices[index].at;
  FSDP_CHECK(values.dtype == slice.dtype) << Name(values.dtype) << " for " << tensors_[index];
  FSDP_CHECK(reached_ >= at) << "checksums need the order of the file";
  constexpr int64_t kBlockBytes = int64_t{1} << 18;  // Still in the cache when it is written.
  const int64_t block_values = kBlockBytes / SizeOf(values.dtype);
  for (int64_t done = 0; done < values.NumElements(); done += block_values) {
    const ConstView block = values.Slice(done, std::min(block_values, values.NumElements() - done));
    const std::span<const std::byte> bytes(block.data, static_cast<size_t>(block.bytes()));
    checksums_->Update(bytes);
    if (const auto wrong = FirstNotFinite(block); wrong && not_finite_.empty()) {
      const auto in_block = static_cast<int64_t>(*wrong);
      not_finite_ = DescribeNotFiniteValue(slice, (reached_ - at) / SizeOf(block.dtype) + in_block,
                                           FloatAt(block, in_block));
    }
    writer_->WriteBytes(tensors_[index], reached_ - at, bytes);
    reached_ += block.bytes();
  }
}

std::string RankFileWriter::DescribeNotFiniteValue(const Slice& slice, int64_t index,
                                                   float value) const {
  const StateFormat& state = states_[slice.state];
  switch (state.grid) {
    case Grid::kElement:
    case Grid::kBlock:
      return DescribeNotFinite(state.name, layout_.flat_parameters[slice.flat],
                               slice.begin + index * slice.elements_per_value, value);
    case Grid::kTensor:
    case Grid::kRows:
      return state.name + " of " + state.tensors[slice.tensor].name + ": element " +
             std::to_string(slice.begin + index) + " is " + NotFiniteName(value);
  }
  FSDP_CHECK(false) << "grid " << static_cast<int>(state.grid);
}

ManifestFile RankFileWriter::Finish() {
  writer_->Finish();
  file_.chunks = checksums_->Finish();
  ReadBack();
  return std::move(file_);
}

void RankFileWriter::ReadBack() const {
  const std::string& path = writer_->path();
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) throw CheckpointError(path + ": cannot be read back: " + std::strerror(errno));
  ChunkChecksums checksums(file_.chunk_bytes);
  std::vector<std::byte> block(size_t{1} << 15);  // Small: the plan knows of no more.
  int64_t at = 0;
  for (;;) {
    const ssize_t n = ::pread(fd.get(), block.data(), block.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw CheckpointError(path + ": cannot be read back: " + std::strerror(errno));
    if (n == 0) break;
    checksums.Update(std::span(block).first(static_cast<size_t>(n)));
    at += n;
  }
  if (at != file_.bytes) {
    throw CheckpointError(path + ": reads back as " + std::to_string(at) + " bytes, " +
                          std::to_string(file_.bytes) + " were written");
  }
  const std::vector<uint64_t> chunks = checksums.Finish();
  const auto [wrong, want] = std::mismatch(chunks.begin(), chunks.end(), file_.chunks.begin());
  if (wrong == chunks.end()) return;
  const int64_t begin = (wrong - chunks.begin()) * file_.chunk_bytes;
  throw CheckpointError(path + ": bytes " + std::to_string(begin) + " to " +
                        std::to_string(std::min(begin + file_.chunk_bytes, file_.bytes)) +
                        " do not read back as they were written");
}

namespace {

// A manifest says this of a state of a flat parameter, or of an own tensor.
struct Kept {
  DType dtype = DType::kFloat32;
  const FlatParameter* flat = nullptr;  // Null: an own tensor.
  const StateFormat* state = nullptr;
  int tensor = -1;
};
using KeptByName = std::map<std::pair<std::string_view, std::string_view>, Kept>;

KeptByName KeptIn(const Manifest& manifest) {
  KeptByName kept;
  for (const StateFormat& state : manifest.states) {
    for (int t = 0; t < std::ssize(state.tensors); ++t) {
      const OwnTensor& tensor = state.tensors[t];
      kept[{state.name, tensor.name}] = {tensor.dtype, nullptr, &state, t};
    }
    for (size_t u = 0; u < state.dtypes.size(); ++u) {
      const FlatParameter& flat = manifest.flat_parameters[u];
      if (!state.Has(flat, u)) continue;
      kept[{state.name, flat.name}] = {state.dtypes[u], &flat, &state, -1};
    }
  }
  return kept;
}

std::string Stretch(const char* of, int64_t begin, int64_t end) {
  return of + std::to_string(begin) + " to " + std::to_string(end);
}

// How a slice is not the tensor that the header has of its name.
std::string SliceDiffers(const ManifestSlice& slice, const Kept& kept, const ShardPlace& place,
                         const SafetensorsInfo& info) {
  const auto differs = [](const std::string& there, const std::string& said) {
    return there + ", the manifest " + said;
  };
  const int64_t end = slice.at + slice.bytes;
  if (info.begin != slice.at || info.end != end) {
    return differs(Stretch("at bytes ", info.begin, info.end), Stretch("at bytes ", slice.at, end));
  }
  if (const SafetensorsType want = ToSafetensorsType(kept.dtype); info.type != want) {
    return differs("as " + std::string(Name(info.type)), "as " + std::string(Name(want)));
  }
  std::vector<int64_t> shape = {slice.count / kept.state->elements_per_value()};
  if (kept.flat == nullptr) shape = ShapeInFile(*kept.state, kept.tensor, slice.count);
  if (info.shape != shape) return differs("in another shape", "in that of its slice");
  if (kept.flat == nullptr) return "";
  const Part part = PartOfReplica(kept.flat->shard_size, place);
  const int64_t begin = kept.flat->ShardBegin(place.shard) + part.begin;
  if (slice.begin == begin && slice.count == part.count) return "";
  return differs(Stretch("of its rank's elements ", begin, begin + part.count),
                 Stretch("of elements ", slice.begin, slice.begin + slice.count));
}

}  // namespace

int64_t EndOfHeader(const ManifestFile& file) {
  int64_t end = file.bytes;
  for (const ManifestSlice& slice : file.slices) end = std::min(end, slice.at);
  return end;
}

std::string HeaderDiffers(const Manifest& manifest, int rank, const SafetensorsReader& header) {
  const KeptByName kept = KeptIn(manifest);
  const int shards = manifest.shards;
  const ShardPlace place{rank, manifest.world, rank % shards, rank / shards,
                         manifest.world / shards};
  std::unordered_set<std::string> names;
  std::vector<std::string> differences;
  for (const ManifestSlice& slice : manifest.files[static_cast<size_t>(rank)].slices) {
    const std::string& of = slice.tensor.empty() ? slice.flat : slice.tensor;
    const Kept& said = kept.at({slice.state, of});
    const std::string name = TensorName(slice.state, of, said.dtype);
    if (!header.Contains(name) || !names.insert(name).second) {
      differences.push_back("the header has no '" + name + "' " +
                            Stretch("at bytes ", slice.at, slice.at + slice.bytes));
      continue;
    }
    const std::string how = SliceDiffers(slice, said, place, header.Info(name));
    if (!how.empty()) differences.push_back("the header has '" + name + "' " + how);
  }
  for (const std::string& name : header.Names()) {
    if (names.count(name) == 0) differences.push_back("the manifest has no '" + name + "'");
  }
  if (differences.empty()) return "";
  const size_t more = differences.size() - 1;
  return differences[0] + (more > 0 ? ", and " + std::to_string(more) + " more such" : "");
}

}  // namespace fsdp
