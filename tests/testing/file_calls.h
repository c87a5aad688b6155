// The calls by which a program changes files, seen and made to fail: linking this library puts it
// before libc's open, openat, write, pwrite, fallocate, ftruncate, fsync, close, mkdir, rename,
// renameat2, unlink and rmdir.
#ifndef FSDP_TRAIN_TESTS_TESTING_FILE_CALLS_H_
#define FSDP_TRAIN_TESTS_TESTING_FILE_CALLS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fsdp::testing {

struct FileCall {
  enum class Kind { kOpen, kWrite, kResize, kSync, kClose, kMkdir, kRename, kExchange, kUnlink };
  Kind kind = Kind::kOpen;
  std::string path{}, to{};  // `to`: a rename's. Absolute; a descriptor's as it was opened.
  int fd = -1;
  bool creates = false, empties = false;  // An open.
  int64_t offset = 0;                     // A write's; -1: where the file ends.
  int64_t size = 0;                       // A resize: the least the file has then, bytes.
  std::string_view bytes{};
};
const char* NameOf(FileCall::Kind kind);

// The outcome of a call.
struct Answer {
  int error = 0;      // errno; 0: the call works. A call that fails does nothing.
  bool half = false;  // A write takes half of its bytes.
};

// While it lives, `answer` decides calls below `root` (an absolute path, without links), and `done`
// is told of those that have worked; both may be null. fsync never reaches the disk: no test cuts
// the power. Any thread; one watch at a time.
class FileWatch {
 public:
  FileWatch(std::string root, std::function<Answer(const FileCall&)> answer,
            std::function<void(const FileCall&)> done);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;
};

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TESTING_FILE_CALLS_H_
