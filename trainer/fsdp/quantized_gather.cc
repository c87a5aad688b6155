#include "trainer/fsdp/quantized_gather.h"

#include <utility>
#include <vector>

#include "trainer/fsdp/quantized_pieces.h"

namespace fsdp {
namespace {

using Gather = FsdpOptions::Quantize::Gather;

std::vector<QuantizedPiece> PiecesOf(const FlatParameter& flat, int shard, int64_t min_size) {
  const int64_t begin = flat.ShardBegin(shard);
  return QuantizedPieces(flat, begin, begin + flat.shard_size, min_size);
}

QuantizedOptions OptionsOf(const FlatParameter& flat, const FsdpOptions::Quantize& quantize) {
  return {quantize.gather == Gather::kInt8 ? QuantizedForm::kInt8 : QuantizedForm::kFp8,
          static_cast<int>(quantize.block), flat.dtypes.compute};
}

QuantizedLayout LayOutAll(const FlatParameter& flat, const FsdpOptions::Quantize& quantize) {
  std::vector<std::vector<QuantizedPiece>> shards;
  for (int64_t s = 0; s * flat.shard_size < flat.size; ++s) {
    shards.push_back(PiecesOf(flat, static_cast<int>(s), quantize.min_size));
  }
  return LayOutQuantizedShards(shards, flat.shard_size, OptionsOf(flat, quantize));
}

}  // namespace

QuantizedGather LayOutGather(const FlatParameter& flat, int shard,
                             const FsdpOptions::Quantize& quantize) {
  QuantizedLayout all = LayOutAll(flat, quantize);
  const int64_t stride = all.sizes.bytes / (flat.size / flat.shard_size);
  return {LayOutQuantized(PiecesOf(flat, shard, quantize.min_size), flat.shard_size,
                          OptionsOf(flat, quantize), stride),
          std::move(all)};
}

int64_t QuantizedBytes(const FlatParameter& flat, const FsdpOptions::Quantize& quantize) {
  if (!flat.dtypes.quantized || quantize.gather == Gather::kNone) return 0;
  const QuantizedSizes sizes = LayOutAll(flat, quantize).sizes;
  return sizes.quantized > 0 ? sizes.bytes : 0;
}

}  // namespace fsdp
