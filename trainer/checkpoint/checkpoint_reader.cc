#include "trainer/checkpoint/checkpoint_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr size_t kMaxOpenFiles = 64;

std::string Join(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out.empty() ? "none" : out;
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& directory)
    : directory_(directory),
      hold_(directory),
      manifest_(ReadManifest(directory)),
      extents_(ExtentsOf(manifest_)) {
  for (const FlatParameter& flat : manifest_.flat_parameters) {
    for (const Placement& p : flat.parameters) locations_[p.name] = {&flat, &p};
  }
}

bool CheckpointReader::HasState(const std::string& state) const {
  const auto& states = manifest_.states;
  return std::find(states.begin(), states.end(), state) != states.end();
}

const Placement* CheckpointReader::Find(const std::string& parameter) const {
  const auto it = locations_.find(parameter);
  return it == locations_.end() ? nullptr : it->second.placement;
}

void CheckpointReader::Read(const std::string& state, const std::string& parameter,
                            const Shape& shape, int64_t begin, std::span<float> out) {
  if (!HasState(state)) {
    throw CheckpointError(directory_ + ": has no state '" + state + "'; it has " +
                          Join(manifest_.states));
  }
  const auto it = locations_.find(parameter);
  if (it == locations_.end()) {
    throw CheckpointError(directory_ + ": has no parameter '" + parameter + "'");
  }
  const auto [flat, placement] = it->second;
  if (placement->shape != shape) {
    throw CheckpointError(directory_ + ": parameter '" + parameter + "' has shape " +
                          placement->shape.ToString() + ", want " + shape.ToString());
  }
  if (!FlatHasState(*flat, state)) {
    throw CheckpointError(directory_ + ": has no state '" + state + "' of '" + parameter +
                          "', which was frozen");
  }
  const auto count = static_cast<int64_t>(out.size());
  if (begin < 0 || count > placement->size() - begin) {
    throw std::invalid_argument("[CheckpointReader::Read] " + std::to_string(count) +
                                " elements from " + std::to_string(begin) + " of '" + parameter +
                                "', which has " + std::to_string(placement->size()));
  }
  if (count == 0) return;

  int64_t from = placement->offset + begin;  // In the flat parameter.
  const std::vector<Extent>& extents = extents_.at({state, flat->name});
  auto extent = std::upper_bound(extents.begin(), extents.end(), from,
                                 [](int64_t at, const Extent& e) { return at < e.begin; });
  --extent;
  for (; !out.empty(); ++extent) {
    FSDP_CHECK(extent != extents.end()) << "the manifest was checked to hold every element";
    const int64_t skip = from - extent->begin;
    const auto part = out.first(std::min(out.size(), static_cast<size_t>(extent->count - skip)));
    ReadBytes(extent->file, extent->at + skip * static_cast<int64_t>(sizeof(float)),
              std::as_writable_bytes(part));
    from += static_cast<int64_t>(part.size());
    out = out.subspan(part.size());
  }
}

void CheckpointReader::ReadBytes(int file, int64_t begin, std::span<std::byte> out) {
  const ManifestFile& entry = manifest_.files[file];
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
      if (!buffered) {
        buffered_file_ = -1;
        buffer_.resize(chunk_bytes);
        ReadChunk(file, chunk, buffer_);
        buffered_file_ = file;
        buffered_chunk_ = chunk;
      }
      std::memcpy(part.data(), buffer_.data() + skip, part.size());
    }
    begin += static_cast<int64_t>(part.size());
    out = out.subspan(part.size());
  }
}

void CheckpointReader::ReadChunk(int file, int64_t chunk, std::span<std::byte> out) {
  const ManifestFile& entry = manifest_.files[file];
  const std::string path = directory_ + "/" + entry.name;
  const int fd = Open(file);
  const int64_t begin = chunk * entry.chunk_bytes;
  for (size_t done = 0; done < out.size();) {
    const ssize_t n =
        ::pread(fd, out.data() + done, out.size() - done, begin + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw CheckpointError(path + ": cannot be read: " + std::strerror(errno));
    if (n == 0) throw CheckpointError(path + ": was cut short while it was read");
    done += static_cast<size_t>(n);
  }
  if (Checksum(out) != entry.chunks[chunk]) {
    throw CheckpointError(path + ": is damaged: bytes " + std::to_string(begin) + " to " +
                          std::to_string(begin + static_cast<int64_t>(out.size())) +
                          " do not have their checksum");
  }
}

int CheckpointReader::Open(int file) {
  const auto it = open_.find(file);
  if (it != open_.end()) return it->second.get();
  if (open_.size() >= kMaxOpenFiles) open_.clear();
  const std::string path = directory_ + "/" + manifest_.files[file].name;
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) throw CheckpointError(path + ": cannot be read: " + std::strerror(errno));
  return open_.emplace(file, std::move(fd)).first->second.get();
}

}  // namespace fsdp
