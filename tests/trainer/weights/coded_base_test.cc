#include "trainer/weights/coded_base.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/shape.h"
#include "tests/testing/error_of.h"
#include "tests/testing/saved_checkpoint.h"
#include "trainer/core/errors.h"
#include "trainer/fsdp/records.h"
#include "trainer/nn/lora.h"
#include "trainer/nn/model.h"
#include "trainer/ops/weight_codes.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

using testing::SavedCheckpoint;

// The parts of a parameter are those of the whole, whose slices are decoded records.
TEST(CodedBase, ReadsAnyPart) {
  const std::string base = SavedCheckpoint("base");
  for (const auto scales : {BaseScales::kFp32, BaseScales::k8Bit}) {
    const std::shared_ptr<Model> model = MakeModel(ReadInitialShape(base));
    for (const ModelSegment& segment : model->segments()) {
      for (Parameter* p : segment.parameters) p->Freeze();
    }
    ASSERT_TRUE(EncodeFrozen(*model, {.base = LoraBase::kNf4, .base_scales = scales}).empty());
    const FillParameter read = OpenInitialWeights(base).parameters;
    const CodedBase coded(read, RecordsOf(read), *model);
    int tried = 0;
    for (const ModelSegment& segment : model->segments()) {
      for (const Parameter* p : segment.parameters) {
        std::vector<float> all(static_cast<size_t>(p->shape().NumElements())), plain(all.size());
        coded.Fill(*p, 0, all);
        read(*p, 0, plain);
        if (p->code() == WeightCode::kNone) {
          EXPECT_EQ(all, plain) << p->name();
          continue;
        }
        for (const ParameterSlice& slice : p->slices()) {
          const auto n = static_cast<size_t>(slice.shape.NumElements());
          std::vector<uint8_t> records(
              static_cast<size_t>(CodedBytes(p->code(), slice.shape.NumElements())));
          coded.Records(*p, slice, 0, records);
          std::vector<float> want(n);
          DecodeRecords(p->code(), records.data(), want);
          EXPECT_TRUE(std::equal(want.begin(), want.end(), all.begin() + slice.begin))
              << slice.name;
        }
        double error = 0, norm = 0;
        for (size_t i = 0; i < all.size(); ++i) {
          error += (all[i] - plain[i]) * (all[i] - plain[i]);
          norm += plain[i] * plain[i];
        }
        EXPECT_LT(error, 0.02 * norm) << p->name();  // Four bits of normal values: 0.009.
        EXPECT_GT(error, 0) << p->name();
        const auto half = static_cast<int64_t>(all.size() / 2);
        for (const int64_t begin : {int64_t{1}, half, std::ssize(all) - 1}) {
          std::vector<float> part(
              static_cast<size_t>(std::min<int64_t>(77, std::ssize(all) - begin)));
          coded.Fill(*p, begin, part);
          EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin)) << p->name();
        }
        ++tried;
      }
    }
    EXPECT_GT(tried, 3);
  }
}

// Each element counts, at its place, and those of parts as those of the whole.
TEST(CodedBase, AHashIsOfAllFrozenWeights) {
  const std::string base = SavedCheckpoint("base");
  const std::shared_ptr<Model> model = MakeModel(ReadInitialShape(base));
  for (const ModelSegment& segment : model->segments()) {
    for (Parameter* p : segment.parameters) p->Freeze();
  }
  ASSERT_TRUE(EncodeFrozen(*model, {.base = LoraBase::kNf4}).empty());
  const FillParameter read = OpenInitialWeights(base).parameters;
  const auto hash_with = [&](const Parameter* changed, const std::function<void(float*)>& change) {
    const FillParameter other = [&](const Parameter& p, int64_t begin, std::span<float> values) {
      read(p, begin, values);
      if (&p == changed && begin == 0 && values.size() > 1) change(values.data());
    };
    return CodedBase(other, RecordsOf(read), *model).hash();
  };
  const uint64_t hash = hash_with(nullptr, nullptr);
  int tried = 0;
  for (const ModelSegment& segment : model->segments()) {
    for (const Parameter* p : segment.parameters) {
      if (p->code() != WeightCode::kNone) continue;
      EXPECT_NE(hash_with(p, [](float* values) { values[0] += 1; }), hash) << p->name();
      std::vector<float> all(static_cast<size_t>(p->shape().NumElements()));
      read(*p, 0, all);
      const uint64_t whole = HashOfValues(*p, 0, all);
      const auto half = all.size() / 2;
      EXPECT_EQ(HashOfValues(*p, 0, std::span(all).first(half)) +
                    HashOfValues(*p, static_cast<int64_t>(half), std::span(all).subspan(half)),
                whole);
      std::swap(all[0], all[half]);
      EXPECT_EQ(HashOfValues(*p, 0, all) == whole, all[0] == all[half]);
      ++tried;
    }
  }
  EXPECT_GT(tried, 3);
}

TEST(CodedBase, RefusesOtherWeights) {
  EXPECT_NO_THROW(RequireBase({"a", 17}, {"b", 17}, "run/step_1"));
  EXPECT_THAT(
      testing::ErrorOf<CheckpointError>([] {
        RequireBase({"a", 17}, {"b", 18}, "run/step_1");
      }),
      ::testing::AllOf(::testing::HasSubstr("run/step_1: its run's frozen weights are those of a, "
                                            "with the hash 0000000000000011"),
                       ::testing::HasSubstr("those of b have 0000000000000012")));
}

}  // namespace
}  // namespace fsdp
