// Checksums of a file in chunks, so that a rank can verify the byte ranges it reads without reading
// the rest. XXH64 with seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md): a damaged chunk
// passes with a probability of 2^-64, but it is no protection against an adversary.
// Tests: tests/trainer/checkpoint/manifest_test.cc
#ifndef FSDP_TRAIN_TRAINER_CHECKPOINT_CHUNK_CHECKSUM_H_
#define FSDP_TRAIN_TRAINER_CHECKPOINT_CHUNK_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

struct XXH64_state_s;

namespace fsdp {

uint64_t Checksum(std::span<const std::byte> bytes);
uint64_t Checksum(std::string_view bytes);

// The chunks of a file of `file_bytes`: a power of two from 1 MiB to 64 MiB, so that up to 1 TiB
// there are at most 2^14 of them.
int64_t ChunkBytes(int64_t file_bytes);

// Takes a file's bytes in order, in pieces of any size. Chunk i is bytes [i * chunk_bytes,
// (i + 1) * chunk_bytes); the last one ends with the file.
class ChunkChecksums {
 public:
  explicit ChunkChecksums(int64_t chunk_bytes);
  ~ChunkChecksums();

  void Update(std::span<const std::byte> bytes);
  std::vector<uint64_t> Finish();  // Once.

 private:
  void EndChunk();

  struct Free {
    void operator()(XXH64_state_s* state) const;
  };
  const int64_t chunk_bytes_;
  int64_t in_chunk_ = 0;  // Bytes of the open chunk so far.
  std::unique_ptr<XXH64_state_s, Free> state_;
  std::vector<uint64_t> checksums_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CHECKPOINT_CHUNK_CHECKSUM_H_
