// The steps of a choice, and those of each one that a run makes: what is held, told, asked, agreed
// on and recorded.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/trainer/comm/ranks.h"
#include "trainer/core/errors.h"
#include "trainer/engine/gemm_algorithms.h"
#include "trainer/loop/choice.h"
#include "trainer/loop/gemm_choice.h"
#include "trainer/loop/gpu_transport.h"
#include "trainer/loop/kernel_choice.h"
#include "trainer/loop/resolve.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using Words = std::vector<std::string>;

Recipe Tiny(const Words& overrides = {}) {
  return ParseRecipe({{"tiny",
                       "model: {family: gpt2, hidden_size: 32, num_hidden_layers: 2,\n"
                       "        num_attention_heads: 2, vocab_size: 64,\n"
                       "        max_position_embeddings: 16}\n"
                       "data: {train: {source: synthetic}, valid: null, seq_len: 16}\n"}},
                     overrides);
}

// Takes its own number from held, or asks; the sum of all is taken.
class Sum final : public Choice {
 public:
  explicit Sum(bool meets) : meets_(meets) {}
  ChoiceId id() const override { return ChoiceId::kTransport; }
  bool meets() const override { return meets_; }
  std::string Hold(const Choosing& c) const override { return c.checkpoint; }
  std::string Tell(const Choosing& c) const override { return c.held.empty() ? "ask" : c.held; }
  bool Asks(const Choosing& c) const override { return c.told[0] == "ask"; }
  std::string Ask(Choosing& c) const override {
    if (c.algorithms == "broken") throw DeviceError("broken");
    c.how = "asked ";
    return std::to_string(10 * (c.run.place.rank + 1));
  }
  std::string Agree(const Choosing& c) const override {
    int sum = 0;
    for (const std::string& one : Asks(c) ? c.answers : c.told) sum += std::stoi(one);
    return std::to_string(sum);
  }
  Chosen Record(const std::string& agreed, Choosing& c) const override {
    return {.id = id(), .value = agreed, .line = c.how + c.told.at(c.mine)};
  }

 private:
  const bool meets_;
};

// "value how told" of each rank, or its error.
Words MakeSums(bool meets, const Words& held, const std::string& broken_of_last = "") {
  const int world = static_cast<int>(held.size());
  const auto make = [&](testing::Rank& rank) {
    Job job;
    job.store = rank.store;
    ResolvedRun run;
    run.place = {.rank = rank.rank, .world = world, .job = &job};
    Choosing choosing{run};
    choosing.checkpoint = held[static_cast<size_t>(rank.rank)];
    if (rank.rank == world - 1) choosing.algorithms = broken_of_last;
    Make(Sum(meets), choosing);
    const Chosen sum = run.Of(ChoiceId::kTransport);
    return sum.value + " " + sum.line;
  };
  Words ends;
  for (const testing::Outcome& outcome : testing::RunThreadRanks(world, make)) {
    ends.push_back(outcome.error.empty() ? outcome.result : outcome.error);
  }
  return ends;
}

TEST(Choices, AreMadeInFiveSteps) {
  EXPECT_EQ(MakeSums(/*meets=*/true, {"", "", ""}), Words(3, "60 asked ask"));
  EXPECT_EQ(MakeSums(/*meets=*/true, {"1", "2", "4"}), (Words{"7 1", "7 2", "7 4"}));
  // Each its own, which labels compare.
  EXPECT_EQ(MakeSums(/*meets=*/false, {"", "", ""}),
            (Words{"10 asked ask", "20 asked ask", "30 asked ask"}));
  EXPECT_EQ(MakeSums(/*meets=*/false, {"1", "2"}), (Words{"1 1", "2 2"}));
  EXPECT_EQ(MakeSums(/*meets=*/true, {""}), Words{"10 asked ask"});
}

TEST(Choices, OneRanksErrorIsThatOfAll) {
  for (const std::string& end : MakeSums(/*meets=*/true, {"", ""}, "broken")) {
    EXPECT_NE(end.find("rank 1: broken"), std::string::npos) << end;
  }
}

