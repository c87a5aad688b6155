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

inline void LineBuffer::Append(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const bool ended = end != std::string_view::npos;
    std::string_view rest = ended ? bytes.substr(0, end) : bytes;
    bytes.remove_prefix(ended ? end + 1 : bytes.size());
    // A piece is cut off only when more follows it, so that no empty line comes after a full one.
    while (begun_.size() + rest.size() > max_line_) {
      const size_t take = max_line_ - begun_.size();
      begun_ += rest.substr(0, take);
      rest.remove_prefix(take);
      emit(begun_, false);
      begun_.clear();
    }
    begun_ += rest;
    if (ended) {
      emit(begun_, true);
      begun_.clear();
    }
  }
}

inline void LineBuffer::Flush(const Emit& emit) {
  if (!begun_.empty()) emit(begun_, false);
  begun_.clear();
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_LINE_BUFFER_H_
