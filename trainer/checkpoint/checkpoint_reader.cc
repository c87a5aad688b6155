#include "trainer/checkpoint/checkpoint_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/checkpoint/rank_file.h"
#include "trainer/checkpoint/state_format.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/round_up.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/cpu/convert.h"

namespace fsdp {
namespace {

constexpr size_t kMaxOpenFiles = 64;

std::string Join(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out.empty() ? "none" : out;
}

const char* Describe(Grid grid) {
  switch (grid) {
    case Grid::kElement:
      return "a value an element";
    case Grid::kBlock:
      return "a value a block";
    case Grid::kTensor:
      return "tensors of its own";
    case Grid::kRows:
      return "rows of tables";
  }
  return "";
}

// As CanConvert() has it.
void ConvertValues(ConstView from, View to) {
  const int64_t n = from.NumElements();
  if (from.dtype == DType::kFloat32) {
    Convert(from.As<float>(), n, to.As<BFloat16>());
  } else if (from.dtype == DType::kBFloat16) {
    Convert(from.As<BFloat16>(), n, to.As<float>());
  } else {
    Convert(from.As<Float16>(), n, to.As<float>());
  }
}

int64_t RowsOf(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; }

// Whether rows of the one could be rows of the other.
bool HaveAlikeRows(const Shape& a, const Shape& b) {
  if (a.rank() != b.rank()) return false;
  for (int d = 1; d < a.rank(); ++d) {
    if (a[d] != b[d]) return false;
  }
  return true;
}

void RequireRange(const char* function, const std::string& name, int64_t begin, int64_t count,
                  int64_t size) {
  if (begin >= 0 && count <= size - begin) return;
  throw std::invalid_argument("[CheckpointReader::" + std::string(function) + "] " +
                              std::to_string(count) + " elements from " + std::to_string(begin) +
                              " of '" + name + "', which has " + std::to_string(size));
}

}  // namespace

CheckpointReader::CheckpointReader(CheckpointHold directory)
    : hold_(std::move(directory)), manifest_(ReadManifest(hold_)), extents_(ExtentsOf(manifest_)) {
  for (size_t u = 0; u < manifest_.flat_parameters.size(); ++u) {
    for (const Placement& p : manifest_.flat_parameters[u].parameters) {
      const std::optional<NamedRows> rows = RowsOfName(p.name);
      locations_[rows ? rows->whole : p.name].push_back(
          {static_cast<int>(u), &p, rows ? rows->begin : 0});
    }
  }
  for (auto& [name, parts] : locations_) std::ranges::sort(parts, {}, &Location::row);
}

bool CheckpointReader::HasState(const std::string& state) const {
  return manifest_.FindState(state) != nullptr;
}

void CheckpointReader::RequireNoOther(const std::set<std::string>& parameters,
                                      const std::string& whose) const {
  std::set<std::string> wholes;
  for (const std::string& parameter : parameters) wholes.insert(WholeName(parameter));
  for (const FlatParameter& flat : manifest_.flat_parameters) {
    for (const Placement& p : flat.parameters) {
      if (wholes.count(WholeName(p.name)) > 0) continue;
      throw CheckpointError(directory() + ": holds parameter '" + p.name + "', which " + whose +
                            " does not have");
    }
  }
}

const StateFormat& CheckpointReader::Require(const std::string& state, Grid grid) const {
  const StateFormat* format = manifest_.FindState(state);
  if (format == nullptr) {
    throw CheckpointError(directory() + ": has no state '" + state + "'; it has " +
                          Join(manifest_.StateNames()));
  }
  if (format->grid != grid) {
    throw CheckpointError(directory() + ": state '" + state + "' has " + Describe(format->grid) +
                          ", want " + Describe(grid));
  }
  return *format;
}

void CheckpointReader::Read(const std::string& state, const std::string& parameter,
                            const Shape& shape, int64_t begin, std::span<float> out) {
  Read(state, parameter, shape, begin,
       View(std::as_writable_bytes(out).data(), DType::kFloat32,
            Shape{static_cast<int64_t>(out.size())}));
}

std::vector<CheckpointReader::Location> CheckpointReader::Locate(const std::string& parameter,
                                                                 const Shape& shape) const {
  const auto it = locations_.find(WholeName(parameter));
  const auto missing = [&] {
    return CheckpointError(directory() + ": has no parameter '" + parameter + "'");
  };
  if (it == locations_.end()) throw missing();
  const std::vector<Location>& stored = it->second;
  const std::optional<NamedRows> rows = RowsOfName(parameter);
  const int64_t first = rows ? rows->begin : 0, end = first + RowsOf(shape);
  const bool in_one = !rows && stored.size() == 1;  // Then a shape with other rows is another.
  std::vector<Location> found;
  int64_t reached = first;
  for (const Location& at : stored) {
    const Placement& placement = *at.placement;
    if (in_one ? placement.shape != shape : !HaveAlikeRows(placement.shape, shape)) {
      throw CheckpointError(directory() + ": parameter '" + placement.name + "' has shape " +
                            placement.shape.ToString() + ", want " + shape.ToString());
    }
    const int64_t stop = at.row + RowsOf(placement.shape);
    if (rows && (stop <= first || at.row >= end)) continue;
    if (at.row > reached || (!rows && stop > end)) throw missing();
    reached = stop;
    found.push_back({at.flat, at.placement, at.row - first});
  }
  if (reached < end) throw missing();
  return found;
}

std::vector<CheckpointReader::Found> CheckpointReader::FindValues(const std::string& state,
                                                                  const std::string& parameter,
                                                                  const Shape& shape,
                                                                  DType wanted) const {
  const StateFormat& format = Require(state, Grid::kElement);
  const auto is_float = [](DType dtype) {
    return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
  };
  const StateFormat* const absmax = manifest_.FindState(state + std::string(kAbsmaxSuffix));
  std::vector<Found> found;
  for (const auto& [u, placement, row] : Locate(parameter, shape)) {
    const FlatParameter& flat = manifest_.flat_parameters[u];
    if (!FlatHasState(flat, state)) {
      throw CheckpointError(directory() + ": has no state '" + state + "' of '" + placement->name +
                            "', which was frozen");
    }
    const DType stored = format.dtypes[u];
    const bool coded = stored == DType::kUInt8 && absmax != nullptr &&
                       absmax->grid == Grid::kBlock && absmax->Has(flat, u);
    const bool decodes = coded && (wanted == DType::kFloat32 || wanted == DType::kBFloat16);
    const bool encodes = is_float(stored) && wanted == DType::kUInt8;
    if (!decodes && !encodes) RequireDType(state, parameter, stored, wanted);
    const int64_t elements = placement->parameters() / RowsOf(placement->shape);  // A row's.
    found.push_back({stored, &flat, placement->offset, placement->size(), row * elements});
  }
  return found;
}

void CheckpointReader::Read(const std::string& state, const std::string& parameter,
                            const Shape& shape, int64_t begin, View out) {
  const int64_t n = out.NumElements();
  const std::vector<Found> all = FindValues(state, parameter, shape, out.dtype);
  RequireRange("Read", parameter, begin, n, shape.NumElements());
  for (const Found& found : all) {
    const int64_t from = std::max(begin, found.at), to = std::min(begin + n, found.at + found.size);
    if (from < to) ReadFound(state, found, from - found.at, out.Slice(from - begin, to - from));
  }
}

void CheckpointReader::ReadFound(const std::string& state, const Found& found, int64_t begin,
                                 View out) {
  const bool from_codes = found.dtype == DType::kUInt8, to_codes = out.dtype == DType::kUInt8;
  if (from_codes && !to_codes) return ReadDecoded(state, found, begin, out);
  if (!from_codes && to_codes) {
    return ReadEncoded(state, found, begin, out.NumElements(), out.As<uint8_t>(), nullptr);
  }
  ReadValues(extents_.at({state, found.flat->name}), found.dtype, found.offset + begin, out);
}

void CheckpointReader::ReadAbsmax(const std::string& state, const std::string& parameter,
                                  const Shape& shape, int64_t begin, View out) {
  const std::vector<Found> all = FindValues(CodesOf(state), parameter, shape, DType::kFloat32);
  RequireRange("ReadAbsmax", parameter, begin, 0, shape.NumElements());
  const int64_t end = begin + out.NumElements() * kCodeBlock;
  for (const Found& found : all) {
    const int64_t from = std::max(begin, found.at), to = std::min(end, found.at + found.size);
    if (from >= to) continue;
    ReadFoundAbsmax(
        state, found, from - found.at,
        out.Slice((from - begin) / kCodeBlock, RoundUp(to - from, kCodeBlock) / kCodeBlock));
  }
}

void CheckpointReader::ReadFoundAbsmax(const std::string& state, const Found& found, int64_t begin,
                                       View out) {
  if (found.dtype != DType::kUInt8) {
    const int64_t end = begin + out.NumElements() * kCodeBlock;
    return ReadEncoded(CodesOf(state), found, begin, std::min(end, found.size) - begin, nullptr,
                       out.As<float>());
  }
  ReadValues(extents_.at({state, found.flat->name}), DType::kFloat32, found.offset + begin, out,
             kCodeBlock);
}

void CheckpointReader::ReadEncoded(const std::string& state, const Found& found, int64_t begin,
                                   int64_t count, uint8_t* codes, float* absmax) {
  if (begin % kCodeBlock != 0 || (count % kCodeBlock != 0 && begin + count != found.size)) {
    throw std::invalid_argument("[CheckpointReader::Read] codes of parts of blocks");
  }
  constexpr int64_t kAtOnce = 64 * kCodeBlock;
  std::vector<float> values(kAtOnce);
  uint8_t unused[kCodeBlock];
  const std::vector<Extent>& extents = extents_.at({state, found.flat->name});
  for (int64_t done = 0; done < count; done += kAtOnce) {
    const int64_t n = std::min(kAtOnce, count - done);
    ReadValues(extents, found.dtype, found.offset + begin + done,
               View(reinterpret_cast<std::byte*>(values.data()), DType::kFloat32, Shape{n}));
    for (int64_t at = 0; at < n; at += kCodeBlock) {
      const auto block = std::span(values).subspan(at, std::min(kCodeBlock, n - at));
      const float scale =
          EncodeBlock(CodesOfState(state), block, codes == nullptr ? unused : codes + done + at);
      if (absmax != nullptr) absmax[(done + at) / kCodeBlock] = scale;
    }
  }
}

void CheckpointReader::ReadDecoded(const std::string& state, const Found& found, int64_t begin,
                                   View out) {
  constexpr int64_t kAtOnce = 64 * kCodeBlock;
  std::vector<uint8_t> codes(kAtOnce);
  std::vector<float> values(kAtOnce), scales(kAtOnce / kCodeBlock + 1);
  const auto view = [](auto& of, DType dtype, int64_t n) {
    return View(reinterpret_cast<std::byte*>(of.data()), dtype, Shape{n});
  };
  const std::string absmax = state + std::string(kAbsmaxSuffix);
  for (int64_t done = 0, n = 0; done < out.NumElements(); done += n) {
    const int64_t from = begin + done, first = from / kCodeBlock;
    n = std::min(kAtOnce - from % kCodeBlock, out.NumElements() - done);
    ReadValues(extents_.at({state, found.flat->name}), DType::kUInt8, found.offset + from,
               view(codes, DType::kUInt8, n));
    ReadValues(extents_.at({absmax, found.flat->name}), DType::kFloat32,
               found.offset + first * kCodeBlock,
               view(scales, DType::kFloat32, RoundUp(from + n, kCodeBlock) / kCodeBlock - first),
               kCodeBlock);
    for (int64_t i = 0; i < n; ++i) {
      const float scale = scales[(from + i) / kCodeBlock - first];
      values[i] = CodesOfState(state).values[codes[i]] * scale;
    }
    const View part = out.Slice(done, n);
    if (out.dtype == DType::kFloat32) {
      std::copy_n(values.data(), n, part.As<float>());
    } else {
      ConvertValues(view(values, DType::kFloat32, n), part);
    }
  }
}

void CheckpointReader::ReadTensor(const std::string& state, const OwnTensor& tensor, int64_t begin,
                                  View out) {
  const StateFormat& format = Require(state, Grid::kTensor);
  const auto it = std::find_if(format.tensors.begin(), format.tensors.end(),
                               [&](const OwnTensor& t) { return t.name == tensor.name; });
  if (it == format.tensors.end()) {
    throw CheckpointError(directory() + ": state '" + state + "' has no tensor '" + tensor.name +
                          "'");
  }
  if (it->shape != tensor.shape) {
    throw CheckpointError(directory() + ": tensor '" + tensor.name + "' of state '" + state +
                          "' has shape " + it->shape.ToString() + ", want " +
                          tensor.shape.ToString());
  }
  RequireDType(state, tensor.name, it->dtype, out.dtype);
  RequireRange("ReadTensor", tensor.name, begin, out.NumElements(), tensor.shape.NumElements());
  if (out.NumElements() == 0) return;
  ReadValues(extents_.at({state, tensor.name}), it->dtype, begin, out);
}

void CheckpointReader::ReadRows(const StateFormat& want, int table, int position, int world,
                                int64_t first, View out) {
  const StateFormat& format = Require(want.name, Grid::kRows);
  const auto named = [](const OwnTensor& a, const OwnTensor& b) {
    return a.name == b.name && a.shape == b.shape;
  };
  if (!std::ranges::equal(format.tensors, want.tensors, named)) {
    throw CheckpointError(directory() + ": state '" + want.name +
                          "' has other tables, or of other sizes, or in another order, than '" +
                          want.tensors[table].name + "' and those beside it here");
  }
  const OwnTensor& stored = format.tensors[table];
  RequireDType(want.name, stored.name, stored.dtype, out.dtype);
  const int64_t row = stored.shape.NumElements() / stored.shape[0];
  const int64_t rows = out.NumElements() / row;
  const RowPlacement here = DealOf(want, world), there = DealOf(format, manifest_.world);
  const RowPlacement::Stretch own = here.RowsOf(table, position);
  RequireRange("ReadRows", stored.name, first, rows, own.count);
  if (rows == 0) return;
  const std::vector<Extent>& extents = extents_.at({want.name, stored.name});
  int64_t before = 0;  // Elements of the ranks before.
  for (int rank = 0; rank < there.world; ++rank) {
    const RowPlacement::Stretch source = there.RowsOf(table, rank);
    // The first of our rows that this rank had, and the distance between such rows.
    const int64_t step = world == there.world ? 1 : there.world / std::gcd(world, there.world);
    const auto row_of_all = [&](int64_t i) { return (own.begin + first + i) * world + position; };
    int64_t i = 0;
    while (i < std::min(step, rows) && row_of_all(i) % there.world != rank) ++i;
    if (world == there.world && i < rows && row_of_all(i) % there.world == rank) {
      ReadValues(extents, stored.dtype, before + first * row, out);
      i = rows;
    }
    for (; i < rows && row_of_all(i) % there.world == rank; i += step) {
      const int64_t at = row_of_all(i) / there.world - source.begin;
      ReadValues(extents, stored.dtype, before + at * row, out.Slice(i * row, row));
    }
    before += source.count * row;
  }
}

void CheckpointReader::RequireDType(const std::string& state, const std::string& of, DType stored,
                                    DType wanted) const {
  if (CanConvert(stored, wanted)) return;
  throw CheckpointError(directory() + ": state '" + state + "' of '" + of + "' is kept in " +
                        std::string(Name(stored)) + ", want " + std::string(Name(wanted)));
}

void CheckpointReader::ReadValues(const std::vector<Extent>& extents, DType stored, int64_t from,
                                  View out, int64_t elements) {
  constexpr int64_t kConverted = int64_t{1} << 16;  // Values that are held to be converted.
  const int64_t size = SizeOf(stored);
  auto extent = std::upper_bound(extents.begin(), extents.end(), from,
                                 [](int64_t at, const Extent& e) { return at < e.begin; });
  --extent;
  for (int64_t done = 0; done < out.NumElements();) {
    FSDP_CHECK(extent != extents.end()) << "the manifest was checked to hold every element";
    const int64_t skip = (from - extent->begin) / elements;
    int64_t count = std::min(out.NumElements() - done, extent->count / elements - skip);
    if (stored != out.dtype) count = std::min(count, kConverted);
    const View part = out.Slice(done, count);
    if (stored == out.dtype) {
      ReadBytes(extent->file, extent->at + skip * size,
                {part.data, static_cast<size_t>(part.bytes())});
    } else {
      converted_.resize(static_cast<size_t>(count * size));
      ReadBytes(extent->file, extent->at + skip * size, converted_);
      ConvertValues(ConstView(converted_.data(), stored, Shape{count}), part);
    }
    from += count * elements;
    done += count;
    if (from == extent->begin + extent->count) ++extent;
  }
}

void CheckpointReader::ReadBytes(int file, int64_t begin, std::span<std::byte> out) {
  const ManifestFile& entry = manifest_.files[file];
  RequireHeader(file);
  while (!out.empty()) {
    const int64_t chunk = begin / entry.chunk_bytes;
    const int64_t chunk_begin = chunk * entry.chunk_bytes;
    const auto chunk_bytes =
        static_cast<size_t>(std::min(entry.chunk_bytes, entry.bytes - chunk_begin));
    const auto skip = static_cast<size_t>(begin - chunk_begin);
    const auto part = out.first(std::min(out.size(), chunk_bytes - skip));
    const bool buffered = buffered_file_ == file && buffered_chunk_ == chunk;
    if (part.size() == chunk_bytes && !buffered) {
      ReadChunk(file, chunk, part);
    } else {
      if (!buffered) BufferChunk(file, chunk);
      std::memcpy(part.data(), buffer_.data() + skip, part.size());
    }
    begin += static_cast<int64_t>(part.size());
    out = out.subspan(part.size());
  }
}

void CheckpointReader::RequireHeader(int file) {
  if (compared_.contains(file)) return;
  const ManifestFile& entry = manifest_.files[file];
  const int64_t end = EndOfHeader(entry);  // The first chunk often has data that is wanted next.
  for (int64_t chunk = (end - 1) / entry.chunk_bytes; chunk >= 0; --chunk) BufferChunk(file, chunk);
  const std::string path = directory() + "/" + entry.name;
  const SafetensorsReader header(path, hold_.Open(entry.name));
  const std::string differs = HeaderDiffers(manifest_, file, header);
  if (!differs.empty()) throw CheckpointError(path + ": " + differs);
  compared_.insert(file);
}

void CheckpointReader::BufferChunk(int file, int64_t chunk) {
  const ManifestFile& entry = manifest_.files[file];
  const int64_t begin = chunk * entry.chunk_bytes;
  buffered_file_ = -1;
  buffer_.resize(static_cast<size_t>(std::min(entry.chunk_bytes, entry.bytes - begin)));
  ReadChunk(file, chunk, buffer_);
  buffered_file_ = file;
  buffered_chunk_ = chunk;
}

void CheckpointReader::ReadChunk(int file, int64_t chunk, std::span<std::byte> out) {
  const ManifestFile& entry = manifest_.files[file];
  const std::string path = directory() + "/" + entry.name;
  const int fd = Open(file);
  const int64_t begin = chunk * entry.chunk_bytes;
  ChunkChecksums checksum(entry.chunk_bytes);
  constexpr size_t kPiece = size_t{1} << 18;  // Still in the cache when it is looked at.
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(fd, out.data() + done, std::min(kPiece, out.size() - done),
                              begin + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw CheckpointError(path + ": cannot be read: " + std::strerror(errno));
    if (n == 0) throw CheckpointError(path + ": was cut short while it was read");
    checksum.Update(out.subspan(done, static_cast<size_t>(n)));
    done += static_cast<size_t>(n);
  }
  if (checksum.Finish() != std::vector{entry.chunks[chunk]}) {
    throw CheckpointError(path + ": is damaged: bytes " + std::to_string(begin) + " to " +
                          std::to_string(begin + static_cast<int64_t>(out.size())) +
                          " do not have their checksum");
  }
}

int CheckpointReader::Open(int file) {
  const auto it = open_.find(file);
  if (it != open_.end()) return it->second.get();
  if (open_.size() >= kMaxOpenFiles) open_.clear();
  const std::string& name = manifest_.files[file].name;
  UniqueFd fd = hold_.Open(name);
  if (fd.get() < 0) {
    throw CheckpointError(directory() + "/" + name + ": cannot be read: " + std::strerror(errno));
  }
  return open_.emplace(file, std::move(fd)).first->second.get();
}

}  // namespace fsdp
