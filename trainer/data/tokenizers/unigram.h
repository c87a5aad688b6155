// Unigram language models (Kudo 2018, arXiv:1804.10959) as tokenizer.json describes them: of all
// ways to cut a word into pieces, the one with the highest sum of scores.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_UNIGRAM_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_UNIGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

struct UnigramOptions {
  std::vector<std::pair<std::string, double>> vocab;  // Pieces and scores, by id. Not empty.
  int32_t unk = 0;             // For a character that no piece has; neighbours become one.
  bool byte_fallback = false;  // Such characters become <0xNN> for each byte, where all have ids.
};

class Unigram {
 public:
  explicit Unigram(const UnigramOptions& options);

  // Working memory for one thread at a time.
  class Scratch {
    friend class Unigram;
    struct Best {  // The best way up to a byte: its last piece.
      double score;
      int64_t start;  // Negative: none ends here.
      int32_t id;
    };
    struct Piece {
      size_t begin, end;
      int32_t id;
    };
    std::vector<Best> best_;
    std::vector<Piece> pieces_;
  };

  // Appends the ids of well-formed `word`, and the byte where each begins unless `begins` is null:
  // ids of the bytes of a piece all begin where it does. As `tokenizers` does: sums are float64,
  // and of two ways that are worth the same, the one whose last piece begins first.
  void Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out,
              std::vector<size_t>* begins) const;

 private:
  struct Edge {
    uint64_t key = ~uint64_t{0};  // The node it leaves, and its byte.
    int32_t node = 0;
  };
  int32_t Next(int32_t node, char byte) const;  // Negative: there is none.
  int32_t Find(std::string_view piece) const;   // Negative: it has no id.

  std::vector<Edge> edges_;     // Open addressing, a power of two, at most half full.
  std::vector<int32_t> ids_;    // By node; negative: no piece ends here.
  std::vector<double> scores_;  // By id.
  double unk_score_ = 0;
  int32_t unk_;
  std::vector<int32_t> byte_ids_;  // Empty without byte_fallback; negative: no such piece.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_UNIGRAM_H_
