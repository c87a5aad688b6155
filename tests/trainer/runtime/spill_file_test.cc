#include "trainer/runtime/spill/spill_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/fresh_directory.h"
#include "tests/testing/full_disk.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/file_io.h"
#include "trainer/core/unique_fd.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FreshDirectory;

constexpr int64_t kMiB = int64_t{1} << 20;

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ExitCode::kCheckpoint);
    return error.what();
  }
  return "";
}

// A file system and a disk as a test wants them; by default those that are there.
class TestIo : public FileIo {
 public:
  bool unnamed = true;  // It has files without a name.
  bool can_direct = true;
  int reserve_error = 0;
  int64_t most = INT64_MAX;             // Bytes of a transfer.
  int interrupts = 0;                   // Every n-th call is interrupted, n > 1.
  int64_t bad_begin = -1;               // A transfer of this byte of the file
  int read_error = 0, write_error = 0;  // fails, or, with -1, moves nothing.
  int sync_error = 0;
  std::atomic<int> syncs = 0, transfers = 0;

  int OpenUnnamed(const std::string& directory) override {
    return unnamed ? FileIo::OpenUnnamed(directory) : (errno = EOPNOTSUPP, -1);
  }
  int Reserve(int fd, int64_t bytes) override {
    return reserve_error != 0 ? reserve_error : FileIo::Reserve(fd, bytes);
  }
  int64_t MakeDirect(int fd, int64_t alignment) override {
    spill_ = fd;
    if (can_direct) alignment_ = FileIo::MakeDirect(fd, alignment);
    return alignment_;
  }
  ssize_t ReadAt(int fd, std::byte* to, size_t bytes, int64_t offset) override {
    if (const ssize_t n = Refuse(fd, to, bytes, offset, read_error); n != 0) return n < 0 ? -1 : 0;
    return FileIo::ReadAt(fd, to, Cut(bytes), offset);
  }
  ssize_t WriteAt(int fd, const std::byte* from, size_t bytes, int64_t offset) override {
    if (const ssize_t n = Refuse(fd, from, bytes, offset, write_error); n != 0) {
      return n < 0 ? -1 : 0;
    }
    return FileIo::WriteAt(fd, from, Cut(bytes), offset);
  }
  int SyncData(int fd) override {
    ++syncs;
    return sync_error != 0 ? (errno = sync_error, -1) : FileIo::SyncData(fd);
  }

 private:
  size_t Cut(size_t bytes) const { return std::min(bytes, static_cast<size_t>(most)); }

  // 0: go on. -1: fails, errno says how. 1: moves nothing.
  ssize_t Refuse(int fd, const std::byte* memory, size_t bytes, int64_t offset, int error) {
    if (interrupts > 1 && ++transfers % interrupts == 0) return errno = EINTR, -1;
    if (fd != spill_) return 0;
    if (alignment_ > 0 && (reinterpret_cast<uintptr_t>(memory) % alignment_ != 0 ||
                           offset % kSpillAlignment != 0 || bytes % kSpillAlignment != 0)) {
      ADD_FAILURE() << "a direct transfer of " << bytes << " bytes at " << offset;
    }
    if (error == 0 || bad_begin < offset ||
        bad_begin >= offset + static_cast<int64_t>(Cut(bytes))) {
      return 0;
    }
    return error < 0 ? 1 : (errno = error, -1);
  }

  int spill_ = -1;
  int64_t alignment_ = 0;
};

// Bytes that begin `off` bytes behind a page.
struct Bytes {
  explicit Bytes(int64_t size, int64_t off = 0)
      : memory(new (std::align_val_t{kSpillAlignment}) std::byte[size + off]),
        span(memory.get() + off, size) {}
  Bytes(int64_t size, int64_t off, uint32_t seed) : Bytes(size, off) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < size; i += 4) {
      const uint32_t four = random();
      std::memcpy(&span[i], &four, std::min<int64_t>(4, size - i));
    }
  }
  struct Delete {
    void operator()(std::byte* bytes) const {
      ::operator delete[](bytes, std::align_val_t{kSpillAlignment});
    }
  };
  std::unique_ptr<std::byte[], Delete> memory;
  std::span<std::byte> span;
};

