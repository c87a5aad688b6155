// The paper's runs as docs/paper.md lists them: each line of its table is planned, at its worlds.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/e2e/run_binary.h"
#include "tests/testing/everything.h"

namespace fsdp::e2e {
namespace {

struct Curve {
  std::string figure, name, recipe;
  std::vector<int> worlds;
  int batch = 0;  // Samples of a GPU.
  Strings settings;

  Strings Flags(int world) const {
    const std::string all = std::to_string(batch * world);
    Strings flags = {"--config", "configs/paper/" + recipe + ".yaml"};
    flags.insert(flags.end(), {"--set", "train.micro_batch_size=" + std::to_string(batch)});
    flags.insert(flags.end(), {"--set", "train.global_batch_size=" + all});
    for (const std::string& setting : settings) flags.insert(flags.end(), {"--set", setting});
    return flags;
  }
};

std::string Trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" `"), end = text.find_last_not_of(" `");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// Between backquotes.
Strings Quoted(const std::string& text) {
  Strings parts;
  size_t at = 0;
  while ((at = text.find('`', at)) != std::string::npos) {
    const size_t end = text.find('`', at + 1);
    parts.push_back(text.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return parts;
}

std::vector<Curve> Curves() {
  std::vector<Curve> curves;
  std::ifstream page("docs/paper.md");
  for (std::string line; std::getline(page, line);) {
    Strings cells;
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(cell);
    if (cells.size() != 7 || cells[1] == " figure " || cells[1].starts_with("---")) continue;
    Curve curve;
    curve.figure = Trim(cells[1]);
    curve.name = Trim(cells[2]);
    curve.recipe = Trim(cells[3]);
    std::istringstream worlds(cells[4]);
    for (std::string world; std::getline(worlds, world, ',');) {
      curve.worlds.push_back(std::stoi(world));
    }
    curve.batch = std::stoi(cells[5]);
    curve.settings = Quoted(cells[6]);
    curves.push_back(curve);
  }
  return curves;
}

Json Planned(const Curve& curve, int world) {
  Strings plan = {"plan", "--json", "--hardware", "configs/hardware/a100-80gb.yaml"};
  plan.insert(plan.end(), {"--world-size", std::to_string(world)});
  plan.insert(plan.end(), {"--local-world-size", "8"});
  const Strings flags = curve.Flags(world);
  plan.insert(plan.end(), flags.begin(), flags.end());
  const Outcome outcome = Call(plan);
  const bool fits = curve.name.find("does not fit") == std::string::npos;
  EXPECT_EQ(outcome.code, fits ? 0 : 3) << outcome.Text();
  return outcome.out.empty() ? Json() : Json::parse(outcome.out);
}

TEST(Paper, EachCurveIsPlannedAtItsWorlds) {
  const std::vector<Curve> curves = Curves();
  std::set<std::string> figures;
  for (const Curve& curve : curves) {
    figures.insert(curve.figure);
    const size_t part = testing::Part(180) % curve.worlds.size();
    for (const int world :
         testing::Everything() ? curve.worlds : std::vector<int>{curve.worlds[part]}) {
      SCOPED_TRACE(curve.figure + ", " + curve.name + ", " + std::to_string(world));
      const Json plan = Planned(curve, world);
      if (plan.is_null()) continue;
      EXPECT_EQ(plan["world_size"], world);
      // A full GPU makes the allocator give back, where nothing holds the host.
      const bool unlimited = curve.name.find("no limiter") != std::string::npos;
      EXPECT_EQ(plan["alloc_retries"].get<int64_t>() > 0, unlimited);
      if (curve.recipe == "dhen-550m") {  // 768 G numbers of 2 bytes, over all ranks.
        EXPECT_GE(plan["memory"]["parameters"].get<double>(), 768e9 * 2 / world);
      }
    }
  }
  EXPECT_EQ(curves.size(), 29u);
  EXPECT_EQ(figures, (std::set<std::string>{"6a", "6b", "6c", "7a, 8a", "7b, 8b", "7c, 8c"}));
}

// Every recipe leaves embedding and head in the root, as the paper's wrapper does. The root of
// GPT-175B takes a value and a gradient in bf16 for each number in them.
TEST(Paper, TheRootHoldsEmbeddingAndHead) {
  const std::vector<Curve> curves = Curves();
  for (const Curve& curve : curves) {
    const std::string recipe = ReadFile("configs/paper/" + curve.recipe + ".yaml");
    EXPECT_NE(recipe.find("outside: root}"), std::string::npos) << curve.recipe;
  }
  const auto gpt = std::ranges::find(curves, "7b, 8b", &Curve::figure);
  ASSERT_NE(gpt, curves.end());
  Curve units = *gpt;
  units.settings.emplace_back("fsdp.auto_wrap.outside=units");
  const int world = gpt->worlds.front();
  const auto allocated = [&](const Curve& curve) {
    return Planned(curve, world)["memory"]["allocated_peak"].get<double>();
  };
  const double outside = (2 * 50000 + 2048) * 12288.0;
  EXPECT_NEAR(allocated(*gpt) - allocated(units), outside * (2 + 2), 0.02 * outside);
}

// On whatever machine this is: it fits, or does not.
TEST(Paper, EachRecipeRunsDry) {
  std::set<std::string> recipes;
  for (const Curve& curve : Curves()) {
    if (!recipes.insert(curve.recipe).second) continue;
    SCOPED_TRACE(curve.recipe);
    const int world = curve.worlds.front();
    Variables rank = Torchrun(/*rank=*/0, world, /*port=*/1);
    rank["LOCAL_WORLD_SIZE"] = "8";
    Strings flags = curve.Flags(world);
    flags.emplace_back("--dry-run");
    const Outcome dry = Call(flags, rank);
    EXPECT_TRUE(dry.code == 0 || dry.code == 3) << dry.Text();
    EXPECT_NE(dry.out.find("memory of each of " + std::to_string(world) + " ranks"),
              std::string::npos)
        << dry.Text();
  }
  EXPECT_EQ(recipes.size(), 7u);
}

}  // namespace
}  // namespace fsdp::e2e
