#include "trainer/core/nearest.h"

#include <algorithm>
#include <cctype>

namespace fsdp {

namespace {

constexpr size_t kLongestWord = 100;  // No key is near to anything longer.

std::string Fold(std::string_view word) {
  std::string folded(word);
  for (char& c : folded) {
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return folded;
}

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int> before2(columns), before(columns), row(columns);
  for (size_t j = 0; j < columns; ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before2.swap(before);
    before.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j < columns; ++j) {
      const int substitute = before[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({before[j] + 1, row[j - 1] + 1, substitute});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before2[j - 2] + 1);
      }
    }
  }
  return row.back();
}

std::string NearestSpelling(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > kLongestWord) return "";
  const std::string folded = Fold(word);
  const int limit = std::max<int>(1, static_cast<int>(word.size()) / 3);
  std::string best;
  int least = limit + 1;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(candidate.size(), word.size());
    const size_t shorter = std::min(candidate.size(), word.size());
    if (longer - shorter >= static_cast<size_t>(least)) continue;  // The distance is at least that.
    const int distance = EditDistance(folded, Fold(candidate));
    // A word with every letter changed is not near: "x" is no misspelt "y".
    if (distance < least && distance < static_cast<int>(word.size())) {
      best = candidate;
      least = distance;
    }
  }
  return best;
}

std::string Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best = NearestSpelling(word, candidates);
  if (!best.empty() || word.size() > kLongestWord) return best;
  const std::string folded = Fold(word);
  for (const std::string& candidate : candidates) {
    const std::string known = Fold(candidate);
    const std::string& held = known.size() < folded.size() ? known : folded;
    const std::string& holder = known.size() < folded.size() ? folded : known;
    if (held.size() < 4 || holder.find(held) == std::string::npos) continue;
    if (best.empty() || candidate.size() < best.size()) best = candidate;
  }
  return best;
}

}  // namespace fsdp
