#include "trainer/fsdp/try_collectives.h"

#include <algorithm>
#include <set>

#include "trainer/fsdp/executor_memory.h"
#include "trainer/fsdp/factor_layout.h"
#include "trainer/fsdp/matrix_layout.h"
#include "trainer/fsdp/model_buffers.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/fsdp/quantized_collectives.h"
#include "trainer/fsdp/table_route.h"
#include "trainer/nn/model.h"

namespace fsdp {
namespace {

void Add(const Communicator::Size& size, std::vector<Communicator::Size>& sizes) {
  for (Communicator::Size& s : sizes) {
    if (s.kind != size.kind || s.dtype != size.dtype || s.result != size.result) continue;
    s.n = std::max(s.n, size.n);
    return;
  }
  sizes.push_back(size);
}

// The calls that reduce a flat parameter's gradient in blocks that share a scale.
template <typename AddSize>
void AddQuantized(const FlatParameter& flat, const FsdpOptions::Quantize& quantize,
                  const Mesh& mesh, const AddSize& add) {
  // Bytes that a hop sends to each rank: of all shards, then of those of one rank of a host.
  int64_t bytes = QuantizedReduceBytes(flat, quantize);
  for (const Group hop : {Group::kInside, Group::kAcross}) {
    const int ranks = mesh.SizeOf(hop);
    bytes /= ranks;
    if (ranks > 1) add(hop, Collective::kAllToAll, DType::kUInt8, DType::kUInt8, bytes);
  }
  const int replicas = mesh.replicate_size();
  if (replicas == 1) return;
  const int64_t part = QuantizedReplicaBytes(flat, replicas, quantize) / replicas;
  for (const Collective kind : {Collective::kAllToAll, Collective::kAllGather}) {
    add(Group::kReplicate, kind, DType::kUInt8, DType::kUInt8, part);
  }
}

// Elements of the largest sum of statistics over `world` ranks; 0: there is none. A step ends with
// a sum of all running ones, and of its scalars. Batch norms over all ranks sum the parts of ranks
// (ops/batch_norm.h): a norm has as many channels as its running mean has elements.
int64_t LargestSumOfStatistics(const Model& model, const ExecutorOptions& options, int world) {
  const int64_t running = ModelBuffers(model).summed();
  if (world == 1 || running == 0) return 0;
  int64_t largest = running + kFound + 1;
  for (const ModelSegment& segment : model.segments()) {
    if (!options.batch_norm_sync || options.fake_reduce || segment.batch_norms == 0) continue;
    for (const ModelBuffer* buffer : segment.buffers) {
      largest = std::max(largest, world * (1 + 2 * buffer->shape().NumElements()));
    }
  }
  return largest;
}

// Every layout once: ranks connect in pairs, and a layout says which of them have something for
// each other.
void TryExchanges(Device& device, const MatrixLayout& matrices, int64_t units, DType dtype,
                  Communicator& world) {
  std::set<uint64_t> tried;
  for (int u = 0; u < units; ++u) {
    for (const ExchangeLayout& layout : {matrices.ToOwners(u), matrices.FromOwners(u)}) {
      if (layout.total() == 0 || !tried.insert(layout.hash()).second) continue;
      world.Try(device, {{Collective::kAllToAll, dtype, dtype, 0, &layout}});
    }
  }
}

}  // namespace

Collectives LargestCollectives(const Layout& layout, const ExecutorOptions& options,
                               const Mesh& mesh) {
  Collectives largest;
  const auto add = [&](Group group, Collective kind, DType dtype, DType result, int64_t n) {
    Add({kind, dtype, result, n}, largest[group]);
  };
  const bool sharded = layout.shards > 1;
  for (const FlatParameter& flat : layout.flat_parameters) {
    if (flat.size == 0) continue;
    const DType compute = flat.dtypes.compute, reduce = flat.dtypes.reduce;
    if (sharded && !options.fake_all_gather) {
      const int64_t bytes = QuantizedBytes(flat, options.quantize);
      if (bytes == 0) {
        add(Group::kGather, Collective::kAllGather, compute, compute, flat.shard_size);
      } else {
        add(Group::kGather, Collective::kAllGather, DType::kUInt8, DType::kUInt8,
            bytes / layout.shards);
      }
      if (mesh.secondary_size() > 1) {
        add(Group::kSecondary, Collective::kAllGather, compute, compute,
            flat.size / mesh.secondary_size());
      }
    }
    if (flat.frozen || options.fake_reduce) continue;
    if (ReducesQuantized(flat, options.quantize)) {
      AddQuantized(flat, options.quantize, mesh, add);
      continue;
    }
    if (sharded) {  // Shards of gradients are fp32, however they travel.
      add(Group::kReduce, Collective::kReduceScatter, reduce, DType::kFloat32, flat.shard_size);
    }
    if (mesh.replicate_size() > 1) {
      add(Group::kReplicate, Collective::kAllReduce, reduce, reduce, flat.shard_size);
    }
  }
  return largest;
}

Collectives CollectivesOf(const Model& model, const ExecutorOptions& options, const Mesh& mesh) {
  const Layout layout = LayoutFor(options, model, mesh.shard_size());
  Collectives largest = LargestCollectives(layout, options, mesh);
  if (mesh.world_size() == 1) return largest;
  std::vector<Communicator::Size>& sizes = largest[Group::kWorld];
  const auto add = [&](Collective kind, DType dtype, int64_t n) {
    Add({kind, dtype, dtype, n}, sizes);
  };
  add(Collective::kAllReduce, DType::kFloat32, kFound + 1);  // Scalars.
  if (const auto tables = model.tables(); !tables.empty()) {
    const TableLayout of_tables =
        MakeTableLayout(tables, mesh.world_size(), options.micro_batch_size, options.micro_batches);
    const int64_t rows = of_tables.round_rows(), elements = rows * of_tables.width();
    add(Collective::kAllGather, DType::kInt32, 1);
    add(Collective::kAllToAll, DType::kInt64, rows);
    add(Collective::kAllToAll, of_tables.dtype(), elements);
    add(Collective::kAllToAll, DType::kFloat32, elements);
  }
  if (const int64_t sum = LargestSumOfStatistics(model, options, mesh.world_size()); sum > 0) {
    add(Collective::kAllReduce, DType::kFloat32, sum);
  }
  if (options.factored) {
    add(Collective::kAllReduce, DType::kFloat32, FactorLayout(model, layout).FirstSum());
  } else if (options.whole) {
    add(Collective::kAllToAll, DType::kFloat32, 0);
  }
  return largest;
}

void TryCollectives(Device& device, const Model& model, const ExecutorOptions& options,
                    const MeshCommunicators& communicators, std::optional<DType> matrix_dtype) {
  const Mesh& mesh = communicators.mesh();
  const Collectives largest = CollectivesOf(model, options, mesh);
  for (Communicator* const communicator : communicators.all()) {
    std::vector<Communicator::Size> sizes;
    for (const auto& [group, of_group] : largest) {
      if (communicators.Over(group) != communicator) continue;
      for (const Communicator::Size& size : of_group) {
        if (size.n > 0) Add(size, sizes);
      }
    }
    communicator->Try(device, sizes);
  }
  if (options.whole && !options.factored && mesh.world_size() > 1) {
    const Layout layout = LayoutFor(options, model, mesh.shard_size());
    TryExchanges(device, MatrixLayout(model, layout, mesh.world_size()), std::ssize(layout.units),
                 MatrixDType(layout, matrix_dtype), *communicators.Over(Group::kWorld));
  }
}

}  // namespace fsdp
