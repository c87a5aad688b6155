#include "trainer/weights/initial_weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/shape.h"
#include "tests/testing/fresh_directory.h"
#include "tests/testing/saved_checkpoint.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/nn/model.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::FreshDirectory;
using testing::SavedCheckpoint;

// As an executor with several compute threads asks for them.
TEST(InitialWeights, ACheckpointIsReadFromAnyThread) {
  const std::string checkpoint = SavedCheckpoint("initial");
  const auto model = MakeModel(ReadInitialShape(checkpoint));
  const FillParameter fill = OpenInitialWeights(checkpoint).parameters;
  ThreadPool pool(4, /*spin=*/false);
  for (const ModelSegment& segment : model->segments()) {
    for (const Parameter* p : segment.parameters) {
      const int64_t n = p->shape().NumElements();
      std::vector<float> want(n), got(n);
      fill(*p, 0, want);
      // Each of the threads reads all of it, from either file in turn.
      pool.Run([&](int t) {
        std::vector<float> own(n);
        for (int64_t i = 0; i < 200; ++i) {
          const int64_t at = (i % 2 == 0 ? i / 2 : 199 - i / 2) * n / 200;
          const int64_t end = (i % 2 == 0 ? i / 2 + 1 : 200 - i / 2) * n / 200;
          fill(*p, at, std::span(own).subspan(at, end - at));
        }
        if (t == 0) got = std::move(own);
      });
      EXPECT_EQ(got, want) << p->name();
    }
  }
}

// A run that starts from one with adapters starts from what those made of the weights.
TEST(InitialWeights, AdaptersAreMerged) {
  const std::string base = SavedCheckpoint("base");
  const std::string adapted = SavedCheckpoint(
      "adapted", {"model.init_from=" + base, "model.lora={rank: 2, targets: ['*k_proj*']}",
                  "optimizer.lr=0.5", "schedule={name: constant}"});
  const auto model = MakeModel(ReadInitialShape(adapted));
  const FillParameter before = OpenInitialWeights(base).parameters,
                      after = OpenInitialWeights(adapted).parameters;
  int changed = 0;
  for (const ModelSegment& segment : model->segments()) {
    for (const Parameter* p : segment.parameters) {
      std::vector<float> old(p->shape().NumElements()), now(old.size());
      before(*p, 0, old);
      after(*p, 0, now);
      for (const ParameterSlice& slice : p->slices()) {
        const auto part = [&](const std::vector<float>& v) {
          return std::vector<float>(v.begin() + slice.begin,
                                    v.begin() + slice.begin + slice.shape.NumElements());
        };
        const bool adapted_slice = slice.name.find("k_proj.weight") != std::string::npos;
        EXPECT_EQ(part(old) != part(now), adapted_slice) << slice.name;
        changed += adapted_slice;
      }
    }
  }
  EXPECT_EQ(changed, 2);
}

// A run directory means its latest checkpoint, and the tokenizer of its run.
TEST(InitialWeights, ARunDirectoryMeansItsLatestCheckpoint) {
  const std::string text = FreshDirectory("text") + "/t.txt";
  WriteAtomicFile(text, std::string(200, 'a'));
  const std::string checkpoint = SavedCheckpoint(
      "run", {"data.train={source: text, paths: [" + text + "], tokenizer: bytes}"});
  const std::string run = fs::path(checkpoint).parent_path().parent_path();
  for (const std::string& directory : {run, run + "/checkpoints", checkpoint}) {
    EXPECT_EQ(FindInitialWeights(directory), checkpoint);
    EXPECT_EQ(ReadInitialShape(directory), ReadInitialShape(checkpoint));
    EXPECT_EQ(IgnoredKeys(directory), std::vector<std::string>());
    EXPECT_EQ(InitialTokenizer(directory).name, "bytes");
    EXPECT_NO_THROW(OpenInitialWeights(directory));
  }
  const std::string empty = FreshDirectory("empty");
  try {
    FindInitialWeights(empty);
    ADD_FAILURE() << "found";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(std::string(error.what()),
              "model.init_from: " + empty +
                  " holds neither a config.json nor a manifest.json, nor a run to begin from: " +
                  empty + ": holds no manifest.json, and no checkpoint below it");
  }
}

}  // namespace
}  // namespace fsdp
