#include "trainer/data/data_files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/unique_fd.h"
#include "trainer/core/utf8.h"
#include "trainer/data/decompress.h"

namespace fsdp {
namespace {

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw DataError("data: " + PrintableName(path) + ": " + what);
}

constexpr const char* kWhereItStarts =
    " (a relative path starts at the working directory, not at the recipe)";
constexpr std::string_view kTextNames[] = {".txt", ".text", ".md", ".jsonl", ".gz", ".zst"};

std::string FromHome(const std::string& path, const std::string& where) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    throw DataError(where + ": " + path + ": ~ is $HOME, which is not set");
  }
  return home + path.substr(1);
}

// The last directory that a glob names without wildcards.
bool DirectoryOfGlobIsThere(const std::string& path) {
  const size_t slash = path.rfind('/', path.find_first_of("*?["));
  struct stat info;
  return slash == std::string::npos || ::stat(path.substr(0, slash + 1).c_str(), &info) == 0;
}

}  // namespace

void FileContents::CheckThere() const {
  struct stat info;
  if (::stat(path_.c_str(), &info) != 0) {
    const int error = errno;
    Fail(path_, error == ENOENT ? std::string("does not exist") + kWhereItStarts
                                : std::string(std::strerror(error)));
  }
  if (S_ISDIR(info.st_mode))
    Fail(path_, "is a directory: name its files, or a glob: " + PrintableName(path_) + "/*");
  if (!S_ISREG(info.st_mode)) Fail(path_, "is not a regular file");
  if (info.st_size == 0) Fail(path_, "is empty: take it out of data.*.paths, or fill it");
}

FileContents::FileContents(std::string path, As as) : path_(std::move(path)) {
  CheckThere();
  if (as != As::kStored && IsCompressed(path_)) {
    Inflate(as == As::kBegin ? kBeginBytes : std::string::npos);
  } else {
    Map();
  }
}

FileContents::FileContents(std::string path, size_t most, const std::string& why)
    : path_(std::move(path)) {
  CheckThere();
  if (!IsCompressed(path_)) {
    Map();
    return;
  }
  Inflate(most < std::string::npos ? most + 1 : most);
  if (bytes_.size() > most) {
    Fail(path_, "has more than " + std::to_string(most) + " bytes when decompressed, " + why);
  }
}

FileContents::FileContents(FileContents&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      inflated_(std::move(other.inflated_)),
      mapped_(std::exchange(other.mapped_, false)),
      device_(other.device_),
      inode_(other.inode_),
      guard_(std::move(other.guard_)) {
  if (!mapped_) bytes_ = inflated_;  // A short string moves with its owner.
}

FileContents::~FileContents() {
  guard_.reset();
  if (mapped_) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void FileContents::Map() {
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.open()) Fail(path_, std::string("cannot be read: ") + std::strerror(errno));
  struct stat info;
  const bool known = ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
  void* data = known ? ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED,
                              file.get(), 0)
                     : MAP_FAILED;
  if (data == MAP_FAILED) Fail(path_, std::string("cannot be mapped: ") + std::strerror(errno));
  bytes_ = {static_cast<const char*>(data), static_cast<size_t>(info.st_size)};
  mapped_ = true;
  device_ = info.st_dev;
  inode_ = info.st_ino;
  guard_ = std::make_unique<const MappingGuard>(data, bytes_.size());
}

void FileContents::CheckIntact() const {
  if (!mapped_) return;
  // In this order: of a file that another thread sees shrink in between, either nothing is lost yet
  // or the size is the new one.
  const bool lost = guard_->lost();
  struct stat now;
  // The last page of a shortened file still has its zeros without a signal: the size tells.
  const bool same =
      ::stat(path_.c_str(), &now) == 0 && now.st_dev == device_ && now.st_ino == inode_;
  const int64_t size = same ? now.st_size : std::ssize(bytes_);
  if (size >= std::ssize(bytes_) && !lost) return;
  Fail(path_, (size < std::ssize(bytes_)
                   ? "has become shorter while it was read, from " + std::to_string(bytes_.size()) +
                         " to " + std::to_string(size) + " bytes"
                   : std::string("cannot be read in part")) +
                  ": put it back as it was; a run then goes on from its last checkpoint");
}

