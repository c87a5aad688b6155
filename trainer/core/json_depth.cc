#include "trainer/core/json_depth.h"

#include <algorithm>
#include <cstddef>

namespace fsdp {

bool NestsDeeper(std::string_view text, int levels) {
  // '[' and '{' differ in this bit. Few texts have so many that the slow look is needed.
  const auto opening = [](char c) { return (c | 0x20) == '{'; };
  if (std::count_if(text.begin(), text.end(), opening) <= levels) return false;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > levels) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace fsdp
