// Rows of a model's inputs, which loaders deal out. Calls are pure functions of their arguments:
// safe for any number of threads, and they allocate nothing while they fill.
// Tests: tests/trainer/data/synthetic/synthetic_rows_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_ROW_SOURCE_H_
#define FSDP_TRAIN_TRAINER_DATA_ROW_SOURCE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/core/batch.h"
#include "trainer/data/mixture.h"

namespace fsdp {

inline constexpr int64_t kNoSample = -1;

// A sample as training reads it, for people.
struct ShownSample {
  struct Tokens {
    std::string name;                // "text"; "input", "target".
    std::vector<int32_t> ids;        // Without padding.
    std::vector<int32_t> positions;  // As many as ids. 0: a document's part begins.
    std::vector<bool> is_target;     // As many as ids: the loss counts this token's prediction.
  };
  std::string where;                                       // "cats/7.png"; empty: unknown.
  std::vector<Tokens> tokens;                              // Empty: the sample is no text.
  std::vector<std::pair<std::string, std::string>> facts;  // "class", "2, dog".
};
// Numbers of a source with their names: "documents", 12.
using Tally = std::vector<std::pair<std::string, int64_t>>;

class RowSource {
 public:
  virtual ~RowSource() = default;

  // Whose samples the rows are, and the rows of an epoch of each.
  virtual const Mixture& mixture() const = 0;
  virtual int64_t sources() const = 0;
  virtual int64_t Rows(int64_t source) const = 0;
  virtual std::string Describe() const = 0;

  // Throws std::invalid_argument for views of another shape or dtype than `rows` rows of it.
  virtual void CheckViews(const Batch& out, int64_t rows) const = 0;
  // Fills row `row` of all inputs that are not derived. kNoSample: with weights of 0. May block on
  // the disk. Throws DataError.
  virtual void Fill(int64_t sample, int64_t row, const Batch& out) const = 0;
  // The derived inputs, once all rows are there.
  virtual void Derive(const Batch&) const {}
  // Targets of weight 1 in samples [begin, end).
  virtual int64_t Targets(int64_t begin, int64_t end) const = 0;
  // Tokens that a model reads in samples [begin, end), padding excepted. Sources whose samples are
  // no text have as many as targets.
  virtual int64_t InputTokens(int64_t begin, int64_t end) const { return Targets(begin, end); }
  // A sentence's end about samples without targets: "all tokens of step 3 ...".
  virtual std::string WhyNoTargets(const std::string& of) const = 0;

  // `row`: a batch of one row, which Fill() has filled with the sample. Reads what a row does not
  // tell. May block on the disk. Throws DataError.
  virtual ShownSample Show(int64_t, const Batch&) const { return {}; }
  // For people, of an epoch, "samples" first.
  virtual Tally Count(int64_t source) const { return {{"samples", Rows(source)}}; }
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_ROW_SOURCE_H_
