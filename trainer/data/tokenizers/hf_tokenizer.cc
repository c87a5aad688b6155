#include "trainer/data/tokenizers/hf_tokenizer.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "trainer/core/philox.h"
#include "trainer/data/tokenizers/hf_tokenizer_file.h"

namespace fsdp {
namespace {

// A stretch of text that has been made from another.
struct Stretch {
  std::string_view text;
  // The origin of byte i of `text`: byte begin + i where `from` is empty.
  size_t begin = 0;
  std::span<const size_t> from = {};

  size_t From(size_t i) const { return from.empty() ? begin + i : from[i]; }
  Stretch Part(size_t at, size_t bytes) const {
    return {text.substr(at, bytes), begin + at, from.empty() ? from : from.subspan(at, bytes)};
  }
};

// tokenizers, normalizers/unicode.rs, do_nmt.
bool IsNmtControl(uint32_t c) {
  return (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f ||
         c == 0x9f;
}
bool IsNmtSpace(uint32_t c) {
  return c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
         (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff ||
         c == 0xfffd;
}

class HfTokenizer : public Tokenizer {
 public:
  HfTokenizer(HfTokenizerFile file, uint64_t hash)
      : file_(std::move(file)), hash_(hash), has_(file_.pieces.size()) {
    for (const auto& [token, id] : file_.ids) has_[static_cast<size_t>(id)] = true;
    Regex::Scratch regex;
    for (const auto& [token, normalized] : file_.added) {
      if (normalized) {
        std::string to, other;
        const std::string found(Normalize(token.content, regex, to, other));
        added_normalized_.Add(token, found);
      } else {
        added_.Add(token, token.content);
      }
    }
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(file_.pieces.size()); }
  bool Has(int32_t id) const override {
    return Tokenizer::Has(id) && has_[static_cast<size_t>(id)];
  }
  std::optional<int32_t> bos() const override { return file_.bos; }
  std::optional<int32_t> eot() const override { return file_.eot; }
  uint64_t hash() const override { return hash_; }
  int LeadingSpaces() const override { return file_.strip; }
  std::optional<int32_t> IdOf(std::string_view token) const override {
    const auto found = file_.ids.find(std::string(token));
    if (found == file_.ids.end()) return std::nullopt;
    return found->second;
  }
  std::string_view Piece(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) {
      throw std::invalid_argument("[Piece] token " + std::to_string(id) + " of " +
                                  std::to_string(vocab_size()));
    }
    return file_.pieces[static_cast<size_t>(id)];
  }

  bool EncodePart(std::string_view text, size_t end, bool first,
                  std::vector<int32_t>& out) const override {
    return EncodeTo(text, end, first, out, nullptr);
  }
  PlacedIds EncodePlaced(std::string_view text) const override {
    PlacedIds out;
    EncodeTo(text, text.size(), /*first=*/true, out.ids, &out.begins);
    return out;
  }
  size_t PartEnd(std::string_view text, size_t target) const override;

 private:
  struct Scratch {
    Bpe::Scratch bpe;
    Unigram::Scratch unigram;
    Regex::Scratch regex;
    std::string head, tail, joined, normal, other;
    std::vector<int32_t>* out = nullptr;
    std::vector<size_t>* begins = nullptr;  // Begins of ids; null: not wanted.
    std::vector<size_t> from;               // Origins of the normalised text's bytes.

    void Add(int32_t id, const Stretch& text) {
      out->push_back(id);
      if (begins != nullptr) begins->push_back(text.From(0));
    }
  };
  // Results of the steps below on a part of a text. The part ends at `limit`: a piece that reaches
  // across it makes the steps return kAcross. Behind `limit` they stop.
  enum class Outcome { kOn, kStop, kAcross };

  // `begins`, unless null: as in PlacedIds, for a whole text.
  bool EncodeTo(std::string_view text, size_t end, bool first, std::vector<int32_t>& out,
                std::vector<size_t>* begins) const;
  // Normalised `text`: itself where nothing changes it, else in `to`. `from`, unless null: what
  // each byte of `text` comes from, and then each of what it has become.
  std::string_view Normalize(std::string_view text, Regex::Scratch& regex, std::string& to,
                             std::string& other, std::vector<size_t>* from = nullptr) const;
  Outcome EncodeText(Stretch text, size_t limit, bool first, Scratch& scratch) const;
  Outcome SplitFrom(size_t step, const Stretch& piece, size_t limit, bool first,
                    Scratch& scratch) const;
  template <typename Emit>
  Outcome Split(const HfSplitter& splitter, std::string_view piece, size_t limit, Scratch& scratch,
                const Emit& emit) const;

  // Scratches that nobody uses at the moment.
  class Lease {
   public:
    explicit Lease(const HfTokenizer& owner) : owner_(owner) {
      const std::lock_guard lock(owner_.mutex_);
      if (owner_.idle_.empty()) return;
      scratch_ = std::move(owner_.idle_.back());
      owner_.idle_.pop_back();
    }
    ~Lease() {
      if (!scratch_) return;
      const std::lock_guard lock(owner_.mutex_);
      owner_.idle_.push_back(std::move(scratch_));
    }
    Scratch& get() {
      if (!scratch_) scratch_ = std::make_unique<Scratch>();
      return *scratch_;
    }

   private:
    const HfTokenizer& owner_;
    std::unique_ptr<Scratch> scratch_;
  };

  const HfTokenizerFile file_;
  const uint64_t hash_;
  std::vector<bool> has_;  // By id.
  AddedTokens added_, added_normalized_;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

std::string_view HfTokenizer::Normalize(std::string_view text, Regex::Scratch& regex,
                                        std::string& to, std::string& other,
                                        std::vector<size_t>* from) const {
  std::vector<size_t> places;  // By byte of `other`: its byte of `text`.
  for (const HfNormalizer& n : file_.steps.normalizers) {
    if (text.empty()) break;
    // `text` may lie in `to`.
    other.clear();
    places.clear();
    const auto copy = [&](size_t begin, size_t end) {
      other += text.substr(begin, end - begin);
      for (size_t i = begin; from != nullptr && i < end; ++i) places.push_back(i);
    };
    const auto insert = [&](size_t at) {  // In place of what begins there.
      other += n.content;
      if (from != nullptr) places.insert(places.end(), n.content.size(), at);
    };
    switch (n.kind) {
      case HfNormalizer::Kind::kForm:
        if (from != nullptr) {
          AppendNormalized(text, n.form, other, places);
        } else {
          AppendNormalized(text, n.form, other);
        }
        break;
      case HfNormalizer::Kind::kPrecompiled:
        n.charsmap->Append(text, other, from == nullptr ? nullptr : &places);
        break;
      case HfNormalizer::Kind::kNmt:
        for (size_t at = 0; at < text.size();) {
          const CodePoint c = FirstCodePoint(text.substr(at));
          if (IsNmtSpace(c.value)) {
            other += ' ';
            if (from != nullptr) places.push_back(at);
          } else if (!IsNmtControl(c.value)) {
            copy(at, at + c.bytes);
          }
          at += c.bytes;
        }
        break;
      case HfNormalizer::Kind::kStrip: {
        size_t begin = 0, end = text.size();
        while (n.left && begin < end && IsWhiteSpace(FirstCodePoint(text.substr(begin)).value)) {
          begin += FirstCodePoint(text.substr(begin)).bytes;
        }
        while (n.right && begin < end) {
          const CodePoint last = LastCodePoint(text.substr(begin, end - begin));
          if (!IsWhiteSpace(last.value)) break;
          end -= last.bytes;
        }
        copy(begin, end);
        break;
      }
      case HfNormalizer::Kind::kPrepend:
        insert(0);
        copy(0, text.size());
        break;
      case HfNormalizer::Kind::kReplace: {
        size_t done = 0, at = 0;
        Regex::Match match;
        while (at <= text.size() && n.regex->Find(text, at, regex, match)) {
          if (match.end == match.begin) {
            if (match.end == text.size()) break;
            at = match.end + FirstCodePoint(text.substr(match.end)).bytes;
            continue;
          }
          copy(done, match.begin);
          // It comes from the last character that it replaces, as the library says.
          insert(match.end - LastCodePoint(text.substr(0, match.end)).bytes);
          done = at = match.end;
        }
        copy(done, text.size());
        break;
      }
    }
    if (from != nullptr) {
      for (size_t& place : places) place = (*from)[place];
      std::swap(*from, places);
    }
    std::swap(to, other);
    text = to;
  }
  return text;
}

// Calls emit(begin, end) for the pieces of `piece`, in order; stops once they lie behind `limit`.
// A piece may reach across it, but not where a match does: a search that begins at `limit` then
// finds the same matches behind it.
template <typename Emit>
HfTokenizer::Outcome HfTokenizer::Split(const HfSplitter& splitter, std::string_view piece,
                                        size_t limit, Scratch& scratch, const Emit& emit) const {
  using Behavior = HfSplitter::Behavior;
  // Every stretch of text, matched or between matches, in order.
  const auto for_each = [&](const auto& visit) {
    size_t done = 0, from = 0;
    Regex::Match match;
    while (done < limit && from <= piece.size() &&
           splitter.regex->Find(piece, from, scratch.regex, match)) {
      if (match.begin < limit && limit < match.end) return Outcome::kAcross;
      const bool empty = match.begin == match.end;  // Splits, but takes nothing.
      if (empty && match.end == piece.size()) break;
      from = match.end + (empty ? FirstCodePoint(piece.substr(match.end)).bytes : 0);
      const bool gap = match.begin > done;
      if (gap) {
        const Outcome outcome = visit(done, match.begin, splitter.invert);
        if (outcome != Outcome::kOn) return outcome;
      }
      done = match.end;
      if (empty && !gap) continue;  // At the end of a match it is none.
      const Outcome outcome = visit(match.begin, match.end, !splitter.invert);
      if (outcome != Outcome::kOn) return outcome;
    }
    return done < piece.size() ? visit(done, piece.size(), splitter.invert) : Outcome::kOn;
  };
  const auto bounded = [&](size_t begin, size_t end) {
    if (begin == end) return Outcome::kOn;
    return begin >= limit ? Outcome::kStop : emit(begin, end);
  };
  if (splitter.behavior == Behavior::kIsolated || splitter.behavior == Behavior::kRemoved) {
    const bool removes = splitter.behavior == Behavior::kRemoved;
    return for_each([&](size_t begin, size_t end, bool matched) {
      return matched && removes ? Outcome::kOn : bounded(begin, end);
    });
  }
  // The others join neighbours: a piece is known when the next one begins.
  std::optional<std::pair<size_t, size_t>> open;
  bool last = false;
  const Outcome outcome = for_each([&](size_t begin, size_t end, bool matched) {
    bool joins = false;
    if (open) {
      switch (splitter.behavior) {
        case Behavior::kContiguous:
          joins = matched == last;
          break;
        case Behavior::kMergedWithPrevious:
          joins = matched && !last;
          break;
        default:  // kMergedWithNext: of a row of matches, the last one alone.
          joins = last && !matched;
      }
    }
    last = matched;
    if (joins) {
      open->second = end;
      return Outcome::kOn;
    }
    const auto before = std::exchange(open, std::pair(begin, end));
    return before ? bounded(before->first, before->second) : Outcome::kOn;
  });
  if (outcome != Outcome::kOn || !open) return outcome;
  return bounded(open->first, open->second);
}

HfTokenizer::Outcome HfTokenizer::SplitFrom(size_t step, const Stretch& piece, size_t limit,
                                            bool first, Scratch& scratch) const {
  if (step == file_.steps.splitters.size()) {
    if (piece.text.size() > limit) return Outcome::kAcross;
    const size_t before = scratch.out->size();
    if (file_.unigram) {
      file_.unigram->Encode(piece.text, scratch.unigram, *scratch.out, scratch.begins);
    } else {
      file_.bpe->Encode(piece.text, scratch.bpe, *scratch.out);
    }
    if (scratch.begins != nullptr) {
      std::vector<size_t>& begins = *scratch.begins;
      if (file_.bpe) {
        file_.bpe->AppendBegins(piece.text, std::span(*scratch.out).subspan(before), begins);
      }
      for (size_t i = before; i < begins.size(); ++i) begins[i] = piece.From(begins[i]);
    }
    return Outcome::kOn;
  }
  const HfSplitter& splitter = file_.steps.splitters[step];
  const auto into = [&](const Stretch& all, size_t its_limit) {
    if (!splitter.regex) return SplitFrom(step + 1, all, its_limit, first, scratch);
    if (splitter.of_bytes) {
      std::string text;
      std::vector<size_t> at;  // By byte of `text`: its byte of `all`.
      size_t text_limit = 0;
      for (size_t i = 0; i < all.text.size(); ++i) {
        if (i == its_limit) text_limit = text.size();
        text += Utf8OfByte(all.text[i]);
        at.resize(text.size(), i);
      }
      at.push_back(all.text.size());
      if (its_limit == all.text.size()) text_limit = text.size();
      return Split(splitter, text, text_limit, scratch, [&](size_t begin, size_t end) {
        begin = at[begin], end = at[end];
        return SplitFrom(step + 1, all.Part(begin, end - begin), std::min(end, its_limit) - begin,
                         first && begin == 0, scratch);
      });
    }
    return Split(splitter, all.text, its_limit, scratch, [&](size_t begin, size_t end) {
      return SplitFrom(step + 1, all.Part(begin, end - begin), std::min(end, its_limit) - begin,
                       first && begin == 0, scratch);
    });
  };
  if (splitter.kind == HfSplitter::Kind::kSplit) return into(piece, limit);
  const bool prefix_space = splitter.kind == HfSplitter::Kind::kPrefixSpace;
  if (prefix_space && piece.text.starts_with(' ')) return into(piece, limit);
  std::string text;
  std::vector<size_t> from;
  const auto add = [&](std::string_view bytes, size_t i) {  // That stand for byte i.
    text += bytes;
    if (scratch.begins != nullptr) from.insert(from.end(), bytes.size(), piece.From(i));
  };
  if (prefix_space) {
    add(" ", 0);
    text += piece.text;
    for (size_t i = 0; !from.empty() && i < piece.text.size(); ++i) from.push_back(piece.From(i));
    return into({text, 0, from}, limit + 1);
  }
  const bool prepends = splitter.prepend == HfSplitter::Prepend::kAlways ||
                        (splitter.prepend == HfSplitter::Prepend::kFirst && first);
  // A text that begins with a space will begin with the replacement.
  if (prepends && !piece.text.starts_with(' ') && !piece.text.starts_with(splitter.replacement)) {
    add(splitter.replacement, 0);
  }
  size_t its_limit = 0;
  for (size_t i = 0; i < piece.text.size(); ++i) {
    if (i == limit) its_limit = text.size();
    add(piece.text[i] == ' ' ? splitter.replacement : piece.text.substr(i, 1), i);
  }
  if (limit == piece.text.size()) its_limit = text.size();
  return into({text, 0, from}, its_limit);
}

// `text` holds no added token that is found before normalising.
HfTokenizer::Outcome HfTokenizer::EncodeText(Stretch text, size_t limit, bool first,
                                             Scratch& scratch) const {
  if (!file_.steps.normalizers.empty()) {
    std::vector<size_t>* from = nullptr;
    if (scratch.begins != nullptr) {
      from = &scratch.from;
      from->resize(text.text.size());
      std::iota(from->begin(), from->end(), text.begin);
    }
    // The two sides of the limit apart: so it is known where it has gone. A part ends where no
    // normal form joins characters.
    const std::string_view head =
        Normalize(text.text.substr(0, limit), scratch.regex, scratch.normal, scratch.other, from);
    scratch.joined.assign(head);
    const size_t head_size = head.size();
    if (limit < text.text.size()) {
      scratch.joined +=
          Normalize(text.text.substr(limit), scratch.regex, scratch.normal, scratch.other);
    }
    limit = head_size;
    text = {scratch.joined, 0, {}};
    if (from != nullptr) text.from = *from;
  }
  Outcome outcome = Outcome::kOn;
  added_normalized_.Split(
      text.text,
      [&](size_t begin, size_t end) {
        if (begin >= limit) return false;
        outcome = SplitFrom(0, text.Part(begin, end - begin), std::min(end, limit) - begin,
                            first && begin == 0, scratch);
        return outcome == Outcome::kOn;
      },
      [&](size_t begin, size_t end, int32_t id) {
        if (begin >= limit) return false;
        if (end > limit) outcome = Outcome::kAcross;
        if (outcome == Outcome::kOn) scratch.Add(id, text.Part(begin, end - begin));
        return outcome == Outcome::kOn;
      });
  return outcome;
}

bool HfTokenizer::EncodeTo(std::string_view text, size_t end, bool first, std::vector<int32_t>& out,
                           std::vector<size_t>* begins) const {
  Lease lease(*this);
  Scratch& scratch = lease.get();
  scratch.out = &out;
  scratch.begins = begins;
  std::string_view seen = WellFormed(text.substr(0, end), scratch.head);
  size_t limit = seen.size();
  if (end < text.size()) {
    const std::string_view tail = WellFormed(text.substr(end, kLookAhead), scratch.tail);
    if (seen.data() == text.data() && tail.data() == text.data() + end) {
      seen = text.substr(0, end + tail.size());
    } else {
      // Not in `head`, which `seen` may lie in.
      std::string both(seen);
      both += tail;
      scratch.head = std::move(both);
      seen = scratch.head;
    }
  }
  const Stretch all{seen};
  Outcome outcome = Outcome::kOn;
  added_.Split(
      seen,
      [&](size_t begin, size_t stop) {
        if (begin >= limit) return false;
        outcome = EncodeText(all.Part(begin, stop - begin), std::min(stop, limit) - begin,
                             first && begin == 0, scratch);
        return outcome == Outcome::kOn;
      },
      [&](size_t begin, size_t stop, int32_t id) {
        if (begin >= limit) return false;
        if (stop > limit) outcome = Outcome::kAcross;
        if (outcome == Outcome::kOn) scratch.Add(id, all.Part(begin, stop - begin));
        return outcome == Outcome::kOn;
      });
  return outcome != Outcome::kAcross;
}

size_t HfTokenizer::PartEnd(std::string_view text, size_t target) const {
  if (file_.steps.whole || target >= text.size()) return text.size();
  const auto is_letter = [&](size_t i) { return text[i] >= 'a' && text[i] <= 'z'; };
  constexpr size_t kSearch = 1 << 16;
  const size_t stop = std::min(text.size(), target + kSearch);
  // Between two words of plain letters every pattern in use splits.
  for (size_t i = std::max<size_t>(target, 1); i + 1 < stop; ++i) {
    if (text[i] == ' ' && is_letter(i - 1) && is_letter(i + 1)) return i;
  }
  for (size_t i = std::max<size_t>(target, 1); i < stop; ++i) {
    const char before = text[i - 1];
    const bool space = text[i] == ' ' || (text[i] == '\n' && !file_.steps.needs_space);
    if (space && before != ' ' && before != '\n' && before != '\r' && before != '\t') return i;
  }
  return text.size();
}

}  // namespace

std::shared_ptr<const Tokenizer> ParseHfTokenizer(const std::string& path, std::string_view json,
                                                  const SideFiles& beside) {
  return std::make_shared<const HfTokenizer>(ReadHfTokenizerFile(path, json, beside),
                                             beside.Hash(HashBytes(json)));
}

}  // namespace fsdp
