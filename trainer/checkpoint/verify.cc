#include "trainer/checkpoint/verify.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/rank_file.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/core/errors.h"
#include "trainer/core/unique_fd.h"
#include "trainer/core/units.h"

namespace fsdp {
namespace {

// The contents of bytes [begin, end) of the file, in the file's order.
std::vector<std::string> Contents(const Manifest& manifest, const ManifestFile& file, int64_t begin,
                                  int64_t end) {
  std::unordered_map<std::string, const FlatParameter*> flats;
  for (const FlatParameter& flat : manifest.flat_parameters) flats[flat.name] = &flat;
  std::vector<std::string> found;
  if (begin < EndOfHeader(file)) found.push_back("the file's header");
  for (const ManifestSlice& slice : file.slices) {
    const int64_t from = std::max(begin, slice.at);
    const int64_t to = std::min(end, slice.at + slice.bytes);
    if (from >= to) continue;
    if (!slice.tensor.empty()) {
      found.push_back(slice.state + " of " + slice.tensor);
      continue;
    }
    const int64_t elements = manifest.FindState(slice.state)->elements_per_value();
    const int64_t value_bytes = slice.bytes / (slice.count / elements);
    const int64_t element = slice.begin + (from - slice.at) / value_bytes * elements;
    const int64_t last = slice.begin + ((to - 1 - slice.at) / value_bytes + 1) * elements - 1;
    for (const Placement& p : flats.at(slice.flat)->parameters) {
      if (p.offset <= last && element < p.offset + p.size()) {
        found.push_back(slice.state + " of " + p.name);
      }
    }
  }
  if (found.empty()) found.push_back("padding");
  return found;
}

// Bytes [begin, begin + out.size()); what is wrong, or empty.
std::string ReadAt(int fd, int64_t begin, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd, out.data(), out.size(), begin);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::string("cannot be read: ") + std::strerror(errno);
    if (n == 0) return "are missing: the file is cut short";
    begin += n;
    out = out.subspan(static_cast<size_t>(n));
  }
  return "";
}

}  // namespace

VerifyReport VerifyCheckpoint(const CheckpointHold& directory,
                              const std::function<void(int64_t done, int64_t total)>& progress) {
  VerifyReport report;
  const auto is_gone = [&](const std::string& file) {
    struct stat status;
    const auto [at, name] = directory.PlaceOf(file);
    return ::fstatat(at, name.c_str(), &status, 0) != 0 && errno == ENOENT && directory.Moved();
  };
  std::optional<Manifest> read;
  try {
    read = ReadManifestAlone(directory);
  } catch (const CheckpointError&) {
    if (!directory.held() || !is_gone(kManifestName)) throw;  // It may never have been there.
    report.moved = report.gone = true;
    return report;
  }
  const Manifest& manifest = *read;
  std::filesystem::path path = std::filesystem::path(directory.path()).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // It ends with a slash.
  const std::optional<int64_t> named = StepOf(path.filename().string());
  if (named && *named != manifest.meta.step) {
    report.damages.push_back({.file = directory.path() + "/" + kManifestName,
                              .touches = {},
                              .reason = "is of step " + std::to_string(manifest.meta.step) +
                                        ", and the directory's name of step " +
                                        std::to_string(*named)});
  }
  const int64_t total = manifest.DataBytes();
  std::vector<std::byte> buffer;
  for (const ManifestFile& file : manifest.files) {
    const int rank = report.files++;
    const std::string path = directory.path() + "/" + file.name;
    const auto damaged = [&](const std::string& reason) {
      report.damages.push_back({path, 0, 0, {}, reason});
    };
    struct stat status;
    UniqueFd fd = directory.Open(file.name);
    if (fd.get() < 0 || ::fstat(fd.get(), &status) != 0) {
      const int error = errno;
      if (is_gone(file.name)) {
        report.gone = true;
      } else {
        damaged(std::string("cannot be opened: ") + std::strerror(error));
      }
      report.bytes += file.bytes;
      report.chunks += static_cast<int64_t>(file.chunks.size());
      continue;
    }
    if (!S_ISREG(status.st_mode)) {
      damaged("is not a regular file");
      continue;
    }
    bool header_is_whole = status.st_size == file.bytes;
    if (!header_is_whole) {
      damaged("has " + Counted(status.st_size, "byte") + ", want " + std::to_string(file.bytes));
    }
    const int64_t header_end = EndOfHeader(file);
    for (size_t chunk = 0; chunk < file.chunks.size(); ++chunk) {
      const int64_t begin = static_cast<int64_t>(chunk) * file.chunk_bytes;
      const int64_t end = std::min(begin + file.chunk_bytes, file.bytes);
      buffer.resize(static_cast<size_t>(end - begin));
      std::string reason = ReadAt(fd.get(), begin, buffer);
      if (reason.empty() && Checksum(buffer) != file.chunks[chunk]) {
        reason = "do not have their checksum";
      }
      if (!reason.empty()) {
        report.damages.push_back({path, begin, end, Contents(manifest, file, begin, end), reason});
        header_is_whole = header_is_whole && begin >= header_end;
      }
      ++report.chunks;
      report.bytes += end - begin;
      if (progress) progress(report.bytes, total);
    }
    if (!header_is_whole) continue;
    try {
      const std::string differs =
          HeaderDiffers(manifest, rank, SafetensorsReader(path, std::move(fd)));
      if (!differs.empty()) damaged(differs);
    } catch (const CheckpointError& error) {
      damaged(std::string(error.what()).substr(path.size() + 2));  // "<path>: <reason>".
    }
  }
  report.moved = directory.Moved();
  return report;
}

std::string ToString(const Damage& damage) {
  if (damage.begin == damage.end) return damage.file + ": " + damage.reason;
  constexpr size_t kShown = 8;
  std::string text = damage.file + ": bytes " + std::to_string(damage.begin) + " to " +
                     std::to_string(damage.end) + " " + damage.reason + ": ";
  const size_t shown = std::min(kShown, damage.touches.size());
  for (size_t i = 0; i < shown; ++i) text += (i > 0 ? ", " : "") + damage.touches[i];
  if (shown < damage.touches.size()) {
    text += " and " + std::to_string(damage.touches.size() - shown) + " more";
  }
  return text;
}

}  // namespace fsdp
