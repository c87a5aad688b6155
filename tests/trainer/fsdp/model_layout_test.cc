#include "trainer/fsdp/model_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"
#include "models/shape.h"
#include "tests/testing/tiny_run.h"

namespace fsdp {
namespace {

using testing::TinyRun;

TEST(ModelLayout, AnUntiedEmbeddingAndHeadAreUnitsOfTheirOwn) {
  LlamaConfig config = TinyRun::TinyLlama();
  const auto layout = [&] { return MakeLayout(ShapesOf(Llama(config)), {}, 2); };
  std::vector<std::string> names;
  for (const FlatParameter& unit : layout().flat_parameters) names.push_back(unit.name);
  EXPECT_EQ(names, (std::vector<std::string>{"root", "model.embed_tokens", "model.layers.0",
                                             "model.layers.1", "head"}));
  EXPECT_EQ(layout().flat_parameters[0].size, 0);
  config.tie_word_embeddings = true;
  names.clear();
  for (const FlatParameter& unit : layout().flat_parameters) names.push_back(unit.name);
  EXPECT_EQ(names, (std::vector<std::string>{"root", "model.layers.0", "model.layers.1"}));
}

// A unit with experts has those of one piece alone.
TEST(ModelLayout, PiecesTakeTheMemoryOfTheirExperts) {
  MoeConfig config = TinyRun::TinyMoe();
  config.num_experts = 6;
  const auto gathered = [&](int64_t pieces) {
    config.expert_pieces = pieces;
    const Layout layout = MakeLayout(ShapesOf(*MakeModel(config)), {}, 1);
    int64_t most = 0;
    for (int u = 1; u < std::ssize(layout.units); ++u) {
      const FlatParameter& flat = layout.flat_parameters[layout.units[u].flat_parameters[0]];
      const bool has_experts = std::ranges::any_of(flat.parameters, [](const Placement& p) {
        return p.name.find("experts.down_proj") != std::string::npos;
      });
      if (has_experts) most = std::max(most, layout.GatheredBytes(u));
    }
    return most;
  };
  const int64_t experts = 6 * 3 * config.hidden_size * config.moe_intermediate_size * 4;
  constexpr int64_t kPadding = 2 * kShardAlignment * 4;
  EXPECT_GT(gathered(0), experts + kPadding);
  for (const int64_t pieces : {1, 2, 3, 6}) {
    EXPECT_GE(gathered(pieces), experts / pieces);
    EXPECT_LT(gathered(pieces), experts / pieces + kPadding);
  }
}

// In every published model the root holds all that is in no block, and each block is as it was.
TEST(ModelLayout, TheRootHoldsWhatIsInNoBlock) {
  int models = 0, moved = 0;
  for (const ModelPreset& preset : ModelPresets()) {
    SCOPED_TRACE(preset.name);
    const std::shared_ptr<Model> model = MakeModel(preset.shape);
    const std::vector<SegmentShape> shapes = ShapesOf(*model);
    const Layout units = MakeLayout(shapes, {}, 8);
    const Layout root = MakeLayout(shapes, {.outside = WrapPolicy::Outside::kRoot}, 8);
    std::set<std::string> outside, in_root;
    int blocks = 0;
    for (size_t s = 0; s < shapes.size(); ++s) {
      if (shapes[s].is_block) {
        EXPECT_EQ(root.unit_of_segment[s], ++blocks);
        const int f = root.units[blocks].flat_parameters[0];
        const int was = units.units[units.unit_of_segment[s]].flat_parameters[0];
        EXPECT_EQ(root.flat_parameters[f].name, units.flat_parameters[was].name);
        EXPECT_EQ(root.flat_parameters[f].size, units.flat_parameters[was].size);
      } else {
        EXPECT_EQ(root.unit_of_segment[s], 0);
      }
      for (const ParameterShape& p : shapes[s].parameters) {
        if (!shapes[s].is_block || p.shared) outside.insert(p.name);
      }
    }
    for (const int f : root.units[0].flat_parameters) {
      for (const Placement& p : root.flat_parameters[f].parameters) in_root.insert(p.name);
    }
    EXPECT_EQ(in_root, outside);
    EXPECT_EQ(std::ssize(root.units), 1 + blocks);
    ++models;
    moved += root.units.size() != units.units.size();
  }
  EXPECT_GT(moved, 0);
  EXPECT_LT(moved, models);
}

// One for each choice of dtypes.
TEST(ModelLayout, UnitsOfTwoDTypesAreTwoFlatParameters) {
  const Gpt2 model(TinyRun::TinyConfig());
  const auto split = [](const Parameter& p) {
    DTypes dtypes;
    if (p.name().ends_with("weight")) dtypes.state = DType::kBFloat16;
    return dtypes;
  };
  const Layout one = MakeLayout(ShapesOf(model), {}, 2);
  const Layout two = MakeLayout(ShapesOf(model, split), {}, 2);
  ASSERT_EQ(one.units.size(), two.units.size());
  for (int u = 1; u < static_cast<int>(one.units.size()); ++u) {
    EXPECT_EQ(one.TrainableFlatParameters(u).size(), 1u);
    EXPECT_EQ(two.TrainableFlatParameters(u).size(), 2u);
  }
}

// A frozen unit is gathered, but has no backward and nothing to reduce.
TEST(ModelLayout, TheScheduleKnowsWhatIsFrozen) {
  Gpt2 model(TinyRun::TinyConfig());
  const Mesh mesh = MeshFor({}, /*rank=*/1, /*world=*/2);
  const Schedule all = ScheduleFor({}, model, mesh, Mode::kTrain);
  EXPECT_EQ(all.options.backward_from, 0);
  EXPECT_TRUE(std::ranges::all_of(all.options.units, &UnitRow::trains));
  for (int s = 0; s < 2; ++s) {
    for (Parameter* p : model.segments()[s].parameters) p->Freeze();
  }
  const Schedule some = ScheduleFor({}, model, mesh, Mode::kTrain);
  EXPECT_EQ(some.options.backward_from, 2);
  for (size_t u = 0; u < some.options.units.size(); ++u) {
    EXPECT_EQ(some.options.units[u].trains, u != 1) << u;  // The root holds the last norm.
  }
}

// Routing is fp32 whatever a recipe lists.
TEST(ModelLayout, RoutersStayFp32) {
  std::string kept;
  const auto model = MakeModel(testing::TinyRun::TinyMoe());
  for (const Parameter* p : model->segments()[2].parameters) {
    if (KeptInFp32({}, *p)) kept += p->name() + " ";
  }
  EXPECT_EQ(kept, "model.layers.1.mlp.gate.weight model.layers.1.mlp.shared_expert_gate.weight ");
}

}  // namespace
}  // namespace fsdp
