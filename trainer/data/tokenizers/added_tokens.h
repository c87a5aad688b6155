// The tokens that a tokenizer.json finds in a text before its model sees it: special tokens and
// those added by hand.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_ADDED_TOKENS_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_ADDED_TOKENS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;             // Not found beside a letter.
  bool lstrip = false, rstrip = false;  // Takes the white space before or behind it.
};

class AddedTokens {
 public:
  // `as_found`: the text to look for, the content or its normalised form. An empty text is not
  // looked for.
  void Add(AddedToken token, std::string_view as_found);

  // Calls text(begin, end) and token(begin, end, id) for the parts of well-formed `input`, in
  // order, until one returns false. Finds the leftmost token, and the longest of several there, as
  // AddedVocabulary::find_matches of Hugging Face's library does.
  template <typename OnText, typename OnToken>
  bool Split(std::string_view input, const OnText& text, const OnToken& token) const {
    size_t done = 0, from = 0;
    while (const std::optional<Found> found = Find(input, from)) {
      from = found->end;
      const AddedToken& added = tokens_[found->token];
      if (added.single_word && BesideAWord(input, *found)) continue;
      const auto [begin, end] = WithSpaces(input, *found, done);
      if (done < begin && !text(done, begin)) return false;
      if (!token(begin, end, added.id)) return false;
      done = end;
      from = std::max(from, end);
    }
    return done == input.size() || text(done, input.size());
  }

 private:
  struct Found {
    size_t begin, end, token;
  };
  struct Node {  // A node of a trie over bytes.
    std::map<char, size_t> next;
    int64_t token = -1;
  };

  std::optional<Found> Find(std::string_view text, size_t from) const;
  static bool BesideAWord(std::string_view input, const Found& found);
  // Includes the token's white space, but none before `done`.
  struct Range {
    size_t begin, end;
  };
  Range WithSpaces(std::string_view input, const Found& found, size_t done) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> starts_{};
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_ADDED_TOKENS_H_
