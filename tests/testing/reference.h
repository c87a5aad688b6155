// A model of tests/fixtures, held to PyTorch's results in float64 by the rule of
// tools/reference/README.md.
#ifndef FSDP_TRAIN_TESTS_TESTING_REFERENCE_H_
#define FSDP_TRAIN_TESTS_TESTING_REFERENCE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tests/testing/json.h"
#include "tests/testing/tiny_run.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/data/row_source.h"

namespace fsdp::testing {

// A tensor of F64, or of a type that ReadFloat() reads.
std::vector<double> ReadDoubles(const SafetensorsReader& file, const std::string& name);

class Reference {
 public:
  // `folder`: tests/fixtures/<family>/<model>. `set_shape` reads its config.json, with the
  // fixture's `case` in it, into a run.
  using SetShape = std::function<void(const Json& config, TinyRun& run)>;
  // The rows of samples that are no sequences of tokens, and the unit that their targets count in
  // (may be empty). Null: sequences.
  using RowsOf = std::function<std::shared_ptr<const RowSource>(
      const Json& config, const std::vector<int32_t>& tokens, const std::vector<float>& weights)>;
  // `adapters`: a file whose tensors and settings come before the folder's; empty: none.
  Reference(const std::string& folder, SetShape set_shape, RowsOf rows_of = nullptr,
            const std::string& adapters = "");

  std::vector<double> Doubles(const std::string& name) const;
  std::vector<int32_t> Ints(const std::string& name) const;
  // Those of the adapters' file, if there is one.
  const std::vector<std::string>& Names() const {
    return adapters_ ? adapters_->Names() : results_.Names();
  }
  bool Has(const std::string& name) const;

  // The batch, once, without an update: one micro-batch size for all worlds, so that some ranks
  // have rows left over and some runs several micro-batches. The returned run refers to this.
  TinyRun BatchRun() const;
  // 20 steps: a name of Trainings().
  TinyRun TrainRun(const std::string& name) const;
  std::vector<std::string> Trainings() const;

 private:
  // The file that has the tensor: the adapters' or `other`.
  const SafetensorsReader& FileOf(const std::string& name, const SafetensorsReader& other) const;
  int64_t seq_len() const { return settings_.at("case").at("sequence"); }
  TinyRun Run(int64_t global_batch_size, const std::string& positions) const;

  SafetensorsReader weights_, results_;
  std::optional<SafetensorsReader> adapters_;
  Json settings_, config_;
  SetShape set_shape_;
  RowsOf rows_of_;
  std::vector<int32_t> batch_tokens_, train_tokens_;
  std::vector<float> batch_weights_;
};

// Where batch norms are over all ranks: each rank gets its share of a step, in one micro-batch.
void SpreadBatchNorms(TinyRun& run);

// Compares differences with the accepted ones; prints the worst ratio, so that drift shows.
class Judge {
 public:
  explicit Judge(const Reference& reference) : reference_(reference) {}
  ~Judge();

  // Logits, loss, norm and every gradient of a BatchRun().
  void Batch(const TinyResult& ours);
  // Losses and norms of each TrainRun(), as `train` runs it, and the learning rates.
  void Trainings(const std::function<TinyResult(const TinyRun&)>& train);

 private:
  void Training(const std::string& name, const TinyRun& run, const TinyResult& ours);
  void Tensor(const std::string& name, const std::vector<float>& ours, double norm);
  // `error`: PyTorch's largest so far.
  void Number(const std::string& name, double ours, double theirs, double error);
  // Returns the largest error.
  double Steps(const std::string& name, const std::vector<float>& ours);
  void Check(const std::string& name, double difference, double accepted);

  const Reference& reference_;
  double worst_ = 0;
  std::string where_;
  int checks_ = 0;
};

using ReferenceCase = std::tuple<const char*, int, Strategy, bool>;  // bool: processes.
std::string ReferenceCaseName(const ::testing::TestParamInfo<ReferenceCase>& info);
// The worlds of a family's tests. Under AddressSanitizer, which takes ten times as long and learns
// nothing from more worlds, they are 3 threads and 2 processes.
struct ReferenceWorlds {
  std::vector<int> threads, processes;
  int with_every_strategy = 0;  // A world of threads; the others have some.
};
enum class ReferenceRanks { kAlone, kThreads, kProcesses };
// Models, worlds and strategies: a run takes half of the pairs of a model and a world, each with
// one strategy, and six runs take all.
std::vector<ReferenceCase> ReferenceCases(std::span<const char* const> models,
                                          const ReferenceWorlds& worlds, ReferenceRanks ranks);

// The base of a family's tests: one model of it, in one world.
class ReferenceSuite : public ::testing::TestWithParam<ReferenceCase> {
 protected:
  // `family`: tests/fixtures/<family>.
  ReferenceSuite(const std::string& family, Reference::SetShape set_shape,
                 Reference::RowsOf rows_of = nullptr);

  void HoldBatch() { judge_.Batch(Run(reference_.BatchRun())); }
  void HoldTrainings() {
    judge_.Trainings([this](const TinyRun& run) { return Run(run); });
  }

 private:
  TinyResult Run(TinyRun run) const;

  const Reference reference_;
  Judge judge_{reference_};
};

}  // namespace fsdp::testing

// Defines both tests of the suite, a class derived from ReferenceSuite: for each model alone, and
// in the worlds that follow, on threads and on processes.
#define FSDP_REFERENCE_TESTS(suite, models, ...)                        \
  TEST_P(suite, LogitsLossAndGradients) { HoldBatch(); }                \
  TEST_P(suite, TwentySteps) { HoldTrainings(); }                       \
  FSDP_REFERENCE_CASES_(Alone, kAlone, suite, models, __VA_ARGS__);     \
  FSDP_REFERENCE_CASES_(Threads, kThreads, suite, models, __VA_ARGS__); \
  FSDP_REFERENCE_CASES_(Processes, kProcesses, suite, models, __VA_ARGS__)
#define FSDP_REFERENCE_CASES_(name, ranks, suite, models, ...)                        \
  INSTANTIATE_TEST_SUITE_P(name, suite,                                               \
                           ::testing::ValuesIn(::fsdp::testing::ReferenceCases(       \
                               models, ::fsdp::testing::ReferenceWorlds{__VA_ARGS__}, \
                               ::fsdp::testing::ReferenceRanks::ranks)),              \
                           ::fsdp::testing::ReferenceCaseName)

#endif  // FSDP_TRAIN_TESTS_TESTING_REFERENCE_H_
