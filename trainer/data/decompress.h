// Files that are compressed, as their names say: .gz (zlib) and .zst (libzstd).
// Tests: tests/trainer/data/data_files_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_DECOMPRESS_H_
#define FSDP_TRAIN_TRAINER_DATA_DECOMPRESS_H_

#include <cstddef>
#include <string>

namespace fsdp {

// `path` ends in .gz or .zst.
bool IsCompressed(const std::string& path);
// `path` without that end.
std::string WithoutCompression(const std::string& path);

// The contents of a compressed file, all members or frames of it, or their first `most` bytes; the
// rest is not read. Throws DataError that names the path: unreadable, in another format than its
// name says, damaged, cut off.
std::string Decompress(const std::string& path, size_t most = std::string::npos);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_DECOMPRESS_H_
