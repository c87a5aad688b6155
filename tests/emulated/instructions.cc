// The instructions of simt.h, each computed once for a warp.
#include <cstdint>
#include <cstring>

#include "tests/emulated/include/cuda_bf16.h"
#include "tests/emulated/include/cuda_fp16.h"
#include "tests/emulated/simt.h"
#include "tests/emulated/warp.h"

namespace fsdp {
namespace {

constexpr uint32_t kAllLanes = 0xffffffffu;

template <typename Operand, typename Function>
void ForEachLane(void* const* operands, uint32_t lanes, const Function& f) {
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    f(lane, *static_cast<Operand*>(operands[lane]));
  }
}

struct Shuffled {
  uint64_t value, result;
  int from;
};
void Shuffle(void* const* operands, uint32_t lanes) {
  ForEachLane<Shuffled>(operands, lanes, [&](int, Shuffled& to) {
    const bool there = (lanes >> to.from & 1) != 0;
    to.result = there ? static_cast<Shuffled*>(operands[to.from])->value : ~uint64_t{0};
  });
}

struct Vote {
  bool predicate;
  uint32_t ballot;
};
void Ballot(void* const* operands, uint32_t lanes) {
  uint32_t ballot = 0;
  ForEachLane<Vote>(operands, lanes,
                    [&](int lane, Vote& vote) { ballot |= uint32_t{vote.predicate} << lane; });
  ForEachLane<Vote>(operands, lanes, [&](int, Vote& vote) { vote.ballot = ballot; });
}

struct MmaOperand {
  float* d;
  const uint32_t *a, *b;
};
float BFloat16At(uint32_t word, int half) {
  return std::bit_cast<float>(half == 0 ? word << 16 : word & 0xffff0000u);
}
float Float16At(uint32_t word, int half) {
  return __half2float({static_cast<uint16_t>(word >> (16 * half))});
}
template <float (*at)(uint32_t, int)>
void Mma(void* const* operands, uint32_t lanes) {
  using Row = float __attribute__((vector_size(32)));
  float a[16][16];  // [k][i]
  alignas(Row) float b[16][8], sum[16][8];
  ForEachLane<MmaOperand>(operands, lanes, [&](int lane, const MmaOperand& own) {
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r) a[2 * t + r / 2 * 8 + half][g + r % 2 * 8] = at(own.a[r], half);
      for (int r = 0; r < 2; ++r) b[2 * t + r * 8 + half][g] = at(own.b[r], half);
    }
  });
  constexpr int kRows = 8;  // As many sums as registers hold.
  for (int begin = 0; begin < 16; begin += kRows) {
    Row rows[kRows] = {};
    for (int k = 0; k < 16; ++k) {
      Row factor;
      std::memcpy(&factor, b[k], sizeof(factor));
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) rows[i] += a[k][begin + i] * factor;
    }
    std::memcpy(sum[begin], rows, sizeof(rows));
  }
  ForEachLane<MmaOperand>(operands, lanes, [&](int lane, const MmaOperand& own) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) own.d[i] += sum[g + i / 2 * 8][2 * t + i % 2];
  });
}

struct LoadOperand {
  uint32_t* r;
  const std::byte* row;
};
template <bool transposed>
void LoadMatrices(void* const* operands, uint32_t lanes) {
  const std::byte* rows[32];
  ForEachLane<LoadOperand>(operands, lanes, [&](int lane, const LoadOperand& own) {
    rows[lane] = own.row;
    if (reinterpret_cast<uintptr_t>(own.row) % 16 != 0) {
      FailEmulation("ldmatrix of a row that is not aligned to 16 bytes");
    }
  });
  ForEachLane<LoadOperand>(operands, lanes, [&](int lane, const LoadOperand& own) {
    const int g = lane / 4, t = lane % 4;
    for (int m = 0; m < 4; ++m) {
      if (transposed) {
        uint16_t low, high;
        std::memcpy(&low, rows[m * 8 + 2 * t] + 2 * g, sizeof(low));
        std::memcpy(&high, rows[m * 8 + 2 * t + 1] + 2 * g, sizeof(high));
        own.r[m] = low | uint32_t{high} << 16;
      } else {
        std::memcpy(&own.r[m], rows[m * 8 + g] + 4 * t, sizeof(uint32_t));
      }
    }
  });
}

constexpr WarpInstruction kSyncWarp{"__syncwarp", false, [](void* const*, uint32_t) {}};
constexpr WarpInstruction kShuffle{"a shuffle", false, Shuffle};
constexpr WarpInstruction kBallot{"a vote", false, Ballot};
constexpr WarpInstruction kMmaBFloat16{"mma.sync (bf16)", true, Mma<BFloat16At>};
constexpr WarpInstruction kMmaFloat16{"mma.sync (fp16)", true, Mma<Float16At>};
constexpr WarpInstruction kLoadMatrices{"ldmatrix", true, LoadMatrices<false>};
constexpr WarpInstruction kLoadTransposed{"ldmatrix.trans", true, LoadMatrices<true>};

}  // namespace

void EmulateSyncWarp(uint32_t mask) { ExecuteByWarp(kSyncWarp, mask, nullptr); }

uint64_t EmulateShuffleBits(uint32_t mask, uint64_t value, int from) {
  Shuffled operand{value, 0, from};
  ExecuteByWarp(kShuffle, mask, &operand);
  return operand.result;
}

uint32_t EmulateBallot(uint32_t mask, bool predicate) {
  Vote operand{predicate, 0};
  ExecuteByWarp(kBallot, mask, &operand);
  return operand.ballot;
}

void EmulateMma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool bf16) {
  MmaOperand operand{d, a, b};
  ExecuteByWarp(bf16 ? kMmaBFloat16 : kMmaFloat16, kAllLanes, &operand);
}

void EmulateLoadMatrices(uint32_t (&r)[4], const void* row, bool transposed) {
  LoadOperand operand{r, static_cast<const std::byte*>(row)};
  ExecuteByWarp(transposed ? kLoadTransposed : kLoadMatrices, kAllLanes, &operand);
}

void EmulateCopyAsync(void* shared, const void* global, int bytes) {
  const auto unaligned = [](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % AsyncCopies::kBytes != 0;
  };
  if (unaligned(shared) || unaligned(global)) {
    FailEmulation("cp.async of addresses that are not aligned to 16 bytes");
  }
  if (bytes < 0 || bytes > AsyncCopies::kBytes) {
    FailEmulation("cp.async of " + std::to_string(bytes) + " bytes");
  }
  CopiesOfThread().Issue(shared, global, bytes);
}
void EmulateCommitCopies() { CopiesOfThread().Commit(); }
void EmulateWaitForCopies(int groups) { CopiesOfThread().Wait(groups); }

}  // namespace fsdp