void FileContents::Inflate(size_t most) {
  inflated_ = Decompress(path_, most);
  if (inflated_.empty()) Fail(path_, "is empty when decompressed: take it out of data.*.paths");
  inflated_.shrink_to_fit();
  bytes_ = inflated_;
}

std::vector<std::string> ExpandPaths(std::span<const std::string> paths, const std::string& where) {
  if (paths.empty()) throw DataError(where + ": no paths: list files or globs in data.*.paths");
  const auto fail = [&](const std::string& path, const std::string& what) {
    throw DataError(where + ": " + PrintableName(path) + ": " + what);
  };
  std::vector<std::string> out;
  for (const std::string& written : paths) {
    const std::string path = FromHome(written, where);
    struct stat info;
    const bool there = ::stat(path.c_str(), &info) == 0;
    if (there || path.find_first_of("*?[") == std::string::npos) {
      if (!there && errno == ENOENT) fail(path, std::string("does not exist") + kWhereItStarts);
      out.push_back(path);
      continue;
    }
    glob_t found{};
    const int result = ::glob(path.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
    const size_t first = out.size();
    if (result == 0) out.insert(out.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    const bool nowhere = result == GLOB_ABORTED && !DirectoryOfGlobIsThere(path);
    if (result == GLOB_NOMATCH || nowhere)
      fail(path, std::string("matches no file") + kWhereItStarts);
    if (result != 0) fail(path, "its directories cannot be read");
    // Not glob's own order, which follows the user's locale: hosts could then disagree.
    std::sort(out.begin() + static_cast<ptrdiff_t>(first), out.end());
  }
  return out;
}

bool IsTextName(std::string_view name) {
  return std::any_of(std::begin(kTextNames), std::end(kTextNames),
                     [&](std::string_view end) { return name.ends_with(end); });
}

std::vector<std::string> ExpandTextPaths(std::span<const std::string> paths,
                                         const std::string& where) {
  namespace fs = std::filesystem;
  std::vector<std::string> out;
  for (std::string& path : ExpandPaths(paths, where)) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      out.push_back(std::move(path));
      continue;
    }
    const size_t first = out.size();
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename();
      std::error_code unknown;
      if (name[0] == '.' || !IsTextName(name) || !at->is_regular_file(unknown)) continue;
      out.push_back(path + (path.ends_with('/') ? "" : "/") + name);
    }
    if (error) {
      throw DataError(where + ": " + path +
                      ": is a directory that cannot be read: " + error.message());
    }
    if (out.size() == first) {
      std::string names;
      for (const std::string_view end : kTextNames) names.append(" *").append(end);
      throw DataError(where + ": " + path + ": is a directory without text files (" +
                      names.substr(1) + "; its directories are not read): name others by a glob");
    }
    std::sort(out.begin() + static_cast<ptrdiff_t>(first), out.end());
  }
  return out;
}

std::string AndMoreFiles(const std::string& first, size_t files) {
  if (files == 1) return first;
  return first + " and " + std::to_string(files - 1) + (files == 2 ? " more file" : " more files");
}

DataFile DescribeFile(const FileContents& file) {
  constexpr size_t kStretch = 4096, kStretches = 256;
  const std::string_view contents = file.bytes();
  uint64_t hash = 0;
  if (std::ssize(contents) <= kHashedWhole) {
    hash = XXH3_64bits(contents.data(), contents.size());
  } else {
    hash = contents.size();
    const size_t last = contents.size() - kStretch;
    for (size_t i = 0; i < kStretches; ++i) {
      const size_t at =
          last / (kStretches - 1) * i + last % (kStretches - 1) * i / (kStretches - 1);
      hash = XXH3_64bits_withSeed(contents.data() + at, kStretch, hash);
    }
  }
  file.CheckIntact();
  return {file.path(), std::ssize(contents), hash};
}

}  // namespace fsdp
