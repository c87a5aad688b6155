#include "trainer/core/line_buffer.h"

#include <algorithm>

namespace fsdp {

void LineBuffer::Append(std::string_view bytes, const Emit& emit) {
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

void LineBuffer::Flush(const Emit& emit) {
  if (!begun_.empty()) emit(begun_, false);
  begun_.clear();
}

}  // namespace fsdp
