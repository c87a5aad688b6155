#include "trainer/data/samples/document_store.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace fsdp {

DocumentStore::DocumentStore(std::shared_ptr<const TokenSource> source)
    : source_(std::move(source)) {
  if (!source_->eot()) {
    throw std::invalid_argument("[DocumentStore] " + source_->Describe() +
                                " has no end-of-text token");
  }
  constexpr int64_t kChunk = 1 << 15;
  const int64_t size = source_->size();
  const int32_t eot = *source_->eot();
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(size, kChunk)));
  begins_.push_back(0);
  for (int64_t at = 0; at < size; at += kChunk) {
    const auto here = std::span(tokens).first(static_cast<size_t>(std::min(kChunk, size - at)));
    source_->Read(at, here);
    for (auto i = std::find(here.begin(), here.end(), eot); i != here.end();
         i = std::find(i + 1, here.end(), eot)) {
      begins_.push_back(at + (i - here.begin()) + 1);
    }
  }
  if (begins_.back() < size) begins_.push_back(size);
  begins_.shrink_to_fit();
}

void DocumentStore::Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const {
  source_->Read(Begin(i), tokens);
  std::fill(weights.begin(), weights.end() - 1, 1.0f);
  weights.back() = 0;
}

TokenPlace DocumentStore::PlaceOf(int64_t i, int64_t token) const {
  return PlaceIn(*source_, Begin(i) + token);
}

std::string DocumentStore::CureOfLength(int64_t i) const {
  return Length(i) == source_->size() ? "the right data.*.eot" : "";
}

}  // namespace fsdp
