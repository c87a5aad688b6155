#include "trainer/fsdp/quantized_tables.h"

#include <cstdint>

#include "trainer/fsdp/quantized_collectives.h"
#include "trainer/fsdp/unit_memory.h"

namespace fsdp {
namespace {

class Writer {
 public:
  Writer(PhasedAllocator& allocator, Stream& stream) : allocator_(allocator), stream_(stream) {}

  // `shards`: that it is of, or parts of them. Ranks differ in rows, and not in memory.
  QuantizedTable Write(const QuantizedLayout& layout, const FlatParameter& flat, int shards) {
    // Pieces have gaps before and padding behind them.
    const size_t most = shards * (2 * flat.parameters.size() + 2);
    const View rows = NewBytes(allocator_, QuantizedRowsShape(most)[0], MemoryKind::kActivations)
                          .Slice(0, QuantizedRowsShape(layout.rows.size())[0]);
    WriteQuantizedRows(stream_, layout.rows, rows);
    return {layout.sizes, rows};
  }
  // The same on all ranks.
  QuantizedTable Write(const QuantizedLayout& layout) {
    const View rows =
        NewBytes(allocator_, QuantizedRowsShape(layout.rows.size())[0], MemoryKind::kActivations);
    WriteQuantizedRows(stream_, layout.rows, rows);
    return {layout.sizes, rows};
  }

 private:
  PhasedAllocator& allocator_;
  Stream& stream_;
};

std::vector<QuantizedTables::Hop> HopsOf(Writer& writer, const FlatParameter& flat,
                                         const Mesh& mesh, const FsdpOptions::Quantize& quantize) {
  const int hosts = mesh.SizeOf(Group::kAcross);
  const QuantizedReduce reduce =
      LayOutReduce(flat, mesh.coordinate().shard, mesh.inside_size(), quantize);
  const QuantizedTable sent = writer.Write(reduce.sent);
  const QuantizedTable own = writer.Write(reduce.own, flat, 1);
  if (hosts == 1) return {{Group::kInside, sent, own}};
  if (mesh.inside_size() == 1) return {{Group::kAcross, sent, own}};
  const QuantizedTable inside = writer.Write(reduce.inside, flat, hosts);
  return {{Group::kInside, sent, inside}, {Group::kAcross, inside, own}};
}

}  // namespace

std::vector<QuantizedTables> MakeQuantizedTables(PhasedAllocator& allocator, Stream& stream,
                                                 const Layout& layout, const Storage& storage,
                                                 const Mesh& mesh,
                                                 const FsdpOptions::Quantize& quantize) {
  Writer writer(allocator, stream);
  std::vector<QuantizedTables> tables(layout.flat_parameters.size());
  const auto [replica, shard] = mesh.coordinate();
  for (int f = 0; f < static_cast<int>(tables.size()); ++f) {
    const FlatParameter& flat = layout.flat_parameters[f];
    if (storage.At(Resource::kGatherWire, f).form.code == kQuantizedCode) {
      const auto [own, all] = LayOutGather(flat, shard, quantize);
      tables[f].gather = {writer.Write(own, flat, 1), writer.Write(all)};
    }
    if (storage.At(Resource::kWire, f).form.code == kQuantizedCode) {
      tables[f].hops = HopsOf(writer, flat, mesh, quantize);
    }
    if (storage.At(Resource::kReplicaWire, f).form.code == kQuantizedCode) {
      const int replicas = mesh.replicate_size();
      const QuantizedReplicas parts = LayOutReplicas(flat, shard, replica, replicas, quantize);
      tables[f].replicas = QuantizedTables::Replicas{writer.Write(parts.shard, flat, replicas),
                                                     writer.Write(parts.own, flat, 1), parts.begin};
    }
  }
  return tables;
}

}  // namespace fsdp
