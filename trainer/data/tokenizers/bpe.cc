#include "trainer/data/tokenizers/bpe.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>

#include "trainer/data/tokenizers/unicode.h"

namespace fsdp {
namespace {

constexpr size_t kWordSlots = 1 << 15;  // 2 MiB a thread.
// Words up to this many units are merged by looking at all pairs each time.
constexpr size_t kShort = 40;
constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();

uint64_t Mix(uint64_t x) {  // splitmix64's finaliser.
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

Bpe::Scratch::Scratch() : words_(kWordSlots) {}

Bpe::Bpe(const BpeOptions& options) : options_(options) {
  options_.vocab.clear();
  options_.merges.clear();
  ids_.reserve(options.vocab.size());
  for (const auto& [token, id] : options.vocab) {
    ids_.emplace(token, id);
    if (id < 0) continue;
    if (static_cast<size_t>(id) >= bytes_.size()) bytes_.resize(static_cast<size_t>(id) + 1);
    bytes_[static_cast<size_t>(id)] = static_cast<int32_t>(token.size());
  }
  const auto id_of = [&](const std::string& token) { return Find(token).value_or(-1); };
  byte_ids_.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    if (options.byte_level) {
      byte_ids_[static_cast<size_t>(byte)] = id_of(std::string(1, static_cast<char>(byte)));
    } else if (options.byte_fallback) {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", byte);
      byte_ids_[static_cast<size_t>(byte)] = id_of(name);
    }
  }
  for (int c = 0; c < 128; ++c) {
    ascii_ids_[static_cast<size_t>(c)] = id_of(std::string(1, static_cast<char>(c)));
  }
  if (options.unk) {
    unk_ = id_of(*options.unk);
    if (unk_ < 0) throw std::invalid_argument("unk_token `" + *options.unk + "` is no token");
  }
  merges_.resize(std::bit_ceil(2 * options.merges.size() + 2));
  const size_t mask = merges_.size() - 1;
  for (size_t rank = 0; rank < options.merges.size(); ++rank) {
    const auto& [left, right] = options.merges[rank];
    const int32_t a = id_of(left), b = id_of(right), merged = id_of(left + right);
    if (a < 0 || b < 0 || merged < 0) {
      throw std::invalid_argument("merge " + std::to_string(rank) +
                                  " is of or into something that is no token");
    }
    const uint64_t pair = PairOf(a, b);
    size_t slot = Mix(pair) & mask;
    while (merges_[slot].pair != kNone && merges_[slot].pair != pair) slot = (slot + 1) & mask;
    // A pair given twice has its last rank, as where merges are put into a map.
    merges_[slot] = {pair, static_cast<uint32_t>(rank), merged};
  }
}

std::optional<int32_t> Bpe::Find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const uint64_t pair = PairOf(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t slot = Mix(pair) & mask; merges_[slot].pair != kNone; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == pair) return &merges_[slot];
  }
  return nullptr;
}

void Bpe::Units(std::string_view word, std::vector<int32_t>& ids) const {
  const auto unknown = [&](bool& open) {
    if (unk_ < 0) return;
    if (!(options_.fuse_unk && open)) ids.push_back(unk_);
    open = true;
  };
  bool open = false;  // The last unit is an unk that the next may fuse with.
  if (options_.byte_level) {
    for (const char c : word) {
      const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
      if (id < 0) {
        unknown(open);
      } else {
        ids.push_back(id);
        open = false;
      }
    }
    return;
  }
  while (!word.empty()) {
    const size_t bytes = FirstCodePoint(word).bytes;
    const std::string_view character = word.substr(0, bytes);
    word.remove_prefix(bytes);
    int32_t id = -1;
    if (bytes == 1) {
      id = ascii_ids_[static_cast<unsigned char>(character[0])];
    } else if (const std::optional<int32_t> found = Find(character)) {
      id = *found;
    }
    if (id >= 0) {
      ids.push_back(id);
      open = false;
      continue;
    }
    const bool all =
        options_.byte_fallback && std::all_of(character.begin(), character.end(), [&](char c) {
          return byte_ids_[static_cast<unsigned char>(c)] >= 0;
        });
    if (!all) {
      unknown(open);
      continue;
    }
    for (const char c : character) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    open = false;
  }
}

size_t Bpe::UnitBytes(std::string_view word) const {
  return options_.byte_level ? 1 : FirstCodePoint(word).bytes;
}

bool Bpe::IsKnown(std::string_view unit) const {
  const auto has_byte = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
  if (options_.byte_level) return has_byte(unit[0]);
  return Find(unit) || (options_.byte_fallback && std::all_of(unit.begin(), unit.end(), has_byte));
}

