// MiB/s of a spill file beside what its disk does at all:
//   bazel run //tools/bench:spill_bench -- DIR [MIB] [THREADS ...]     (2048, and 1 2 4 8, without)
//   ... -- --both DIR MIB                      the seconds of "both, plain" alone, by 4 threads
//   each
// "plain" is a loop of pread and pwrite by as many threads, each over its own part of a file of the
// same directory, O_DIRECT where it can, 1 MiB at a time, as fio's psync. By turns, five rounds,
// medians: a disk has moods. "both" reads one half of the file and writes the other at the same
// time, each with that many threads, and counts the bytes of both; "copy" is the one half copied to
// the other.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "trainer/core/file_io.h"
#include "trainer/core/unique_fd.h"
#include "trainer/runtime/memory.h"
#include "trainer/runtime/spill/spill_file.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {
namespace {

constexpr int kRounds = 5;
constexpr int64_t kBlock = int64_t{1} << 20;

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void Must(bool worked) {
  if (!worked) throw std::runtime_error(std::strerror(errno));
}

// Runs `first` and `second` at the same time.
void Together(ThreadPool& two, const std::function<void()>& first,
              const std::function<void()>& second) {
  two.Run([&](int t) { t == 0 ? first() : second(); });
}

struct Plain {
  Plain(const std::string& directory, int64_t bytes)
      : file(FileIo::System().OpenUnnamed(directory)) {
    Must(file.open());
    Must(FileIo::System().Reserve(file.get(), bytes) == 0);
    FileIo::System().MakeDirect(file.get(), kSpillAlignment);
  }
  // Bytes [begin, begin + bytes), of which memory holds the same ones.
  void Move(bool write, ThreadPool& pool, int64_t begin, int64_t bytes, std::byte* memory) const {
    pool.ParallelFor(bytes / kBlock, 1, [&](int64_t first, int64_t end) {
      for (int64_t block = first; block < end; ++block) {
        const int64_t at = begin + block * kBlock;
        Must((write ? ::pwrite(file.get(), memory + at, kBlock, at)
                    : ::pread(file.get(), memory + at, kBlock, at)) == kBlock);
      }
    });
  }
  UniqueFd file;
};

// So many bytes of the file are read and as many others written.
void Both(const Plain& plain, ThreadPool& two, ThreadPool& pool, ThreadPool& other, int64_t half,
          std::byte* memory) {
  Together(
      two, [&] { plain.Move(false, pool, 0, half, memory); },
      [&] { plain.Move(true, other, half, half, memory); });
}

struct Row {
  const char* name;
  int64_t bytes;
  std::function<void()> work;
  std::vector<double> seconds = {};
};

void Measure(const std::string& directory, int64_t bytes, int threads, std::byte* memory) {
  SpillFile spill(directory, "a benchmark", bytes);
  const Plain plain(directory, bytes);
  ThreadPool pool(threads, /*spin=*/false), other(threads, /*spin=*/false), two(2, /*spin=*/false);
  const std::span<std::byte> all(memory, bytes);
  const int64_t half = bytes / 2;
  std::vector<Row> rows = {
      {"write", bytes, [&] { spill.Write(pool, 0, all); }},
      {"write, plain", bytes, [&] { plain.Move(true, pool, 0, bytes, memory); }},
      {"read", bytes, [&] { spill.Read(pool, 0, all); }},
      {"read, plain", bytes, [&] { plain.Move(false, pool, 0, bytes, memory); }},
      {"both", bytes,
       [&] {
         Together(
             two, [&] { spill.Read(pool, 0, all.first(half)); },
             [&] { spill.Write(other, half, all.subspan(half)); });
       }},
      {"both, plain", bytes, [&] { Both(plain, two, pool, other, half, memory); }},
      {"copy", half, [&] { spill.Copy(pool, 0, half, half); }},
  };
  for (const Row& row : rows) row.work();  // Blocks are written for the first time.
  for (int round = 0; round < kRounds; ++round) {
    for (Row& row : rows) row.seconds.push_back(Seconds(row.work));
  }
  std::printf("%2d threads%s:", threads, spill.direct() ? "" : ", not direct");
  for (Row& row : rows) {
    std::sort(row.seconds.begin(), row.seconds.end());
    const auto rate = [&](double s) { return static_cast<double>(row.bytes) / s / (1 << 20); };
    std::printf("  %s %.0f (%.0f .. %.0f)", row.name, rate(row.seconds[kRounds / 2]),
                rate(row.seconds.back()), rate(row.seconds.front()));
  }
  std::printf("\n");
  std::fflush(stdout);
}

void MeasureBoth(const std::string& directory, int64_t bytes, std::byte* memory) {
  const Plain plain(directory, bytes);
  ThreadPool pool(4, /*spin=*/false), other(4, /*spin=*/false), two(2, /*spin=*/false);
  plain.Move(true, pool, 0, bytes, memory);
  std::printf("%.4f\n", Seconds([&] { Both(plain, two, pool, other, bytes / 2, memory); }));
}

int Main(int argc, char** argv) {
  const bool both = argc == 4 && std::string(argv[1]) == "--both";
  if (both) --argc, ++argv;
  if (argc < 2) {
    return std::fprintf(stderr, "usage: spill_bench [--both] DIR [MIB] [THREADS ...]\n"), 2;
  }
  const int64_t bytes = (argc > 2 ? std::atoll(argv[2]) : 2048) / 2 * 2 * kBlock;
  std::vector<int> threads;
  for (int i = 3; i < argc; ++i) threads.push_back(std::atoi(argv[i]));
  if (threads.empty()) threads = {1, 2, 4, 8};
  struct Delete {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t{kSpillAlignment});
    }
  };
  const std::unique_ptr<std::byte[], Delete> memory(new (std::align_val_t{kSpillAlignment})
                                                        std::byte[bytes]);
  std::fill_n(reinterpret_cast<uint64_t*>(memory.get()), bytes / 8, 0x3f8ccccd3f800001);
  try {
    if (both) return MeasureBoth(argv[1], bytes, memory.get()), 0;
    std::printf("%lld MiB in %s, MiB/s\n", static_cast<long long>(bytes / kBlock), argv[1]);
    for (const int t : threads) Measure(argv[1], bytes, t, memory.get());
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
  return 0;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) { return fsdp::Main(argc, argv); }
