#include "trainer/checkpoint/rank_file.h"

#include <algorithm>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

// The part of a shard that a replica writes: whole multiples of the alignment, as equal as can be.
struct Part {
  int64_t begin, count;
};
Part PartOfReplica(int64_t shard_size, const ShardPlace& place) {
  const int64_t blocks = shard_size / kShardAlignment;
  const auto edge = [&](int64_t replica) {
    return blocks * replica / place.replicas * kShardAlignment;
  };
  return {edge(place.replica), edge(place.replica + 1) - edge(place.replica)};
}

}  // namespace

ShardPlace PlaceOfRank(int rank, int world, int shards) {
  return {rank, world, rank % shards, rank / shards, world / shards};
}

RankFileWriter::RankFileWriter(const std::string& directory, const Layout& layout,
                               const ShardPlace& place, const std::vector<std::string>& states) {
  std::vector<SafetensorsEntry> entries;
  file_.name = RankFileName(place.rank);
  for (const std::string& state : states) {
    for (size_t u = 0; u < layout.units.size(); ++u) {
      const UnitLayout& unit = layout.units[u];
      const Part part = PartOfReplica(unit.shard_size, place);
      if (part.count == 0 || !UnitHasState(unit, state)) continue;
      const int64_t begin = unit.ShardBegin(place.shard) + part.begin;
      slices_.push_back({state, static_cast<int>(u), begin, part.count});
      tensors_.push_back(state + "/" + unit.name + "/fp32");
      entries.push_back({tensors_.back(), SafetensorsType::kF32, {part.count}});
      file_.slices.push_back({state, unit.name, begin, part.count, /*at=*/0});
    }
  }
  writer_.emplace(directory + "/" + file_.name, entries);
  file_.bytes = writer_->file_bytes();
  file_.chunk_bytes = ChunkBytes(file_.bytes);
  checksums_.emplace(file_.chunk_bytes);
  checksums_->Update(std::as_bytes(std::span(writer_->header())));
  for (size_t i = 0; i < slices_.size(); ++i) file_.slices[i].at = writer_->Info(tensors_[i]).begin;
  reached_ = static_cast<int64_t>(writer_->header().size());
}

void RankFileWriter::Append(size_t index, std::span<const std::byte> bytes) {
  const int64_t at = file_.slices[index].at;
  FSDP_CHECK(reached_ >= at) << "checksums need the order of the file";
  constexpr size_t kBlock = size_t{1} << 18;  // Bytes: still in the cache when it is written.
  for (size_t done = 0; done < bytes.size(); done += kBlock) {
    const auto block = bytes.subspan(done, std::min(kBlock, bytes.size() - done));
    checksums_->Update(block);
    writer_->WriteBytes(tensors_[index], reached_ - at, block);
    reached_ += static_cast<int64_t>(block.size());
  }
}

ManifestFile RankFileWriter::Finish() {
  writer_->Finish();
  file_.chunks = checksums_->Finish();
  return std::move(file_);
}

}  // namespace fsdp
