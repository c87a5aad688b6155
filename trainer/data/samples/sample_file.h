// Samples that are kept in one file: their tokens, which of them are trained on, and the lines that
// they were made of. Little-endian:
//   64 bytes            "fsdpsam1", samples n and tokens t (int64), zeros
//   uint32[t]           an id, and kTargetBit where the token is a target
//   4 bytes             zeros, for odd t
//   int64[n + 1]        tokens before each sample, and t
//   int64[n]            file << 40 | line, the line counted from 1
// Tests: tests/trainer/data/samples/line_samples_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_SAMPLES_SAMPLE_FILE_H_
#define FSDP_TRAIN_TRAINER_DATA_SAMPLES_SAMPLE_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/atomic_output.h"
#include "trainer/data/data_files.h"
#include "trainer/data/samples/sample_store.h"

namespace fsdp {

inline constexpr uint32_t kTargetBit = uint32_t{1} << 31;

class SampleFileWriter {
 public:
  explicit SampleFileWriter(const std::string& path);  // These throw DataError.

  // A sample of tokens as above, at least one. `file`: below 2^23; `line`: below 2^40.
  void Append(std::span<const uint32_t> tokens, size_t file, int64_t line);
  void Commit();

  int64_t samples() const { return std::ssize(lines_); }
  int64_t tokens() const { return begins_.back(); }

 private:
  AtomicOutput output_;
  std::vector<int64_t> begins_{0}, lines_;
};

class SampleFile : public SampleStore {
 public:
  // `inputs`: the files that lines are of. `noun`: what a sample is. Maps the file, so ranks of a
  // host share its pages. Throws DataError that names the file where it is not as above.
  SampleFile(const std::string& path, std::string noun, std::vector<DataFile> inputs,
             std::string read_as = "");

  const std::vector<DataFile>& inputs() const { return inputs_; }
  // How many lines had a form of another program, and which, in words; may be empty.
  const std::string& read_as() const { return read_as_; }

  int64_t size() const override { return samples_; }
  int64_t Begin(int64_t i) const override { return begins_[i]; }
  int64_t Targets(int64_t i, int64_t n) const override;
  void Read(int64_t i, std::span<int32_t> tokens, std::span<float> weights) const override;
  std::string Noun() const override { return noun_; }
  std::string Describe() const override;
  std::string Where(int64_t i) const override;  // "a.jsonl, line 17".
  TokenPlace PlaceOf(int64_t i, int64_t token) const override;

 private:
  [[noreturn]] void Fail(const std::string& what) const;

  FileContents contents_;
  std::string noun_;
  std::vector<DataFile> inputs_;
  std::string read_as_;
  int64_t samples_ = 0;
  const uint32_t* tokens_ = nullptr;
  const int64_t* begins_ = nullptr;
  const int64_t* lines_ = nullptr;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_SAMPLES_SAMPLE_FILE_H_
