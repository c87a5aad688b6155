// The documents of a token source. A document ends behind the source's end-of-text token, or at the
// source's end. All of its tokens are inputs, the end-of-text token among them, and all but the
// first are targets, as in windows under data.documents.
// Tests: tests/trainer/data/samples/fitted_samples_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_SAMPLES_DOCUMENT_STORE_H_
#define FSDP_TRAIN_TRAINER_DATA_SAMPLES_DOCUMENT_STORE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/samples/sample_store.h"
#include "trainer/data/tokens/token_source.h"

namespace fsdp {

class DocumentStore : public SampleStore {
 public:
  // `source` has an eot(). Reads all of it, at 1.3 GB/s of uint16 from the page cache (one core of
  // a 2-core Xeon virtual machine), and keeps 8 bytes a document.
  explicit DocumentStore(std::shared_ptr<const TokenSource> source);

  int64_t size() const override { return std::ssize(begins_) - 1; }
  int64_t Begin(int64_t i) const override { return begins_[static_cast<size_t>(i)]; }
  int64_t Targets(int64_t, int64_t n) const override { return n - 1; }
  void Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const override;
  std::string Noun() const override { return "document"; }
  std::string Describe() const override { return source_->Describe(); }
  std::string Where(int64_t i) const override { return source_->Where(Begin(i)); }
  TokenPlace PlaceOf(int64_t i, int64_t token) const override;
  std::string CureOfLength(int64_t i) const override;

 private:
  std::shared_ptr<const TokenSource> source_;
  std::vector<int64_t> begins_;  // And the source's end.
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_SAMPLES_DOCUMENT_STORE_H_
