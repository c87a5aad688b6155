// Samples of any length, as files hold them: documents, conversations. Stores hold no position, so
// one may be read by many threads.
// Tests: tests/trainer/data/samples/line_samples_test.cc
// Tests: tests/trainer/data/samples/whole_samples_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_SAMPLES_SAMPLE_STORE_H_
#define FSDP_TRAIN_TRAINER_DATA_SAMPLES_SAMPLE_STORE_H_

#include <cstdint>
#include <span>
#include <string>

#include "trainer/data/check_row.h"
#include "trainer/data/row_source.h"

namespace fsdp {

class SampleStore {
 public:
  virtual ~SampleStore() = default;

  virtual int64_t size() const = 0;  // Samples.
  // Tokens of all samples before i, in [0, size()]. Each has at least one.
  virtual int64_t Begin(int64_t i) const = 0;
  int64_t Length(int64_t i) const { return Begin(i + 1) - Begin(i); }
  // How many of the first n tokens of sample i are targets; the first never is.
  virtual int64_t Targets(int64_t i, int64_t n) const = 0;

  // tokens, weights: [n], n <= Length(i): the first n tokens, and for each 1 where the next one is
  // a target; for the last of them 0. Any number of threads. May block on the disk.
  virtual void Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const = 0;

  virtual std::string Noun() const = 0;                            // "document".
  virtual std::string Describe() const = 0;                        // "a.txt and 2 more files".
  virtual std::string Where(int64_t i) const = 0;                  // "a.txt, byte 17".
  virtual TokenPlace PlaceOf(int64_t i, int64_t token) const = 0;  // For CheckRow().
  // A further cure for a sample that is too long, before the cures that all stores have, or "".
  virtual std::string CureOfLength(int64_t) const { return ""; }
};

// Samples that stay whole: each is a stretch of tokens that lies in one row, beside others that it
// does not see. Sources hold no position, so one may be read by many threads.

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual int64_t size() const = 0;              // Samples, > 0.
  virtual int32_t Length(int64_t i) const = 0;   // Tokens of sample i, > 0: places in a row.
  virtual int64_t Targets(int64_t i) const = 0;  // How many of its targets count.
  virtual std::string Describe() const = 0;      // "a.txt and 2 more files".
  virtual Tally Count() const { return {}; }     // Counts all samples, left out or not.

  // tokens, weights: [Length(i)]. The target of a token is the next one; its weight is 1 where it
  // counts, else 0, and 0 for the last token, which has none. Any number of threads. May block on
  // the disk.
  virtual void Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const = 0;
  virtual TokenPlace PlaceOf(int64_t i, int64_t token) const = 0;  // For CheckRow().
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_SAMPLES_SAMPLE_STORE_H_
