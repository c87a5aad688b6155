#include "trainer/data/tokenizers/whole_vocabulary.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

class Whole : public Tokenizer {
 public:
  Whole(std::shared_ptr<const Tokenizer> tokenizer, int32_t size)
      : tokenizer_(std::move(tokenizer)), known_(tokenizer_ ? tokenizer_->vocab_size() : 0) {
    for (int32_t id = known_; id < size; ++id) {
      std::string piece = "<";
      piece.append(std::to_string(id)).append(">");
      further_.push_back(std::move(piece));
    }
  }

  int32_t vocab_size() const override { return known_ + static_cast<int32_t>(further_.size()); }
  std::optional<int32_t> bos() const override {
    return tokenizer_ ? tokenizer_->bos() : Tokenizer::bos();
  }
  std::optional<int32_t> eot() const override {
    return tokenizer_ ? tokenizer_->eot() : Tokenizer::eot();
  }
  uint64_t hash() const override { return tokenizer_ ? tokenizer_->hash() : 0; }
  std::optional<int32_t> IdOf(std::string_view token) const override {
    return tokenizer_ ? tokenizer_->IdOf(token) : Tokenizer::IdOf(token);
  }
  int LeadingSpaces() const override { return tokenizer_ ? tokenizer_->LeadingSpaces() : 0; }

  bool EncodePart(std::string_view text, size_t end, bool first,
                  std::vector<int32_t>& out) const override {
    if (!tokenizer_) throw DataError("tokenizer: there is none to make tokens of a text");
    return tokenizer_->EncodePart(text, end, first, out);
  }
  PlacedIds EncodePlaced(std::string_view text) const override {
    if (!tokenizer_) throw DataError("tokenizer: there is none to make tokens of a text");
    return tokenizer_->EncodePlaced(text);
  }
  size_t PartEnd(std::string_view text, size_t target) const override {
    return tokenizer_ ? tokenizer_->PartEnd(text, target) : text.size();
  }
  std::string_view Piece(int32_t id) const override {
    const int64_t further = int64_t{id} - known_;
    if (further >= 0 && further < static_cast<int64_t>(further_.size())) {
      return further_[static_cast<size_t>(further)];
    }
    if (!tokenizer_) throw std::invalid_argument("[Piece] token " + std::to_string(id));
    return tokenizer_->Piece(id);
  }

 private:
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const int32_t known_;
  std::vector<std::string> further_;
};

}  // namespace

std::shared_ptr<const Tokenizer> WholeVocabulary(std::shared_ptr<const Tokenizer> tokenizer,
                                                 int32_t size) {
  return std::make_shared<const Whole>(std::move(tokenizer), size);
}

}  // namespace fsdp
