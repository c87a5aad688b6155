#include "trainer/data/data_files.h"

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/hex.h"
#include "trainer/core/paths.h"
#include "trainer/core/process_limits.h"
#include "trainer/core/read_file.h"
#include "trainer/core/unique_fd.h"
#include "trainer/core/utf8.h"
#include "trainer/data/decompress.h"
#include "trainer/data/hub_cache.h"

namespace fsdp {

namespace internal {

// In a list that the signal handler walks without a lock: ranges are added, never freed, and used
// again. An unused one is empty.
struct GuardedRange {
  std::atomic<uintptr_t> begin = 0, end = 0;
  std::atomic<bool> lost = false;
  GuardedRange* next = nullptr;
};

}  // namespace internal

// A mapped page raises SIGBUS when its file has lost it, by becoming shorter or by an error of the
// disk or network. In a guarded range the handler replaces that page and all later ones by zeros,
// remembers that, and the reader goes on: no thread dies, and the owner can ask afterwards whether
// the bytes were real. Elsewhere the signal keeps its earlier effect.
// Reading by pread(2) instead would need a descriptor for each of thousands of files.

class MappingGuard {
 public:
  // Guards one mapping, page-aligned, that outlives this. Any thread may read the mapping.
  MappingGuard(const void* begin, size_t bytes);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  // Whether any of it has been replaced by zeros. The answer covers the bytes that the thread read
  // before the call.
  bool lost() const;

 private:
  internal::GuardedRange* range_;
};

namespace {

using internal::GuardedRange;

std::mutex mutex;  // For what adds and removes.
std::atomic<GuardedRange*> ranges = nullptr;
std::vector<GuardedRange*> unused;  // Some of these.
struct sigaction before;            // The earlier signal action.

void OnBusError(int, siginfo_t* info, void*) {
  const int saved = errno;
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (GuardedRange* range = ranges.load(); range != nullptr; range = range->next) {
    const uintptr_t begin = range->begin.load(), end = range->end.load();
    if (at < begin || at >= end) continue;
    // First: another thread may read the zeros as soon as they are there.
    range->lost.store(true);
    const uintptr_t page = at & ~(static_cast<uintptr_t>(::getpagesize()) - 1);
    // The call itself: ThreadSanitizer's mmap() would take it for a write to what others read.
    const long zeros = ::syscall(SYS_mmap, page, end - page, PROT_READ,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == -1) break;
    errno = saved;
    return;  // The faulting access runs again.
  }
  ::sigaction(SIGBUS, &before, nullptr);  // And again, this time as without us.
  errno = saved;
}

void InstallOnce() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &before) == 0;
  }();
  (void)installed;
}

}  // namespace

MappingGuard::MappingGuard(const void* begin, size_t bytes) {
  InstallOnce();
  const std::lock_guard lock(mutex);
  if (unused.empty()) {
    range_ = new GuardedRange;
    range_->next = ranges.load();
    ranges.store(range_);
  } else {
    range_ = unused.back();
    unused.pop_back();
  }
  range_->lost.store(false);
  range_->begin.store(reinterpret_cast<uintptr_t>(begin));
  range_->end.store(reinterpret_cast<uintptr_t>(begin) + bytes);
}

MappingGuard::~MappingGuard() {
  const std::lock_guard lock(mutex);
  range_->end.store(0);
  range_->begin.store(0);
  unused.push_back(range_);
}

bool MappingGuard::lost() const { return range_->lost.load(); }

namespace {

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw DataError("data: " + PrintableName(path) + ": " + what);
}

// Linux maps some 65,530 files for a process, which needs mappings for its own memory, too. Behind
// the first of them, small files are read into memory.
constexpr int kMostSmallMapped = 1 << 14;
constexpr off_t kSmallBytes = 64 << 10;
std::atomic<int> small_mapped = 0;

std::string WhyNotMapped(int error) {
  std::string why = std::string("cannot be mapped: ") + std::strerror(error);
  if (error == ENOMEM) {
    why += ": the kernel maps no more files for one process (vm.max_map_count): join small files";
  }
  return why;
}

