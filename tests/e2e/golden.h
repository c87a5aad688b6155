// The results of a covering set of runs, to the bit: every number of their steps and evaluations,
// and a hash of every tensor of their last checkpoint, as golden.txt holds them.
//
// The bits are those of one compiler, one libm, the kernels of AVX2, with tiles or without, and one
// thread a rank. A change
// of the code reproduces all of them, or says in its commit which bits change and why; then
//
//   export GOLDEN_WRITE=$PWD/tests/e2e/golden.txt
//   bazel run --test_sharding_strategy=disabled //tests/e2e:golden_test
//
// writes the runs' new results in place of the old ones (with -- --gtest_filter=..., of some
// runs). A failure names the run, the step's numbers and the tensors that differ.
#ifndef FSDP_TRAIN_TESTS_E2E_GOLDEN_H_
#define FSDP_TRAIN_TESTS_E2E_GOLDEN_H_

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {

// Quantity and value: "step 2 loss", "5.5"; "tensor wte.weight m", "0123abcd". In the order of
// steps, then of names.
using Quantities = std::vector<std::pair<std::string, std::string>>;

struct GoldenRun {
  std::string name;
  Strings settings = {};  // For --set; $DIR and $FIXTURES are places, see Settings().
  int world = 1;
  int64_t resume_at = 0;         // When the run is done, it resumes from this step; 0: never.
  int resume_world = 0;          // Ranks that resume.
  Strings resume_settings = {};  // For the resumed run, on top of `settings`.
  std::string isa = "avx2";

  std::string Describe() const;  // One line.
  Variables Environment() const { return {{"FSDP_TRAIN_ISA", isa}}; }
};
void PrintTo(const GoldenRun& run, std::ostream* out);  // For googletest.

// Runs that have every pair of values of two settings, and cases that pairs alone do not reach. New
// keys get runs of their own at the end: the others stay as they are.
std::vector<GoldenRun> GoldenRuns();
GoldenRun GoldenRunOf(const std::string& name);

// Writes the recipe and the files that runs read into `directory`.
std::string PutInputs(const TempDir& directory);
// The settings with $DIR and $FIXTURES filled in.
Strings Settings(const Strings& settings, const std::string& directory);

std::string GoldenHash(std::string_view bytes);  // 8 hexadecimal digits.

// A checkpoint's tensors by state and name, whatever its world, wrapping and format.
Quantities TensorsOf(const std::string& checkpoint);
// Steps, evaluations and samples of a run directory, and the tensors of its newest checkpoint.
Quantities QuantitiesOf(const std::string& run_directory);

// golden.txt, a section for each name; where GOLDEN_WRITE is set, the file that it names.
class GoldenFile {
 public:
  GoldenFile();

  std::vector<std::string> Names() const;
  // Compares with the file; returns the differences in words, empty without any. If the file is to
  // be written, takes the results over instead.
  std::string Differences(const std::string& name, const std::string& description,
                          const Quantities& quantities);

 private:
  struct Section {
    std::string name, description;
    Quantities quantities;
  };
  std::string Write() const;

  std::string path_ = "tests/e2e/golden.txt";
  bool writes_ = false;
  std::vector<Section> sections_;  // By name.
};

// A googletest failure that names the results that differ from golden.txt.
void ExpectGolden(const GoldenRun& run, const std::string& run_directory);

}  // namespace fsdp::e2e

#endif  // FSDP_TRAIN_TESTS_E2E_GOLDEN_H_