// The library before its algorithms, and who shares a GPU before what there is of it is shared out.
TEST(Choices, AreOneListInOrder) {
  Words names;
  for (const Choice* const choice : AllChoices()) {
    names.push_back(Name(choice->id()));
    const bool on_the_device = choice->when() == Choice::When::kOnTheDevice;
    EXPECT_EQ(on_the_device, choice->id() == ChoiceId::kAlgorithms) << names.back();
  }
  EXPECT_EQ(names, (Words{"library", "transport", "collective_blocks", "attention", "convolution",
                          "algorithms"}));
}

// A run of this machine's CPU, as it is before its choices.
ResolvedRun OnTheCpu(const Recipe& recipe) {
  ResolvedRun run;
  run.place.device.emplace();
  *run.recipe = recipe;
  run.shape = ShapeOf(recipe.model);
  return run;
}

TEST(Choices, OnTheCpuAreOurOwn) {
  ResolvedRun run = OnTheCpu(Tiny());
  Choosing choosing{run};
  MakeAll(Choice::When::kBeforeThePlan, choosing);
  MakeAll(Choice::When::kOnTheDevice, choosing);
  EXPECT_EQ(run.chosen.size(), 4u);  // No algorithms.
  Labels labels;
  for (const Chosen& one : run.chosen) {
    EXPECT_EQ(one.value, "") << Name(one.id);
    EXPECT_EQ(one.line, "") << Name(one.id);
    labels.insert(labels.end(), one.labels.begin(), one.labels.end());
  }
  EXPECT_EQ(labels, (Labels{{"cuBLASLt", GpuLibraryVersionText(0)},
                            {"NCCL", "none"},
                            {"attention", "own kernels"}}));
  EXPECT_EQ(run.options.executor.attention, AttentionBackend::kOwn);
  EXPECT_FALSE(run.library.function);
}

TEST(AttentionChoice, IsNotAskedOfAMachineThatIsNotHere) {
  for (const auto& [settings, backend] : std::vector<std::pair<Words, AttentionBackend>>{
           {{}, AttentionBackend::kCudnn},
           {{"run.deterministic=true"}, AttentionBackend::kCudnnDeterministic},
           {{"model.attention_dropout=0.5"}, AttentionBackend::kOwn},
           {{"train.attention=math"}, AttentionBackend::kMath}}) {
    ResolvedRun run = OnTheCpu(Tiny(settings));
    run.place.device.reset();
    run.target.device = DeviceType::kCuda;
    Choosing choosing{run};
    Make(AttentionChoice(), choosing);
    EXPECT_EQ(run.options.executor.attention, backend);
    EXPECT_EQ(run.Of(ChoiceId::kAttention).value, "");
  }
}

// Convolutions are planned as cuDNN's on a GPU that is not here, and as our own elsewhere.
TEST(ConvolutionChoice, IsNotAskedOfAMachineThatIsNotHere) {
  for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
    ResolvedRun run = OnTheCpu(Tiny());
    run.place.device.reset();
    run.target.device = device;
    Choosing choosing{run};
    Make(ConvolutionChoice(), choosing);
    EXPECT_EQ(run.options.executor.convolution.cudnn, device == DeviceType::kCuda);
    EXPECT_TRUE(run.convolutions.empty());
    EXPECT_EQ(run.Of(ChoiceId::kConvolution).value, "");
  }
}

// The name that a rank has found is compared, but for the reason why it has no cuDNN.
TEST(ConvolutionChoice, IsComparedByName) {
  ResolvedRun run = OnTheCpu(Tiny());
  Choosing choosing{run};
  EXPECT_FALSE(ConvolutionChoice().meets());
  EXPECT_EQ(ConvolutionChoice().Record("", choosing).labels, Labels());
  run.options.executor.convolution.cudnn = true;
  const Chosen cudnn = ConvolutionChoice().Record("cuDNN 9.19.0", choosing);
  EXPECT_EQ(cudnn.line, "convolutions: cuDNN 9.19.0");
  EXPECT_EQ(cudnn.labels, (Labels{{"convolutions", "cuDNN 9.19.0"}}));
  run.options.executor.convolution.cudnn = false;
  const Chosen own = ConvolutionChoice().Record("own kernels (there is no cuDNN)", choosing);
  EXPECT_EQ(own.value, "own kernels (there is no cuDNN)");
  EXPECT_EQ(own.labels, (Labels{{"convolutions", "own kernels"}}));
}

