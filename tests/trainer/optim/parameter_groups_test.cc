#include "trainer/optim/parameter_groups.h"

#include <gtest/gtest.h>

#include "models/gpt2/gpt2.h"
#include "tests/testing/tiny_run.h"
#include "trainer/data/tokens/token_batch.h"

namespace fsdp {
namespace {

using testing::TinyRun;

ParameterGroup Plain(const char* match) { return {match, {}, 1, false}; }
ParameterGroup Frozen(const char* match) { return {match, {}, 1, true}; }

std::vector<std::string> Trainable(const Model& model) {
  std::vector<std::string> names;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      if (p->trainable()) names.push_back(p->name());
    }
  }
  return names;
}

std::vector<std::string> MistakesOf(const std::vector<ParameterGroup>& groups) {
  Gpt2 model(TinyRun::TinyConfig());
  std::vector<std::string> messages;
  for (const GroupMistake& m : FreezeParameters(model, groups)) {
    messages.push_back(std::to_string(m.group) + ": " + m.message);
  }
  return messages;
}

TEST(ParameterGroups, TheFirstThatMatchesCounts) {
  const std::vector<ParameterGroup> groups = {{"*.h.0.*", 0.5, 1, false}, Plain("*.bias")};
  EXPECT_EQ(GroupOf(groups, "transformer.h.0.ln_1.bias"), &groups[0]);
  EXPECT_EQ(GroupOf(groups, "transformer.h.1.ln_1.bias"), &groups[1]);
  EXPECT_EQ(GroupOf(groups, "transformer.h.1.ln_1.weight"), nullptr);
  EXPECT_EQ(GroupOf({}, "x"), nullptr);
}

TEST(ParameterGroups, Freezes) {
  Gpt2 model(TinyRun::TinyConfig());
  const std::vector<std::string> all = Trainable(model);
  EXPECT_TRUE(FreezeParameters(model, {{"*ln_f*", {}, 1, false}, Frozen("*")}).empty());
  EXPECT_EQ(Trainable(model),
            (std::vector<std::string>{"transformer.ln_f.weight", "transformer.ln_f.bias"}));
  Gpt2 other(TinyRun::TinyConfig());
  EXPECT_TRUE(FreezeParameters(other, {{"*ln_f*", 0.5, 2, false}}).empty());
  EXPECT_EQ(Trainable(other), all);
}

TEST(ParameterGroups, MistakesAreNamed) {
  EXPECT_EQ(MistakesOf({Plain("*.biass"), Plain("*.bias"), Plain("*ln_f.bias")}),
            (std::vector<std::string>{
                "0: `*.biass` matches no parameter; a name is transformer.ln_f.bias",
                "2: `*ln_f.bias` matches only what earlier groups do"}));
  EXPECT_EQ(MistakesOf({Frozen("*")}),
            (std::vector<std::string>{"-1: every parameter is frozen: nothing to train"}));
}

class QkvModel final : public Model {
 public:
  const std::vector<ModelSegment>& segments() const override { return segments_; }
  void Loss(Tape&, const Batch&, float, View) const override {}
  BatchSpec Inputs(int64_t length) const override { return TokenInputs(length, 8); }
  const Parameter& qkv() const { return qkv_; }

 private:
  Parameter qkv_{"qkv", Shape{6, 2}, {{"q", 2}, {"k", 2}, {"v", 2}}};
  Parameter norm_{"norm", Shape{6}, Init{}, false};
  std::vector<ModelSegment> segments_{{"h.0", true, {&qkv_, &norm_}}};
};

TEST(ParameterGroups, AMatrixIsFrozenWhole) {
  QkvModel whole;
  EXPECT_TRUE(FreezeParameters(whole, {Frozen("[qkv]")}).empty());
  EXPECT_FALSE(whole.qkv().trainable());
  QkvModel part;
  const std::vector<GroupMistake> mistakes = FreezeParameters(part, {Frozen("q"), Frozen("v")});
  ASSERT_EQ(mistakes.size(), 1u);
  EXPECT_EQ(mistakes[0].message, "one matrix holds these, so all or none can be frozen: q k v");
}

}  // namespace
}  // namespace fsdp