void Bpe::AppendBegins(std::string_view word, std::span<const int32_t> ids,
                       std::vector<size_t>& begins) const {
  if (ids.size() == 1) {
    begins.push_back(0);
    return;
  }
  const auto is_unknown = [&](size_t at) {
    return at < word.size() && !IsKnown(word.substr(at, UnitBytes(word.substr(at))));
  };
  size_t at = 0;
  for (const int32_t id : ids) {
    // A byte of a character may stand alone.
    if (options_.byte_fallback && at < word.size() &&
        id == byte_ids_[static_cast<unsigned char>(word[at])]) {
      begins.push_back(at++);
      continue;
    }
    if (id == unk_ && is_unknown(at)) {
      begins.push_back(at);
      do {
        at += UnitBytes(word.substr(at));
      } while (options_.fuse_unk && is_unknown(at));
      continue;
    }
    while (is_unknown(at)) at += UnitBytes(word.substr(at));  // It has left no id.
    at = std::min(at, word.size() - 1);                       // A file may give two texts one id.
    begins.push_back(at);
    at += static_cast<size_t>(bytes_[static_cast<size_t>(id)]);
  }
}

void Bpe::MergeShort(Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids_;
  std::vector<uint32_t>& ranks = scratch.ranks_;  // By unit: the pair that begins there.
  const auto rank_at = [&](size_t i) {
    const Merge* merge = FindMerge(ids[i], ids[i + 1]);
    return merge == nullptr ? kNoRank : merge->rank;
  };
  ranks.assign(ids.size() - 1, 0);
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = rank_at(i);
  while (!ranks.empty()) {
    const size_t at =
        static_cast<size_t>(std::min_element(ranks.begin(), ranks.end()) - ranks.begin());
    if (ranks[at] == kNoRank) break;
    ids[at] = FindMerge(ids[at], ids[at + 1])->id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
    ranks.erase(ranks.begin() + static_cast<ptrdiff_t>(at));
    if (at > 0) ranks[at - 1] = rank_at(at - 1);
    if (at < ranks.size()) ranks[at] = rank_at(at);
  }
}

void Bpe::MergeLong(Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids_;
  auto& units = scratch.units_;
  auto& heap = scratch.heap_;
  const int32_t n = static_cast<int32_t>(ids.size());
  units.clear();
  heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    units.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1});
  }
  const auto add = [&](int32_t left, int32_t right) {
    const Merge* merge =
        FindMerge(units[static_cast<size_t>(left)].id, units[static_cast<size_t>(right)].id);
    if (merge == nullptr) return;
    heap.push_back({merge->rank, left, merge->id});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i + 1 < n; ++i) add(i, i + 1);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    Scratch::Unit& left = units[static_cast<size_t>(top.at)];
    if (left.id < 0 || left.next < 0) continue;
    // The pair is gone: another one begins here now.
    const Merge* merge = FindMerge(left.id, units[static_cast<size_t>(left.next)].id);
    if (merge == nullptr || merge->rank != top.rank) continue;
    Scratch::Unit& right = units[static_cast<size_t>(left.next)];
    left.id = merge->id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      units[static_cast<size_t>(left.next)].previous = top.at;
      add(top.at, left.next);
    }
    if (left.previous >= 0) add(left.previous, top.at);
  }
  ids.clear();
  for (int32_t i = 0; i >= 0; i = units[static_cast<size_t>(i)].next) {
    ids.push_back(units[static_cast<size_t>(i)].id);
  }
}

void Bpe::Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  Scratch::Word* slot = nullptr;
  if (word.size() <= scratch.words_[0].text.size()) {
    slot = &scratch.words_[XXH3_64bits(word.data(), word.size()) & (kWordSlots - 1)];
    if (slot->bytes == word.size() &&
        std::memcmp(slot->text.data(), word.data(), word.size()) == 0) {
      out.insert(out.end(), slot->ids.begin(), slot->ids.begin() + slot->count);
      return;
    }
  }
  std::vector<int32_t>& ids = scratch.ids_;
  ids.clear();
  const std::optional<int32_t> whole = options_.ignore_merges ? Find(word) : std::nullopt;
  if (whole) {
    ids.push_back(*whole);
  } else {
    Units(word, ids);
    if (ids.size() > kShort) {
      MergeLong(scratch);
    } else if (ids.size() > 1) {
      MergeShort(scratch);
    }
  }
  out.insert(out.end(), ids.begin(), ids.end());
  if (slot == nullptr || ids.size() > slot->ids.size()) return;
  slot->bytes = static_cast<uint8_t>(word.size());
  slot->count = static_cast<uint8_t>(ids.size());
  std::copy(word.begin(), word.end(), slot->text.begin());
  std::copy(ids.begin(), ids.end(), slot->ids.begin());
}

}  // namespace fsdp