constexpr const char* kWhereItStarts =
    " (a relative path starts at the working directory, not at the recipe)";

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
    const bool is_link = ::lstat(path_.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
    Fail(path_, error == ENOENT && is_link ? std::string("is a link to a file that does not exist")
                : error == ENOENT          ? std::string("does not exist") + kWhereItStarts
                                           : std::string(std::strerror(error)));
  }
  if (S_ISDIR(info.st_mode))
    Fail(path_, "is a directory: name its files, or a glob: " + PrintableName(path_) + "/*");
  if (!S_ISREG(info.st_mode)) Fail(path_, "is not a regular file");
  if (info.st_size == 0) Fail(path_, "is empty: take it out of data.*.paths, or fill it");
  constexpr int64_t kMostOfAPointer = 1024;
  if (info.st_size < kMostOfAPointer && IsLfsPointer(ReadFileText(path_, kMostOfAPointer).text)) {
    Fail(path_, kLfsPointer);
  }
}

FileContents::FileContents(std::string path, As as) : path_(std::move(path)) {
  CheckThere();
  if (as == As::kStored || !IsCompressed(path_)) {
    Map();
  } else if (as == As::kBegin) {
    Inflate(kBeginBytes);
  } else {
    // The last eighth is for whoever reads it.
    const std::optional<MemoryRoom> room = MemoryLimits().Shared();
    constexpr size_t kLeast = size_t{1} << 26;
    const size_t most =
        room ? std::max(kLeast, static_cast<size_t>(room->bytes) / 8 * 7) : std::string::npos;
    Inflate(most);
    if (bytes_.size() < most) return;
    Fail(path_, "has " + std::to_string(most) + " bytes or more when decompressed, and " +
                    room->limit + " leaves no more: decompress it first, to be read in place: " +
                    (path_.ends_with(".gz") ? "gunzip -k " : "unzstd ") + ShellWord(path_));
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
      guard_(std::move(other.guard_)) {}

FileContents::~FileContents() {
  guard_.reset();
  if (!mapped_) return;
  ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  if (std::ssize(bytes_) <= kSmallBytes) --small_mapped;
}

void FileContents::Map() {
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.open()) Fail(path_, std::string("cannot be read: ") + std::strerror(errno));
  struct stat info;
  const bool known = ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
  if (known && info.st_size <= kSmallBytes && ++small_mapped > kMostSmallMapped) {
    --small_mapped;
    ReadSmall(file.get(), static_cast<size_t>(info.st_size));
    return;
  }
  void* data = known ? ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED,
                              file.get(), 0)
                     : MAP_FAILED;
  if (data == MAP_FAILED) {
    const int error = errno;
    if (known && info.st_size <= kSmallBytes) --small_mapped;
    Fail(path_, WhyNotMapped(error));
  }
  bytes_ = {static_cast<const char*>(data), static_cast<size_t>(info.st_size)};
  mapped_ = true;
  device_ = info.st_dev;
  inode_ = info.st_ino;
  guard_ = std::make_unique<const MappingGuard>(data, bytes_.size());
}

void FileContents::ReadSmall(int file, size_t size) {
  char* const to = inflated_.Room(size);
  ssize_t got = 1;
  while (inflated_.size() < size && got > 0) {
    got = ::read(file, to + inflated_.size(), size - inflated_.size());
    if (got > 0) inflated_.Add(static_cast<size_t>(got));
  }
  if (got < 0) Fail(path_, std::string("cannot be read: ") + std::strerror(errno));
  if (got == 0) Fail(path_, "has become shorter while it was read: put it back as it was");
  inflated_.Trim();
  bytes_ = {inflated_.data(), inflated_.size()};
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
  bytes_ = {inflated_.data(), inflated_.size()};
  if (bytes_.empty()) Fail(path_, "is empty when decompressed: take it out of data.*.paths");
}