bool Same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Tensors are written and read, by turns and by chance, from and into memory that begins anywhere,
// and are what a model in memory says.
void CompareWithModel(TestIo& io, int threads, uint32_t seed, int operations) {
  std::mt19937 random(seed);
  struct Tensor {
    int64_t bytes, offset;
  };
  std::vector<Tensor> tensors;
  int64_t end = 0;
  for (const int64_t bytes : {int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{4097}, int64_t{0},
                              kMiB - 1, kMiB, 2 * kMiB + 4096, 3 * kMiB + 777, int64_t{100000}}) {
    tensors.push_back({bytes, end});
    end += (bytes + kSpillAlignment - 1) / kSpillAlignment * kSpillAlignment;
  }
  ThreadPool pool(threads, /*spin=*/false);
  SpillFile file(FreshDirectory("model"), "state", end, io);
  EXPECT_LE(file.direct(), io.can_direct);
  std::vector<std::vector<std::byte>> model;
  for (const Tensor& tensor : tensors) model.emplace_back(tensor.bytes);  // Zeros.
  const int64_t offs[] = {0, 64, 512, 1};
  for (int i = 0; i < operations; ++i) {
    const size_t t = random() % tensors.size();
    const int64_t off = offs[random() % 4];
    if (random() % 2 == 0) {
      const Bytes bytes(tensors[t].bytes, off, random());
      file.Write(pool, tensors[t].offset, bytes.span);
      model[t].assign(bytes.span.begin(), bytes.span.end());
    } else {
      const Bytes bytes(tensors[t].bytes, off);
      file.Read(pool, tensors[t].offset, bytes.span);
      ASSERT_TRUE(Same(bytes.span, model[t])) << "tensor " << t << ", operation " << i;
    }
  }
  const Bytes all(end);  // As one range.
  file.Read(pool, 0, all.span);
  for (size_t t = 0; t < tensors.size(); ++t) {
    EXPECT_TRUE(Same(all.span.subspan(tensors[t].offset, tensors[t].bytes), model[t]));
  }
}

TEST(SpillFile, HoldsWhatIsWritten) {
  uint32_t seed = 0;
  for (const int threads : {1, 4}) {
    for (const bool direct : {true, false}) {
      TestIo io;
      io.can_direct = direct;
      CompareWithModel(io, threads, ++seed, 100);
      EXPECT_EQ(io.syncs > 0, !direct);  // Or errors of a disk would be lost.
    }
  }
}

TEST(SpillFile, GoesOnAfterShortTransfersAndInterrupts) {
  for (const int interrupts : {0, 3}) {
    TestIo direct;
    direct.most = 5 * kSpillAlignment;
    direct.interrupts = interrupts;
    CompareWithModel(direct, 4, 5, 30);
    TestIo buffered;
    buffered.can_direct = false;
    buffered.most = 60001;
    buffered.interrupts = interrupts;
    CompareWithModel(buffered, 4, 6, 30);
  }
  TestIo io;  // Ends between blocks: those that are whole count.
  io.most = 3 * kSpillAlignment + 512;
  CompareWithModel(io, 2, 7, 30);
}

TEST(SpillFile, ReadsAndWritesAtTheSameTime) {
  constexpr int64_t kUnit = 3 * kMiB;
  SpillFile file(FreshDirectory("both"), "state", 4 * kUnit);
  const auto work = [&](int first) {
    ThreadPool pool(2, /*spin=*/false);
    Bytes back(kUnit);
    for (uint32_t round = 0; round < 6; ++round) {
      const int64_t at = (first + round % 2 * 2) * kUnit;
      const Bytes bytes(kUnit, 0, round);
      file.Write(pool, at, bytes.span);
      file.Read(pool, at, back.span);
      if (!Same(bytes.span, back.span)) throw std::runtime_error("other bytes");
    }
  };
  ThreadPool two(2, /*spin=*/false);
  EXPECT_NO_THROW(two.Run(work));
}

// The file, by way of the descriptor that the program has of it.
struct stat Opened(const std::string& dir) {
  struct stat status {};
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string to = fs::read_symlink(entry.path(), ignored);
    if (to.starts_with(fs::canonical(dir).string() + "/")) ::stat(entry.path().c_str(), &status);
  }
  return status;
}

