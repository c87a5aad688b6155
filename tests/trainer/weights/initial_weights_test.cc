#include "trainer/weights/initial_weights.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/make_model.h"
#include "tests/testing/saved_checkpoint.h"
#include "trainer/runtime/thread_pool.h"

namespace fsdp {
namespace {

using testing::SavedCheckpoint;

// As an executor with several compute threads asks for them.
TEST(InitialWeights, ACheckpointIsReadFromAnyThread) {
  const std::string checkpoint = SavedCheckpoint("initial");
  const auto model = MakeModel(ReadInitialShape(checkpoint));
  const Executor::FillParameter fill = OpenInitialWeights(checkpoint);
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
  const Executor::FillParameter before = OpenInitialWeights(base),
                                after = OpenInitialWeights(adapted);
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

}  // namespace
}  // namespace fsdp
