#include "trainer/data/decompress.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/paths.h"
#include "trainer/core/unique_fd.h"
#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

constexpr size_t kChunk = 1 << 20;  // Bytes of contents that are made at a time.

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw DataError("data: " + PrintableName(path) + ": " + what);
}

[[noreturn]] void FailToRead(const std::string& path) {
  Fail(path, std::string("cannot be read: ") + std::strerror(errno));
}

[[noreturn]] void FailAsStored(const std::string& path, const std::string& format) {
  Fail(path, "is not in " + format + " format: rename it: mv -n " + ShellWord(path) + " " +
                 ShellWord(WithoutCompression(path)));
}

HeapBytes Gunzip(const std::string& path, size_t most) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(::gzopen(path.c_str(), "rbe"), ::gzclose);
  if (!file) FailToRead(path);
  ::gzbuffer(file.get(), 1 << 17);
  HeapBytes out;
  while (out.size() < most) {
    const size_t wanted = std::min(kChunk, most - out.size());
    const int n = ::gzread(file.get(), out.Room(wanted), static_cast<unsigned>(wanted));
    // zlib hands a file that is no gzip through as it is, and reports a cut-off one at its end.
    if (::gzdirect(file.get())) FailAsStored(path, "gzip");
    int error = Z_OK;
    const char* message = ::gzerror(file.get(), &error);
    if (n < 0 || error != Z_OK) Fail(path, std::string("is damaged or cut off: ") + message);
    out.Add(static_cast<size_t>(n));
    if (n == 0) break;
  }
  return out;
}

HeapBytes Unzstd(const std::string& path, size_t most) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open()) FailToRead(path);
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(::ZSTD_createDCtx(),
                                                                   ::ZSTD_freeDCtx);
  if (!context) throw std::bad_alloc();
  // As of `zstd --long=31`. The memory for it is taken where a frame needs it.
  ::ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, sizeof(void*) == 8 ? 31 : 30);
  std::vector<char> buffer(::ZSTD_DStreamInSize());
  ZSTD_inBuffer in{buffer.data(), 0, 0};
  HeapBytes out;
  bool begun = false, in_frame = false, at_end = false, full = false;
  while (out.size() < most) {
    // Output that fills its room may not be all that the bytes read so far give.
    if (in.pos == in.size && !full) {
      const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) FailToRead(path);
      at_end = n == 0;
      if (at_end) break;
      in.size = static_cast<size_t>(n);
      in.pos = 0;
    }
    const size_t wanted = std::min(kChunk, most - out.size());
    ZSTD_outBuffer to{out.Room(wanted), wanted, 0};
    const size_t left = ::ZSTD_decompressStream(context.get(), &to, &in);
    out.Add(to.pos);
    if (!begun && ::ZSTD_getErrorCode(left) == ZSTD_error_prefix_unknown) {
      FailAsStored(path, "Zstandard");
    }
    if (::ZSTD_isError(left)) {
      Fail(path, std::string("is damaged: ") + ::ZSTD_getErrorName(left));
    }
    begun = true;
    in_frame = left != 0;
    full = in_frame && to.pos == wanted;
  }
  if (at_end && in_frame) Fail(path, "is damaged or cut off: it ends inside a frame");
  return out;
}

}  // namespace

bool IsCompressed(const std::string& path) {
  return path.ends_with(".gz") || path.ends_with(".zst");
}

std::string WithoutCompression(const std::string& path) {
  return IsCompressed(path) ? path.substr(0, path.rfind('.')) : path;
}

char* HeapBytes::Room(size_t more) {
  if (capacity_ - size_ < more) Resize(std::max(size_ + more, capacity_ + capacity_ / 2));
  return bytes_.get() + size_;
}

void HeapBytes::Resize(size_t capacity) {
  void* const moved = std::realloc(bytes_.get(), capacity);
  if (moved == nullptr) throw std::bad_alloc();
  (void)bytes_.release();
  bytes_.reset(static_cast<char*>(moved));
  capacity_ = capacity;
}

HeapBytes Decompress(const std::string& path, size_t most) {
  HeapBytes out = path.ends_with(".gz") ? Gunzip(path, most) : Unzstd(path, most);
  out.Trim();
  return out;
}

}  // namespace fsdp