TEST(SpillFile, HasNoNameAndAllItsSpace) {
  for (const bool unnamed : {true, false}) {
    const std::string dir = FreshDirectory("space");
    TestIo io;
    io.unnamed = unnamed;
    const SpillFile file(dir, "state", 3 * kMiB + 1, io);
    EXPECT_TRUE(fs::is_empty(dir));
    const struct stat status = Opened(dir);
    EXPECT_EQ(status.st_nlink, 0);
    EXPECT_EQ(status.st_mode & 0777, 0600);
    EXPECT_EQ(status.st_size, 3 * kMiB + kSpillAlignment);
    EXPECT_GE(status.st_blocks * 512, status.st_size);
  }
}

TEST(SpillFile, LeavesNothingWhenItsProgramIsKilled) {
  for (const bool unnamed : {true, false}) {
    const std::string dir = FreshDirectory("killed");
    int spilling[2];
    ASSERT_EQ(::pipe(spilling), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      TestIo io;
      io.unnamed = unnamed;
      SpillFile file(dir, "state", 4 * kMiB, io);
      ThreadPool pool(1, /*spin=*/false);
      const Bytes bytes(4 * kMiB, 0, 1);
      for (;;) {
        file.Write(pool, 0, bytes.span);
        if (::write(spilling[1], "w", 1) != 1) ::_exit(1);
      }
    }
    ASSERT_GT(child, 0);
    char written;
    for (int i = 0; i < 3; ++i) ASSERT_EQ(::read(spilling[0], &written, 1), 1);
    EXPECT_TRUE(fs::is_empty(dir));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_TRUE(fs::is_empty(dir));
    ::close(spilling[0]), ::close(spilling[1]);
  }
}

