// A disk that returns other bytes than were written is found out by whoever reads them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <tuple>

#include "tests/testing/error_of.h"
#include "tests/testing/lying_disk.h"
#include "trainer/core/errors.h"
#include "trainer/core/file_io.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/spill/spill_file.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kBlock = kSpillAlignment;

// Through the page cache, too.
class Disk : public LyingDisk {
 public:
  Disk(bool direct, Lie lie, int64_t offset = 0, int64_t nth = 0)
      : LyingDisk(lie, offset, nth), direct_(direct) {}
  int64_t MakeDirect(int fd, int64_t alignment) override {
    return direct_ ? LyingDisk::MakeDirect(fd, alignment) : 0;
  }

 private:
  const bool direct_;
};

std::string ErrorOf(const std::function<void()>& call) { return testing::ErrorOf(call); }

struct Bytes {
  explicit Bytes(int64_t size, uint32_t seed = 0)
      : memory(new (std::align_val_t{kBlock}) std::byte[size]), span(memory.get(), size) {
    std::mt19937 random(seed);
    for (std::byte& byte : span) byte = static_cast<std::byte>(random());
  }
  struct Delete {
    void operator()(std::byte* bytes) const {
      ::operator delete[](bytes, std::align_val_t{kBlock});
    }
  };
  std::unique_ptr<std::byte[], Delete> memory;
  std::span<std::byte> span;
};

std::string Wrong(int64_t begin, int64_t end, const std::string& of = "") {
  return ::testing::TempDir() + " (state, spilled): bytes " + std::to_string(begin) + " to " +
         std::to_string(end) + of +
         " cannot be read: the disk does not return what was written there; it has changed or lost "
         "it";
}

// A file whose bytes [0, size) are written, by a pool of one thread: transfers are in order.
struct Spilled {
  explicit Spilled(FileIo& io, int64_t size = 3 * kMiB)
      : file(::testing::TempDir(), "state", 8 * kMiB, io), bytes(size, 1) {
    file.Write(pool, 0, bytes.span);
  }
  std::string Read(int64_t offset, int64_t size) {
    const Bytes got(size, 2);
    const std::string error = ErrorOf([&] { file.Read(pool, offset, got.span); });
    if (error.empty() && offset + size <= std::ssize(bytes.span)) {
      EXPECT_TRUE(std::ranges::equal(got.span, bytes.span.subspan(offset, size)));
    }
    return error;
  }
  std::string ReadInOrder(int64_t offset, int64_t size, int64_t* used = nullptr) {
    return ErrorOf([&] {
      file.ReadInOrder(offset, size, [&](std::span<const std::byte> block) {
        if (used != nullptr) *used += std::ssize(block);
      });
    });
  }
  std::string Copy(int64_t from, int64_t to, int64_t size) {
    return ErrorOf([&] { file.Copy(pool, from, to, size); });
  }

  ThreadPool pool{1, /*spin=*/false};
  SpillFile file;
  Bytes bytes;
};

TEST(SpillChecks, ABitThatIsReadWrongIsFound) {
  for (const bool direct : {true, false}) {
    const int64_t turned = kMiB - kBlock;  // In the second piece of half a MiB.
    const std::string error = Wrong(turned, turned + kBlock);
    {
      Disk disk(direct, Lie::kReadsOther, kMiB / 2);
      Spilled spilled(disk);
      EXPECT_EQ(spilled.Read(0, 3 * kMiB), error);
      EXPECT_EQ(disk.lied_at(), turned);
      EXPECT_EQ(spilled.Read(0, 3 * kMiB), "");  // The file is what it was.
    }
    {
      Disk disk(direct, Lie::kReadsOther, kMiB / 2);
      Spilled spilled(disk);
      int64_t used = 0;
      EXPECT_EQ(spilled.ReadInOrder(0, 3 * kMiB, &used), error);
      EXPECT_EQ(used, kMiB / 2) << "what is wrong has been used";
    }
    {
      Disk disk(direct, Lie::kReadsOther, kMiB / 2);
      Spilled spilled(disk);
      EXPECT_EQ(spilled.Copy(0, 4 * kMiB, 3 * kMiB), error);
    }
  }
}

TEST(SpillChecks, WhatTheDiskHasWrongIsFound) {
  for (const bool direct : {true, false}) {
    for (const auto& [lie, begin, end] :
         {std::tuple{Lie::kWritesOther, kMiB - kBlock, kMiB}, {Lie::kLosesWrite, kMiB / 2, kMiB}}) {
      Disk disk(direct, lie, kMiB / 2);
      Spilled spilled(disk);
      EXPECT_EQ(spilled.Read(0, 3 * kMiB), Wrong(begin, end));
      EXPECT_EQ(spilled.Copy(0, 4 * kMiB, 3 * kMiB), Wrong(begin, end));
      EXPECT_EQ(spilled.ReadInOrder(0, 3 * kMiB), Wrong(begin, end));
      EXPECT_EQ(spilled.Read(0, kMiB / 2), "");
      EXPECT_EQ(spilled.Read(kMiB, 2 * kMiB), "");
      // Until it is written again.
      spilled.file.Write(spilled.pool, kMiB / 2, spilled.bytes.span.subspan(kMiB / 2, kMiB / 2));
      EXPECT_EQ(spilled.Read(0, 3 * kMiB), "");
    }
  }
}

TEST(SpillChecks, AWriteThatWentElsewhereIsFoundInBothPlaces) {
  for (const bool direct : {true, false}) {
    Disk disk(direct, Lie::kWritesElsewhere, 3 * kMiB / 2);
    Spilled spilled(disk);
    EXPECT_EQ(spilled.Read(kMiB, kMiB / 2), Wrong(kMiB, kMiB + kMiB / 2));
    EXPECT_EQ(spilled.Read(kMiB + kMiB / 2, kMiB / 2), Wrong(kMiB + kMiB / 2, 2 * kMiB));
    EXPECT_EQ(spilled.Read(0, kMiB), "");
  }
}

