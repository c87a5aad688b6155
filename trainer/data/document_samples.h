// The documents of a token source as samples that stay whole. A document ends behind the source's
// end-of-text token, or at the source's end. All of its tokens are inputs, the end-of-text token
// among them, and all but the first are targets, as in windows under data.documents.
#ifndef FSDP_TRAIN_TRAINER_DATA_DOCUMENT_SAMPLES_H_
#define FSDP_TRAIN_TRAINER_DATA_DOCUMENT_SAMPLES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/packing.h"
#include "trainer/data/sample_source.h"
#include "trainer/data/token_source.h"

namespace fsdp {

class DocumentSamples : public SampleSource {
 public:
  // `source` has an eot(). Reads all of it, at 1.3 GB/s of uint16 from the page cache (one core of
  // a 2-core Xeon virtual machine), and keeps 12 bytes a document. Documents of one token have no
  // target and are left out. Throws DataError where nothing is left, and under TooLong::kError for
  // documents of more than seq_len tokens: with the place of the first.
  DocumentSamples(std::shared_ptr<const TokenSource> source, int64_t seq_len, TooLong too_long);

  struct Counts {
    int64_t documents = 0;    // All in the source, these included:
    int64_t single = 0;       // one token, left out;
    int64_t longer = 0;       // longer than seq_len, cut or dropped,
    int64_t lost_tokens = 0;  // and the tokens that this cost.
  };
  const Counts& counts() const { return index_->counts; }

  // The documents that begin in the last floor(tokens * fraction) tokens of the source, and all
  // before them. Wants 0 < fraction < 1; throws DataError if one side would be empty.
  struct Parts;
  Parts HoldOut(double fraction) const;

  int64_t size() const override { return end_ - begin_; }
  int32_t Length(int64_t i) const override { return index_->lengths[At(i)]; }
  int64_t Targets(int64_t i) const override { return Length(i) - 1; }
  std::string Describe() const override;
  void Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const override;
  TokenPlace PlaceOf(int64_t i, int64_t token) const override;

 private:
  struct Index {
    std::vector<int64_t> starts;
    std::vector<int32_t> lengths;
    Counts counts;
  };
  DocumentSamples(const DocumentSamples& all, int64_t begin, int64_t end);
  size_t At(int64_t i) const { return static_cast<size_t>(begin_ + i); }

  std::shared_ptr<const TokenSource> source_;
  std::shared_ptr<const Index> index_;  // The whole source's.
  int64_t begin_ = 0, end_ = 0;         // These documents of it.
};

struct DocumentSamples::Parts {
  std::shared_ptr<const SampleSource> train, valid;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_DOCUMENT_SAMPLES_H_
