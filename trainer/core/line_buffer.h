// Bytes as they come out of a pipe, put back together into lines.
#ifndef FSDP_TRAIN_TRAINER_CORE_LINE_BUFFER_H_
#define FSDP_TRAIN_TRAINER_CORE_LINE_BUFFER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace fsdp {

// Holds at most one line of at most `max_line` bytes: a longer one comes out in pieces of that
// size. Any byte may be in a line; only '\n' ends one. Not thread-safe.
class LineBuffer {
 public:
  // `text` without its '\n', valid during the call. ended: a '\n' followed; otherwise the line goes
  // on in the next piece, or nothing more came.
  using Emit = std::function<void(std::string_view text, bool ended)>;

  explicit LineBuffer(size_t max_line = 64 << 10) : max_line_(max_line) {}

  void Append(std::string_view bytes, const Emit& emit);
  void Flush(const Emit& emit);  // Emits the line that was begun, if one was.

 private:
  size_t max_line_;
  std::string begun_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_LINE_BUFFER_H_
