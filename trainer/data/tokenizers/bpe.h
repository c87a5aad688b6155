// Byte pair encoding (Sennrich, Haddow, Birch 2016, arXiv:1508.07909) as tokenizer.json describes
// it. A word begins as a row of units. The pair with the lowest rank, the leftmost of equals, is
// merged into one unit, again and again, until no pair has a rank.
// Tests: tests/trainer/data/tokenizers/tokenizer_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_BPE_H_
#define FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_BPE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fsdp {

struct BpeOptions {
  // The text of each id. Under byte_level these are the bytes themselves.
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // In the order of their ranks.
  bool byte_level = false;                                  // Units are bytes, else characters.
  bool ignore_merges = false;  // A word of the vocabulary is its id, whatever merges would give.
  bool byte_fallback = false;  // A character without an id becomes <0xNN> for each of its bytes ...
  std::optional<std::string> unk;  // ... or this, or nothing where there is none.
  bool fuse_unk = false;           // One `unk` for neighbours.
};

class Bpe {
 public:
  // Throws std::invalid_argument("why") for a merge whose parts or result have no id, and for an
  // unk without one.
  explicit Bpe(const BpeOptions& options);

  // Working memory for one thread at a time; it remembers words.
  class Scratch {
   public:
    Scratch();

   private:
    friend class Bpe;
    struct Word {  // 64 bytes: a cache line.
      uint8_t bytes = 0, count = 0;
      std::array<char, 30> text;
      std::array<int32_t, 8> ids;
    };
    struct Unit {
      int32_t id, previous, next;
    };
    struct Candidate {
      uint32_t rank;
      int32_t at, id;
      bool operator>(const Candidate& o) const {
        return std::pair(rank, at) > std::pair(o.rank, o.at);
      }
    };
    std::vector<Word> words_;  // One entry a hash: its latest word.
    std::vector<Unit> units_;
    std::vector<Candidate> heap_;
    std::vector<int32_t> ids_;
    std::vector<uint32_t> ranks_;
  };

  // Appends the ids of non-empty `word`, well-formed UTF-8 unless byte_level.
  // O(n log n) for a word of n units.
  void Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

  // Appends the byte of `word` where each of its ids, as Encode() gives them, begins.
  void AppendBegins(std::string_view word, std::span<const int32_t> ids,
                    std::vector<size_t>& begins) const;

  std::optional<int32_t> Find(std::string_view token) const;

 private:
  struct Merge {
    uint64_t pair = kNone;
    uint32_t rank = 0;
    int32_t id = 0;
  };
  static constexpr uint64_t kNone = ~uint64_t{0};
  static uint64_t PairOf(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  const Merge* FindMerge(int32_t left, int32_t right) const;
  void Units(std::string_view word, std::vector<int32_t>& ids) const;
  size_t UnitBytes(std::string_view word) const;  // The word's first unit's.
  bool IsKnown(std::string_view unit) const;      // Whether it is not for `unk`.
  void MergeShort(Scratch& scratch) const;        // In scratch.ids_.
  void MergeLong(Scratch& scratch) const;

  BpeOptions options_;  // Without vocab and merges.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<int32_t> bytes_;         // By id: bytes of its text.
  std::vector<Merge> merges_;          // Open addressing, a power of two, at most half full.
  std::array<int32_t, 256> byte_ids_;  // Ids of single bytes or <0xNN>; -1: none.
  std::array<int32_t, 128> ascii_ids_;
  int32_t unk_ = -1;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_TOKENIZERS_BPE_H_