// Takes root's privileges from this thread while it lives.
class AsAnybody {
 public:
  AsAnybody() {
    ::syscall(SYS_capget, &header_, before_);
    __user_cap_data_struct less[2] = {before_[0], before_[1]};
    less[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    ::syscall(SYS_capset, &header_, less);
  }
  ~AsAnybody() { ::syscall(SYS_capset, &header_, before_); }

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct before_[2] = {};
};

TEST(SpillFile, RefusesADirectoryThatTakesNothing) {
  const std::string dir = FreshDirectory("refused");
  const auto error = [](const std::string& at, FileIo& io = FileIo::System()) {
    return ErrorOf([&] { SpillFile(at, "optimizer state", 3 * kMiB, io); });
  };
  const std::string what = ": cannot take 3.00 MiB of optimizer state: ";
  EXPECT_EQ(error(dir + "/none"), dir + "/none" + what + "No such file or directory");
  WriteAtomicFile(dir + "/file", "");
  EXPECT_EQ(error(dir + "/file"), dir + "/file" + what + "Not a directory");
  fs::create_directory(dir + "/closed");
  fs::permissions(dir + "/closed", fs::perms::owner_read | fs::perms::owner_exec);
  for (const bool unnamed : {true, false}) {
    const AsAnybody anybody;
    TestIo io;
    io.unnamed = unnamed;
    EXPECT_EQ(error(dir + "/closed", io), dir + "/closed" + what + "Permission denied");
  }
  fs::create_directory(dir + "/full");
  {
    const FullDisk full(2 * kMiB);
    const std::string said = error(dir + "/full");
    EXPECT_EQ(said, dir + "/full" + what + "File too large");
  }
  for (const bool unnamed : {true, false}) {
    TestIo io;
    io.unnamed = unnamed;
    io.reserve_error = ENOSPC;
    EXPECT_EQ(error(dir + "/full", io), dir + "/full" + what + "No space left on device");
  }
  EXPECT_TRUE(fs::is_empty(dir + "/full") && fs::is_empty(dir + "/closed"));
}

TEST(SpillFile, SaysWhatADiskRefuses) {
  const std::string dir = FreshDirectory("faults");
  for (const bool direct : {true, false}) {
    TestIo io;
    io.can_direct = direct;
    io.bad_begin = 3 * kMiB + 5000;
    ThreadPool pool(4, /*spin=*/false);
    SpillFile file(dir, "optimizer state", 8 * kMiB, io);
    const Bytes bytes(7 * kMiB, 0, 1), back(7 * kMiB);
    file.Write(pool, 0, bytes.span);
    const std::string begin = dir + " (optimizer state, spilled): bytes ",
                      piece = begin + "3145728 to 3670016 cannot be ";
    const auto read = [&] { file.Read(pool, 0, back.span); };
    const auto write = [&] { file.Write(pool, 0, bytes.span); };
    io.read_error = EIO;
    EXPECT_EQ(ErrorOf(read), piece + "read: Input/output error");
    io.read_error = -1;
    EXPECT_EQ(ErrorOf(read), piece + "read: the disk stops there");
    io.read_error = 0;
    for (const auto& [error, words] :
         {std::pair{EIO, "Input/output error"}, {ENOSPC, "No space left on device"}}) {
      io.write_error = error;
      EXPECT_EQ(ErrorOf(write), piece + "written: " + words);
    }
    io.write_error = -1;
    EXPECT_EQ(ErrorOf(write), piece + "written: the disk stops there");
    io.write_error = 0;
    if (!direct) {
      io.sync_error = EIO;
      EXPECT_EQ(ErrorOf(write), begin + "0 to 7340032 cannot be written: Input/output error");
      io.sync_error = 0;
    }
    // Nothing else is lost, and the file is as good as the disk.
    read();
    EXPECT_TRUE(Same(back.span, bytes.span));
    write();
    // From where it fails on.
    io.most = 2 * kSpillAlignment;
    io.bad_begin = 3 * kMiB + 2 * kSpillAlignment;
    io.read_error = EIO;
    EXPECT_EQ(ErrorOf([&] { file.Read(pool, 3 * kMiB, back.span.first(kMiB)); }),
              begin + "3153920 to 3670016 cannot be read: Input/output error");
  }
  EXPECT_TRUE(fs::is_empty(dir));
}

TEST(SpillFile, RefusesWhatIsOutside) {
  SpillFile file(FreshDirectory("outside"), "state", 5000);
  ThreadPool pool(1, /*spin=*/false);
  const Bytes bytes(3 * kSpillAlignment);
  EXPECT_NO_THROW(file.Read(pool, 0, bytes.span.first(2 * kSpillAlignment)));
  EXPECT_NO_THROW(file.Read(pool, 2 * kSpillAlignment, bytes.span.first(0)));
  const struct {
    int64_t offset, bytes;
  } cases[] = {{-4096, 1},           {1, 1}, {512, 1}, {0, 8193}, {4096, 4097}, {8192, 1},
               {int64_t{1} << 62, 1}};
  for (const auto& c : cases) {
    const auto span = bytes.span.first(c.bytes);
    EXPECT_THROW(file.Read(pool, c.offset, span), std::invalid_argument) << c.offset;
    EXPECT_THROW(file.Write(pool, c.offset, span), std::invalid_argument) << c.offset;
    EXPECT_THROW(file.Copy(pool, c.offset, 0, c.bytes), std::invalid_argument);
    EXPECT_THROW(file.Copy(pool, 0, c.offset, c.bytes), std::invalid_argument);
  }
}

TEST(SpillFile, MayBeEmpty) {
  const std::string dir = FreshDirectory("empty");
  SpillFile file(dir, "state", 0);
  ThreadPool pool(2, /*spin=*/false);
  file.Write(pool, 0, {});
  file.Read(pool, 0, {});
  EXPECT_THROW(SpillFile(dir + "/none", "state", 0), CheckpointError);
}

TEST(SpillFile, IsReadInOrder) {
  SpillFile file(FreshDirectory("order"), "state", 4 * kMiB);
  ThreadPool pool(2, /*spin=*/false);
  const Bytes bytes(4 * kMiB, 0, 1);
  file.Write(pool, 0, bytes.span);
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{4096}, kMiB, 2 * kMiB + 12345}) {
    std::vector<std::byte> got;
    file.ReadInOrder(kMiB, size, [&](std::span<const std::byte> block) {
      EXPECT_LE(std::ssize(block), kMiB / 2);
      got.insert(got.end(), block.begin(), block.end());
    });
    EXPECT_TRUE(Same(got, bytes.span.subspan(kMiB, size)));
  }
  EXPECT_NO_THROW(file.ReadInOrder(4 * kMiB, 0, nullptr));
  EXPECT_THROW(file.ReadInOrder(-1, 1, nullptr), std::invalid_argument);
  EXPECT_THROW(file.ReadInOrder(4 * kMiB - 1, 2, nullptr), std::invalid_argument);
  EXPECT_THROW(file.ReadInOrder(1, -1, nullptr), std::invalid_argument);
  int blocks = 0;
  const auto stop = [&](std::span<const std::byte>) {
    if (++blocks == 2) throw std::runtime_error("enough");
  };
  EXPECT_THROW(file.ReadInOrder(0, 4 * kMiB, stop), std::runtime_error);
  EXPECT_EQ(blocks, 2);
}

