#include "trainer/data/tokenizers/unigram.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <limits>

#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

constexpr double kUnknownPenalty = 10;  // sentencepiece, src/unigram_model.cc.

uint64_t KeyOf(int32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}
uint64_t Mix(uint64_t x) {  // splitmix64's finaliser.
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

Unigram::Unigram(const UnigramOptions& options) : unk_(options.unk) {
  size_t bytes = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [piece, score] : options.vocab) {
    bytes += piece.size();
    scores_.push_back(score);
    least = std::min(least, score);
  }
  unk_score_ = least - kUnknownPenalty;
  edges_.resize(std::bit_ceil(2 * bytes + 2));
  const size_t mask = edges_.size() - 1;
  ids_.push_back(-1);
  for (size_t id = 0; id < options.vocab.size(); ++id) {
    int32_t node = 0;
    for (const char byte : options.vocab[id].first) {
      const uint64_t key = KeyOf(node, byte);
      size_t slot = Mix(key) & mask;
      while (edges_[slot].node != 0 && edges_[slot].key != key) slot = (slot + 1) & mask;
      if (edges_[slot].node == 0) {
        edges_[slot] = {key, static_cast<int32_t>(ids_.size())};
        ids_.push_back(-1);
      }
      node = edges_[slot].node;
    }
    // The last of equal pieces counts. An empty one is none of a word's.
    if (node != 0) ids_[static_cast<size_t>(node)] = static_cast<int32_t>(id);
  }
  if (!options.byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    byte_ids_.push_back(Find(name));
  }
}

int32_t Unigram::Next(int32_t node, char byte) const {
  const uint64_t key = KeyOf(node, byte);
  const size_t mask = edges_.size() - 1;
  for (size_t slot = Mix(key) & mask; edges_[slot].node != 0; slot = (slot + 1) & mask) {
    if (edges_[slot].key == key) return edges_[slot].node;
  }
  return -1;
}

int32_t Unigram::Find(std::string_view piece) const {
  int32_t node = 0;
  for (const char byte : piece) {
    node = Next(node, byte);
    if (node < 0) return -1;
  }
  return ids_[static_cast<size_t>(node)];
}

void Unigram::Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out,
                     std::vector<size_t>* begins) const {
  std::vector<Scratch::Best>& best = scratch.best_;
  best.assign(word.size() + 1, {0, -1, 0});
  size_t bytes = 0;
  for (size_t at = 0; at < word.size(); at += bytes) {
    bytes = FirstCodePoint(word.substr(at)).bytes;
    const double before = best[at].score;
    const auto take = [&](size_t end, double score, int32_t id) {
      Scratch::Best& there = best[end];
      if (there.start < 0 || before + score > there.score) {
        there = {before + score, static_cast<int64_t>(at), id};
      }
    };
    bool known = false;  // The character at `at` is a piece.
    int32_t node = 0;
    for (size_t end = at; end < word.size();) {
      node = Next(node, word[end++]);
      if (node < 0) break;
      const int32_t id = ids_[static_cast<size_t>(node)];
      if (id < 0) continue;
      take(end, scores_[static_cast<size_t>(id)], id);
      known |= end == at + bytes;
    }
    if (!known) take(at + bytes, unk_score_, unk_);
  }
  std::vector<Scratch::Piece>& pieces = scratch.pieces_;  // The last one first.
  pieces.clear();
  for (size_t end = word.size(); end > 0;) {
    const auto begin = static_cast<size_t>(best[end].start);
    const int32_t id = best[end].id;
    if (id == unk_ && !pieces.empty() && pieces.back().id == unk_) {
      pieces.back().begin = begin;
    } else {
      pieces.push_back({begin, end, id});
    }
    end = begin;
  }
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    const auto add = [&](int32_t id) {
      out.push_back(id);
      if (begins != nullptr) begins->push_back(piece->begin);
    };
    const std::string_view text = word.substr(piece->begin, piece->end - piece->begin);
    const int32_t id = piece->id == unk_ ? Find(text) : piece->id;
    const auto has_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
    if (id >= 0) {
      add(id);
    } else if (!byte_ids_.empty() && std::all_of(text.begin(), text.end(), has_id)) {
      for (const char c : text) add(byte_ids_[static_cast<unsigned char>(c)]);
    } else {
      add(unk_);
    }
  }
}

}  // namespace fsdp
