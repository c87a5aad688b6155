#include "trainer/checkpoint/rank_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "trainer/checkpoint/finite.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"

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
                               const ShardPlace& place, const std::vector<std::string>& states)
    : layout_(layout) {
  std::vector<SafetensorsEntry> entries;
  file_.name = RankFileName(place.rank);
  for (const std::string& state : states) {
    for (size_t u = 0; u < layout.flat_parameters.size(); ++u) {
      const FlatParameter& flat = layout.flat_parameters[u];
      const Part part = PartOfReplica(flat.shard_size, place);
      if (part.count == 0 || !FlatHasState(flat, state)) continue;
      const int64_t begin = flat.ShardBegin(place.shard) + part.begin;
      slices_.push_back({state, static_cast<int>(u), begin, part.count});
      tensors_.push_back(state + "/" + flat.name + "/fp32");
      entries.push_back({tensors_.back(), SafetensorsType::kF32, {part.count}});
      file_.slices.push_back({state, flat.name, begin, part.count, /*at=*/0});
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

void RankFileWriter::Append(size_t index, std::span<const float> values) {
  const int64_t at = file_.slices[index].at;
  FSDP_CHECK(reached_ >= at) << "checksums need the order of the file";
  constexpr size_t kBlock = size_t{1} << 16;  // Elements: still in the cache when it is written.
  for (size_t done = 0; done < values.size(); done += kBlock) {
    const auto block = values.subspan(done, std::min(kBlock, values.size() - done));
    const std::span<const std::byte> bytes = std::as_bytes(block);
    checksums_->Update(bytes);
    if (const auto wrong = FirstNotFinite(block); wrong && not_finite_.empty()) {
      const Slice& slice = slices_[index];
      const int64_t element = slice.begin + (reached_ - at) / static_cast<int64_t>(sizeof(float)) +
                              static_cast<int64_t>(*wrong);
      not_finite_ = DescribeNotFinite(slice.state, layout_.flat_parameters[slice.flat], element,
                                      block[*wrong]);
    }
    writer_->WriteBytes(tensors_[index], reached_ - at, bytes);
    reached_ += static_cast<int64_t>(bytes.size());
  }
}

ManifestFile RankFileWriter::Finish() {
  writer_->Finish();
  file_.chunks = checksums_->Finish();
  ReadBack();
  return std::move(file_);
}

void RankFileWriter::ReadBack() const {
  const std::string& path = writer_->path();
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) throw CheckpointError(path + ": cannot be read back: " + std::strerror(errno));
  ChunkChecksums checksums(file_.chunk_bytes);
  std::vector<std::byte> block(size_t{1} << 15);  // Small: the plan knows of no more.
  int64_t at = 0;
  for (;;) {
    const ssize_t n = ::pread(fd.get(), block.data(), block.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw CheckpointError(path + ": cannot be read back: " + std::strerror(errno));
    if (n == 0) break;
    checksums.Update(std::span(block).first(static_cast<size_t>(n)));
    at += n;
  }
  if (at != file_.bytes) {
    throw CheckpointError(path + ": reads back as " + std::to_string(at) + " bytes, " +
                          std::to_string(file_.bytes) + " were written");
  }
  const std::vector<uint64_t> chunks = checksums.Finish();
  const auto [wrong, want] = std::mismatch(chunks.begin(), chunks.end(), file_.chunks.begin());
  if (wrong == chunks.end()) return;
  const int64_t begin = (wrong - chunks.begin()) * file_.chunk_bytes;
  throw CheckpointError(path + ": bytes " + std::to_string(begin) + " to " +
                        std::to_string(std::min(begin + file_.chunk_bytes, file_.bytes)) +
                        " do not read back as they were written");
}

}  // namespace fsdp
