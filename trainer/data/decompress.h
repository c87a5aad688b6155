// Files that are compressed, as their names say: .gz (zlib) and .zst (libzstd).
// Tests: tests/trainer/data/data_files_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_DECOMPRESS_H_
#define FSDP_TRAIN_TRAINER_DATA_DECOMPRESS_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

namespace fsdp {

// `path` ends in .gz or .zst.
bool IsCompressed(const std::string& path);
// `path` without that end.
std::string WithoutCompression(const std::string& path);

// Bytes that grow. realloc(3) moves pages of large memory where a std::string copies them, and
// holds both: so no more than the bytes are resident.
class HeapBytes {
 public:
  const char* data() const { return bytes_.get(); }
  size_t size() const { return size_; }
  char* Room(size_t more);            // For so many bytes behind the last one.
  void Add(size_t n) { size_ += n; }  // They are written.
  void Trim() {
    if (size_ > 0) Resize(size_);
  }

 private:
  struct Free {
    void operator()(char* bytes) const { std::free(bytes); }  // NOLINT(cppcoreguidelines-no-malloc)
  };
  void Resize(size_t capacity);

  std::unique_ptr<char, Free> bytes_;
  size_t size_ = 0, capacity_ = 0;
};

// The contents of a compressed file, all members or frames of it, or their first `most` bytes; the
// rest is not read. Throws DataError that names the path: unreadable, in another format than its
// name says, damaged, cut off.
HeapBytes Decompress(const std::string& path, size_t most);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_DECOMPRESS_H_
