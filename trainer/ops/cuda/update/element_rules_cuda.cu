#include <algorithm>

#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/update_backends.h"

namespace fsdp {
namespace {

// Rules are passed as arguments, so no memory of the host has to outlive the call, and nobody waits
// for a copy from it. A launch takes 4096 bytes of them.
struct Piece {
  ElementRule rules[kRulesOfLaunch];
};
static_assert(sizeof(Piece) <= 4000);

__global__ void WriteRulesKernel(const Piece piece, int count, ElementRule* table) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) table[i] = piece.rules[i];
}

}  // namespace

void WriteRulesCuda(CudaStreamHandle stream, const std::vector<ElementRule>& rules,
                    const View& table) {
  for (size_t at = 0; at < rules.size(); at += kRulesOfLaunch) {
    const size_t count = std::min<size_t>(kRulesOfLaunch, rules.size() - at);
    Piece piece;
    std::copy_n(rules.begin() + at, count, piece.rules);
    Launch<WriteRulesKernel>(stream, 1, kRulesOfLaunch, 0, piece, static_cast<int>(count),
                             table.As<ElementRule>() + at);
  }
}

}  // namespace fsdp
