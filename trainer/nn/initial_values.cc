#include "trainer/nn/initial_values.h"

#include <algorithm>
#include <string>

#include "trainer/core/philox.h"

namespace fsdp {
namespace {

// Elements from `begin` on of what has this name.
void Draw(const Init& init, const std::string& name, uint64_t seed, int64_t begin,
          std::span<float> values) {
  if (init.stddev == 0) {
    std::fill(values.begin(), values.end(), init.constant);
    return;
  }
  const RandomStream random(seed, name);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = init.constant + init.stddev * random.Normal(begin + static_cast<int64_t>(i));
  }
}

}  // namespace

void FillInitial(const Parameter& parameter, uint64_t seed, int64_t begin,
                 std::span<float> values) {
  for (const SlicePiece& piece :
       SlicePieces(parameter, begin, static_cast<int64_t>(values.size()))) {
    Draw(piece.slice->init, piece.slice->name, seed, piece.begin,
         values.subspan(piece.at, piece.count));
  }
}

void FillInitial(const EmbeddingTable& table, uint64_t seed, int64_t begin,
                 std::span<float> values) {
  Draw(table.init, table.name, seed, begin, values);
}

}  // namespace fsdp
