#include "trainer/checkpoint/chunk_checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <new>
#include <utility>

namespace fsdp {

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH64(bytes.data(), bytes.size(), /*seed=*/0);
}

uint64_t Checksum(std::string_view bytes) { return Checksum(std::as_bytes(std::span(bytes))); }

int64_t ChunkBytes(int64_t file_bytes) {
  constexpr int64_t kSmallest = int64_t{1} << 20, kLargest = int64_t{1} << 26;
  int64_t bytes = kSmallest;
  while (bytes < kLargest && file_bytes / bytes >= int64_t{1} << 14) bytes *= 2;
  return bytes;
}

ChunkChecksums::ChunkChecksums(int64_t chunk_bytes)
    : chunk_bytes_(chunk_bytes), state_(XXH64_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH64_reset(state_.get(), 0);
}

ChunkChecksums::~ChunkChecksums() = default;

void ChunkChecksums::Free::operator()(XXH64_state_s* state) const { XXH64_freeState(state); }

void ChunkChecksums::Update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto room = static_cast<size_t>(chunk_bytes_ - in_chunk_);
    const auto part = bytes.first(std::min(bytes.size(), room));
    XXH64_update(state_.get(), part.data(), part.size());
    in_chunk_ += static_cast<int64_t>(part.size());
    if (in_chunk_ == chunk_bytes_) EndChunk();
    bytes = bytes.subspan(part.size());
  }
}

std::vector<uint64_t> ChunkChecksums::Finish() {
  if (in_chunk_ > 0) EndChunk();
  return std::move(checksums_);
}

void ChunkChecksums::EndChunk() {
  checksums_.push_back(XXH64_digest(state_.get()));
  XXH64_reset(state_.get(), 0);
  in_chunk_ = 0;
}

}  // namespace fsdp