std::vector<std::string> ExpandPaths(std::span<const std::string> paths, const std::string& where) {
  if (paths.empty()) throw DataError(where + ": no paths: list files or globs in data.*.paths");
  const auto fail = [&](const std::string& path, const std::string& what) {
    throw DataError(where + ": " + PrintableName(path) + ": " + what);
  };
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    struct stat info;
    const bool there = ::stat(path.c_str(), &info) == 0;
    if (!there && path.find("://") != std::string::npos) {
      fail(path,
           "data from a network is not in this version: copy it to a disk first, and name "
           "the files");
    }
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

std::vector<std::string> ExpandTextPaths(std::span<const std::string> paths,
                                         const std::string& where) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const auto is_directory = [&](const std::string& path) {
    return fs::is_directory(path, ignored);
  };
  std::vector<std::string> out;
  if (paths.empty()) return ExpandPaths(paths, where);  // Throws.
  for (const std::string& pattern : paths) {
    std::vector<std::string> found = ExpandPaths({&pattern, 1}, where);
    // As in a directory: of what a glob finds beside files, directories are not read.
    if (!std::all_of(found.begin(), found.end(), is_directory)) std::erase_if(found, is_directory);
    for (std::string& path : found) {
      if (!is_directory(path)) {
        out.push_back(std::move(path));
        continue;
      }
      const size_t first = out.size();
      std::error_code error;
      for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
        const std::string name = at->path().filename();
        if (name[0] == '.' || at->is_directory(ignored)) continue;
        out.push_back(path + (path.ends_with('/') ? "" : "/") + name);
      }
      if (error) {
        throw DataError(where + ": " + path +
                        ": is a directory that cannot be read: " + error.message());
      }
      if (out.size() == first) {
        throw DataError(where + ": " + path +
                        ": is a directory without text files (hidden files and its directories "
                        "are not read): name others by a glob" +
                        WhereInHubCache(path));
      }
      std::sort(out.begin() + static_cast<ptrdiff_t>(first), out.end());
    }
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

namespace {

bool SameContents(const DataFile& a, const DataFile& b) {
  return a.bytes == b.bytes && a.hash == b.hash;
}

std::string Contents(const DataFile& file) {
  return std::to_string(file.bytes) + " bytes with hash " + ToHex(file.hash);
}

// Takes from `list` the first that `is`.
template <typename Is>
bool Take(std::vector<DataFile>& list, const Is& is, DataFile* taken = nullptr) {
  const auto found = std::find_if(list.begin(), list.end(), is);
  if (found == list.end()) return false;
  if (taken != nullptr) *taken = *found;
  list.erase(found);
  return true;
}

}  // namespace

std::vector<std::string> DataChanges(const std::vector<DataFile>& before,
                                     const std::vector<DataFile>& now) {
  if (std::equal(before.begin(), before.end(), now.begin(), now.end(), SameContents)) return {};
  // Files that only one list has. A changed file is in both lists, most likely under one path.
  std::vector<DataFile> gone, come = now;
  for (const DataFile& file : before) {
    if (!Take(come, [&](const DataFile& f) { return SameContents(f, file); })) gone.push_back(file);
  }
  std::vector<std::string> changes;
  std::vector<DataFile> moved;
  const auto pair = [&](const DataFile& was, const DataFile& is) {
    changes.push_back(is.path + ": has " + Contents(is) + ", but the run was trained on " +
                      Contents(was) + (was.path == is.path ? "" : " (" + was.path + ")"));
  };
  DataFile is;
  for (const DataFile& was : gone) {
    const auto same_path = [&](const DataFile& f) { return f.path == was.path; };
    Take(come, same_path, &is) ? pair(was, is) : moved.push_back(was);
  }
  for (const DataFile& was : moved) {
    if (Take(
            come, [](const DataFile&) { return true; }, &is)) {
      pair(was, is);
    } else {
      changes.push_back(was.path + ": the run was trained on it, " + Contents(was) +
                        ", and it is missing");
    }
  }
  for (const DataFile& file : come) {
    changes.push_back(file.path + ": the run was not trained on it, " + Contents(file));
  }
  if (changes.empty()) {  // The same files.
    const auto [was, is_now] =
        std::mismatch(before.begin(), before.end(), now.begin(), SameContents);
    changes.push_back(is_now->path + ": the files are in another order: here the run had " +
                      was->path);
  }
  return changes;
}

}  // namespace fsdp