// Math is our own kernels' on every machine, and never cuDNN's.
TEST(AttentionChoice, IsMathWhereTheRecipeSaysSo) {
  ResolvedRun run = OnTheCpu(Tiny({"train.attention=math"}));
  Choosing choosing{run};
  Make(AttentionChoice(), choosing);
  EXPECT_EQ(run.options.executor.attention, AttentionBackend::kMath);
  const std::string name = "own kernels (train.attention: math)";
  EXPECT_EQ(run.Of(ChoiceId::kAttention).value, name);
  EXPECT_EQ(run.Of(ChoiceId::kAttention).line, "attention: " + name);
  EXPECT_EQ(run.Of(ChoiceId::kAttention).labels, (Labels{{"attention", name}}));
  for (const DeviceType device : {DeviceType::kCpu, DeviceType::kCuda}) {
    EXPECT_EQ(AttentionToPlan(*run.recipe, run.shape, device), AttentionBackend::kMath);
  }
  PrepareAttention(*run.recipe, run.shape, AttentionBackend::kMath);  // Looks for no cuDNN.
}

// The name that a rank has found goes into files and to people, and is compared.
TEST(AttentionChoice, IsComparedByName) {
  ResolvedRun run = OnTheCpu(Tiny());
  Choosing choosing{run};
  choosing.told = {""};
  choosing.answers = {"cuDNN 9.19.0"};
  EXPECT_FALSE(AttentionChoice().meets());
  run.options.executor.attention = AttentionBackend::kCudnn;
  const std::string agreed = AttentionChoice().Agree(choosing);
  const Chosen cudnn = AttentionChoice().Record(agreed, choosing);
  EXPECT_EQ(cudnn.value, "cuDNN 9.19.0");
  EXPECT_EQ(cudnn.line, "attention: cuDNN 9.19.0");
  EXPECT_EQ(cudnn.labels, (Labels{{"attention", "cuDNN 9.19.0"}}));
  run.options.executor.attention = AttentionBackend::kOwn;
  const Chosen own = AttentionChoice().Record("own kernels (there is no cuDNN)", choosing);
  EXPECT_EQ(own.value, "own kernels (there is no cuDNN)");
  EXPECT_EQ(own.labels, (Labels{{"attention", "own kernels"}}));
}

TEST(TransportChoice, HoldsNothing) {
  ResolvedRun run = OnTheCpu(Tiny());
  Choosing choosing{run};
  for (const Choice* const choice : {&TransportChoice(), &AttentionChoice(), &LibraryChoice()}) {
    EXPECT_EQ(choice->Hold(choosing), "") << Name(choice->id());
  }
}

// A library that knows no algorithm, or every one.
class Library final : public GemmLibrary {
 public:
  explicit Library(bool knows) : knows_(knows) {}
  bool Multiply(const CudaStreamHandle&, int64_t, int64_t, int64_t, const GemmOperand&,
                const GemmOperand&, const GemmResult&, const GemmEpilogue&) override {
    return false;
  }
  std::optional<GemmShape> Resolve(const GemmShape& shape) override { return shape; }
  std::vector<GemmAlgorithm> Candidates(const GemmShape&, int) override { return {}; }
  bool Use(const GemmShape& shape, const GemmAlgorithm&) override {
    if (knows_) used.push_back(shape.Text());
    return knows_;
  }
  std::vector<Usage> Usages() const override { return {}; }
  std::vector<std::string> Refusals() const override { return {}; }

  Words used;

 private:
  const bool knows_;
};

class AlgorithmsTest : public ::testing::Test {
 protected:
  AlgorithmsTest() {
    run_.place.world = 3;
    run_.place.device.emplace().name = "B";
    run_.chosen = {{.id = ChoiceId::kLibrary, .value = "cuBLASLt 13.1.0"}};
    choosing_.told = {"A", "B", "B"};
    choosing_.mine = 2;
  }

