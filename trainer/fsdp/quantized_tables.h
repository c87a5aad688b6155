// Tables by which a rank packs and unpacks flat parameters that travel in blocks that share a
// scale.
// Tests: tests/trainer/engine/quantized_reduce_test.cc
#ifndef FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_TABLES_H_
#define FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_TABLES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/comm/mesh.h"
#include "trainer/fsdp/layout.h"
#include "trainer/fsdp/memory_plan.h"
#include "trainer/fsdp/options.h"
#include "trainer/fsdp/storage.h"
#include "trainer/ops/quantized_layout.h"
#include "trainer/runtime/stream.h"

namespace fsdp {

// A flat parameter's tables; empty for data that does not travel so.
struct QuantizedTables {
  // QuantizedGather (quantized_collectives.h).
  struct Gather {
    QuantizedTable own, all;
  };
  Gather gather;

  // QuantizedReduce: the data quantised in each hop, and the data that arrives from each rank.
  struct Hop {
    Group group = Group::kInside;
    QuantizedTable sent, arrived;
  };
  std::vector<Hop> hops;

  // Between copies: QuantizedReplicas.
  struct Replicas {
    QuantizedTable shard, own;
    int64_t begin = 0;
  };
  std::optional<Replicas> replicas;
};

// By flat parameter. The tables lie in persistent memory of the allocator and are written on the
// stream.
std::vector<QuantizedTables> MakeQuantizedTables(PhasedAllocator& allocator, Stream& stream,
                                                 const Layout& layout, const Storage& storage,
                                                 const Mesh& mesh,
                                                 const FsdpOptions::Quantize& quantize);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_FSDP_QUANTIZED_TABLES_H_