TEST(SpillChecks, WhatWasNeverWrittenIsZero) {
  Disk disk(/*direct=*/true, Lie::kReadsOther, 4 * kMiB, 1);
  Spilled spilled(disk);
  EXPECT_EQ(spilled.Read(4 * kMiB, kMiB / 2), "");
  EXPECT_EQ(spilled.Read(4 * kMiB, kBlock), Wrong(4 * kMiB, 4 * kMiB + kBlock));
}

// Behind tensors that do not end where blocks do.
TEST(SpillChecks, PaddingIsCheckedWithItsBlock) {
  for (const bool direct : {true, false}) {
    const int64_t last = kMiB / 2 + kBlock;
    Disk disk(direct, Lie::kReadsOther, last);
    Spilled spilled(disk, last + 8);
    EXPECT_EQ(spilled.Read(0, last + 8), Wrong(last, last + kBlock));
    EXPECT_EQ(disk.lied_at(), last);
    const Bytes got(2 * kBlock, 2);
    spilled.file.Read(spilled.pool, kMiB / 2, got.span);
    EXPECT_TRUE(std::ranges::all_of(got.span.subspan(kBlock + 8),
                                    [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

// A read that begins and ends between blocks, and is of other pieces than the writes were.
TEST(SpillChecks, ReadsNeedNotBeThoseThatWereWritten) {
  for (const int64_t offset : {int64_t{0}, int64_t{100}, kBlock, 3 * kBlock + 1}) {
    Disk disk(/*direct=*/true, Lie::kWritesOther, kMiB / 2);
    Spilled spilled(disk);
    EXPECT_EQ(spilled.ReadInOrder(offset, kMiB - kBlock - offset), "");
    EXPECT_EQ(spilled.ReadInOrder(offset, kMiB - kBlock - offset + 1), Wrong(kMiB - kBlock, kMiB));
    EXPECT_EQ(spilled.ReadInOrder(kMiB - 1, 2 * kMiB), Wrong(kMiB - kBlock, kMiB));
    EXPECT_EQ(spilled.ReadInOrder(kMiB, 2 * kMiB), "");
  }
}

// It has the hashes of its source: what goes wrong on the way is not made right by being copied.
TEST(SpillChecks, ACopyIsHeldToWhatWasWrittenFirst) {
  for (const Lie lie : {Lie::kWritesOther, Lie::kLosesWrite, Lie::kWritesElsewhere}) {
    Disk disk(/*direct=*/true, lie, 4 * kMiB + kMiB / 2);
    Spilled spilled(disk);
    EXPECT_EQ(spilled.Copy(0, 4 * kMiB, 3 * kMiB), "");
    int64_t begin = kMiB / 2, end = kMiB;
    if (lie == Lie::kWritesOther) begin = kMiB - kBlock;
    if (lie == Lie::kWritesElsewhere) begin = 0, end = kMiB / 2;  // In the place of the first.
    EXPECT_EQ(spilled.ReadInOrder(4 * kMiB, 3 * kMiB), Wrong(4 * kMiB + begin, 4 * kMiB + end));
    EXPECT_EQ(spilled.Read(0, 3 * kMiB), "");
  }
}

// A copy of a copy, after its source was written again.
TEST(SpillChecks, ACopyIsItsOwn) {
  Disk disk(/*direct=*/true, Lie::kNone);
  Spilled spilled(disk);
  EXPECT_EQ(spilled.Copy(0, 4 * kMiB, 1000), "");
  const Bytes other(kMiB, 3);
  spilled.file.Write(spilled.pool, 0, other.span);
  EXPECT_EQ(spilled.ReadInOrder(4 * kMiB, 1000), "");
  EXPECT_EQ(spilled.Copy(4 * kMiB, 6 * kMiB, 1000), "");
  EXPECT_EQ(spilled.ReadInOrder(6 * kMiB, kBlock), "");
}

TEST(SpillChecks, MessagesNameThePart) {
  const Bytes bytes(kMiB, 1);
  const struct {
    int64_t offset;
    const char* of;
  } cases[] = {{0, ", master of h.0,"}, {kBlock, ", m of h.0,"}, {kMiB, ", m of h.0,"},
               {kBlock + kMiB, ""},     {2 * kMiB - kBlock, ""}, {2 * kMiB, ", v of h.0,"},
               {4 * kMiB - kBlock, ""}};
  for (const auto& [offset, of] : cases) {
    Disk disk(/*direct=*/true, Lie::kWritesOther, offset);
    ThreadPool pool(1, /*spin=*/false);
    SpillFile file(::testing::TempDir(), "state", 4 * kMiB, disk);
    file.Name(0, 1000, "master of h.0");
    file.Name(kBlock, kMiB, "m of h.0");
    file.Name(2 * kMiB, kMiB, "v of h.0");
    file.Write(pool, offset, bytes.span.first(kBlock));
    EXPECT_EQ(ErrorOf([&] { file.Read(pool, offset, bytes.span.first(kBlock)); }),
              Wrong(offset, offset + kBlock, of));
  }
}

TEST(SpillChecks, HashesTakeOne512th) {
  EXPECT_EQ(SpillFile::HashBytes(0), 0);
  EXPECT_EQ(SpillFile::HashBytes(1), 8);
  EXPECT_EQ(SpillFile::HashBytes(kBlock), 8);
  EXPECT_EQ(SpillFile::HashBytes(512 * kMiB), kMiB);
}

}  // namespace
}  // namespace fsdp