TEST(SpillFile, IsReadInOrderFromAnywhere) {
  const std::string dir = FreshDirectory("anywhere");
  const Bytes bytes(4 * kMiB, 0, 1);
  for (const bool direct : {true, false}) {
    TestIo io;
    io.can_direct = direct;
    SpillFile file(dir, "state", 4 * kMiB, io);
    ThreadPool pool(2, /*spin=*/false);
    file.Write(pool, 0, bytes.span);
    for (const int64_t offset : {int64_t{1}, int64_t{512}, int64_t{4095}, kMiB - 1, kMiB + 1024}) {
      for (const int64_t size :
           {int64_t{0}, int64_t{1}, int64_t{3584}, int64_t{3585}, kMiB, 2 * kMiB + 12345}) {
        std::vector<std::byte> got;
        file.ReadInOrder(offset, size, [&](std::span<const std::byte> block) {
          EXPECT_LE(std::ssize(block), kMiB / 2);
          got.insert(got.end(), block.begin(), block.end());
          const int64_t end = offset + std::ssize(got);
          EXPECT_TRUE(end % kSpillAlignment == 0 || end == offset + size);
        });
        EXPECT_TRUE(Same(got, bytes.span.subspan(offset, size))) << size << " at " << offset;
      }
    }
    file.ReadInOrder(1, 4 * kMiB - 1, [](std::span<const std::byte>) {});  // To the file's end.
  }
}

TEST(SpillFile, CopiesWithinItself) {
  const std::string dir = FreshDirectory("copy");
  constexpr int64_t kTo = 4 * kMiB;
  const Bytes bytes(4 * kMiB - kSpillAlignment, 0, 1);
  for (const bool direct : {true, false}) {
    for (const int64_t most : {INT64_MAX, int64_t{977 * 4096}}) {
      for (const int interrupts : {0, 3}) {
        for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{4096}, 3 * kMiB + 12345}) {
          TestIo io;
          io.can_direct = direct;
          ThreadPool pool(2, /*spin=*/false);
          SpillFile file(dir, "state", 8 * kMiB, io);
          file.Write(pool, kSpillAlignment, bytes.span);
          io.most = most;
          io.interrupts = interrupts;
          file.Copy(pool, kSpillAlignment, kTo, size);
          const Bytes got(size);
          file.Read(pool, kTo, got.span);
          EXPECT_TRUE(Same(got.span, bytes.span.first(size)));
          file.Read(pool, kSpillAlignment, got.span);
          EXPECT_TRUE(Same(got.span, bytes.span.first(size)));
        }
      }
    }
  }
}

TEST(SpillFile, SaysWhereACopyFails) {
  const std::string dir = FreshDirectory("copy_faults");
  TestIo io;
  SpillFile file(dir, "state", 8 * kMiB, io);
  ThreadPool pool(1, /*spin=*/false);
  io.read_error = EIO;
  io.bad_begin = 2 * kMiB;
  EXPECT_EQ(ErrorOf([&] { file.Copy(pool, 0, 4 * kMiB, 3 * kMiB); }),
            dir + " (state, spilled): bytes 2097152 to 2621440 cannot be read: Input/output error");
  io.read_error = 0;
  io.write_error = ENOSPC;
  io.bad_begin = 4 * kMiB;
  EXPECT_EQ(ErrorOf([&] { file.Copy(pool, 0, 4 * kMiB, 3 * kMiB); }),
            dir +
                " (state, spilled): bytes 4194304 to 4718592 cannot be written: No space left on "
                "device");
}

}  // namespace
}  // namespace fsdp