  ResolvedRun Resolved(const Words& overrides = {}) {
    return fsdp::Resolve(Tiny(overrides), PlaceToBench(3, DeviceType::kCuda));
  }

  ResolvedRun run_ = Resolved();
  Choosing choosing_{run_};
  const Choice& choice_ = AlgorithmsChoice();
};

TEST_F(AlgorithmsTest, AreThoseOfTheFirstWithSuchAGpu) {
  EXPECT_FALSE(choice_.Concerns(choosing_));  // Without a library.
  Library library(/*knows=*/true);
  choosing_.products = &library;
  EXPECT_TRUE(choice_.Concerns(choosing_));
  EXPECT_EQ(choice_.Tell(choosing_), "B");
  EXPECT_EQ(choice_.Ask(choosing_), "");  // That is rank 1's to answer.
  choosing_.answers = {"of A", "of B", ""};
  EXPECT_EQ(choice_.Agree(choosing_), "of B");
}

// Kernels of our own multiply the rows of experts.
TEST_F(AlgorithmsTest, AreNotForGroups) {
  const ResolvedRun run = Resolved({"model.family=moe", "model.moe_intermediate_size=40"});
  Library library(/*knows=*/true);
  const std::vector<GemmShape> shapes = StepGemmShapes(*run.model, run.options, 3, library);
  EXPECT_FALSE(shapes.empty());
  for (const GemmShape& shape : shapes) {
    for (const int64_t side : {shape.m, shape.n, shape.k}) {
      EXPECT_TRUE(side != 40 && side != 80) << shape.Text();
    }
  }
}

TEST_F(AlgorithmsTest, HoldWhereBitsAreToStay) {
  choosing_.algorithms = "recorded";
  EXPECT_EQ(choice_.Hold(choosing_), "");
  run_.recipe->run.deterministic = true;
  EXPECT_EQ(choice_.Hold(choosing_), "recorded");
  EXPECT_THROW(choice_.Ask(choosing_), ConfigError);  // There are two kinds of GPU.
  choosing_.told = {"B", "B", "B"};
  choosing_.mine = 0;
  choosing_.checkpoint = "step_3";
  choosing_.held = "recorded";
  Library library(/*knows=*/true);
  choosing_.products = &library;
  EXPECT_THROW(choice_.Ask(choosing_), CheckpointError);  // No JSON of algorithms.
  choosing_.held = ToJson({"cuBLASLt 12.9.0", "B", /*deterministic=*/true, 0, {}});
  try {
    choice_.Ask(choosing_);
    ADD_FAILURE() << "went on";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("step_3 was computed by cuBLASLt 12.9.0 on B"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(AlgorithmsTest, AreTakenUpOrRefused) {
  Library knows(/*knows=*/true), knows_none(/*knows=*/false);
  GemmAlgorithms all{"cuBLASLt 13.1.0", "B", /*deterministic=*/false, 0, {}};
  for (const GemmShape& shape : StepGemmShapes(*run_.model, run_.options, 3, knows)) {
    all.by_shape[shape.Text()] = {};
  }
  ASSERT_FALSE(all.by_shape.empty());
  choosing_.products = &knows;
  const Chosen chosen = choice_.Record(ToJson(all), choosing_);
  EXPECT_EQ(chosen.value, ToJson(all));  // As a checkpoint has it.
  EXPECT_EQ(chosen.line, "");            // The first rank says it.
  EXPECT_EQ(knows.used.size(), all.by_shape.size());
  choosing_.products = &knows_none;
  try {
    choice_.Record(ToJson(all), choosing_);
    ADD_FAILURE() << "taken up";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("cuBLASLt does not know rank 1's algorithm for "),
              std::string::npos)
        << error.what();
  }
  // Who has found them says so.
  std::string said;
  choosing_.say = [&](std::string_view line) { said = line; };
  choosing_.how = "3 shapes timed in 1 ms";
  run_.library.path = "lib.so";
  EXPECT_EQ(choice_.Record(ToJson(all), choosing_).line, said);
  EXPECT_EQ(said, "products by cuBLASLt 13.1.0 (lib.so), 3 shapes timed in 1 ms");
}

}  // namespace
}  // namespace fsdp
