#include "trainer/data/tokenizers/added_tokens.h"

#include <utility>

#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {

void AddedTokens::Add(AddedToken token, std::string_view as_found) {
  if (as_found.empty()) return;
  starts_[static_cast<unsigned char>(as_found[0])] = true;
  size_t at = 0;
  for (const char c : as_found) {
    const auto found = nodes_[at].next.find(c);
    if (found != nodes_[at].next.end()) {
      at = found->second;
      continue;
    }
    nodes_[at].next.emplace(c, nodes_.size());
    at = nodes_.size();
    nodes_.emplace_back();
  }
  nodes_[at].token = std::ssize(tokens_);
  tokens_.push_back(std::move(token));
}

std::optional<AddedTokens::Found> AddedTokens::Find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Found> best;
    size_t at = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto found = nodes_[at].next.find(text[i]);
      if (found == nodes_[at].next.end()) break;
      at = found->second;
      if (nodes_[at].token >= 0) best = {begin, i + 1, static_cast<size_t>(nodes_[at].token)};
    }
    if (best) return best;
  }
  return std::nullopt;
}

bool AddedTokens::BesideAWord(std::string_view input, const Found& found) {
  const std::string_view before = input.substr(0, found.begin), behind = input.substr(found.end);
  return (!before.empty() && IsWordCharacter(LastCodePoint(before).value)) ||
         (!behind.empty() && IsWordCharacter(FirstCodePoint(behind).value));
}

AddedTokens::Range AddedTokens::WithSpaces(std::string_view input, const Found& found,
                                           size_t done) const {
  const AddedToken& token = tokens_[found.token];
  Range range{found.begin, found.end};
  while (token.lstrip && range.begin > done) {
    const CodePoint c = LastCodePoint(input.substr(done, range.begin - done));
    if (!IsWhiteSpace(c.value)) break;
    range.begin -= c.bytes;
  }
  while (token.rstrip && range.end < input.size()) {
    const CodePoint c = FirstCodePoint(input.substr(range.end));
    if (!IsWhiteSpace(c.value)) break;
    range.end += c.bytes;
  }
  return range;
}

}  // namespace fsdp
