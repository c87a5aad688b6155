// A family by its table: what follows from the rows alone.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "models/shape.h"
#include "models/table_family.h"

namespace fsdp {
namespace {

struct Toy {
  int64_t width = 8;
  std::vector<int64_t> depths = {1, 2};
  double slope = 0.5;
  bool wide = false;
  struct Curve {
    bool bent = false;
    double by = 0;
    bool operator==(const Curve&) const = default;
  };
  Curve curve = {};
  enum class Colour { kRed, kBlue } colour = Colour::kRed;
  double dropout = 0;

  bool operator==(const Toy&) const = default;
};

FieldMap ToMap(const Toy::Curve& curve) {
  FieldMap map{{"type", std::string(curve.bent ? "bent" : "straight")}};
  if (curve.bent) map["by"] = curve.by;
  return map;
}
Toy::Curve FromMap(const FieldMap& map) {
  const auto by = map.find("by");
  return {std::get<std::string>(map.at("type")) == "bent",
          by == map.end() ? 0 : std::get<double>(by->second)};
}

const ModelFamily& FamilyOfConfig(const Toy&);

FamilyTable<Toy> Table() {
  MapRange curve{{{"type", NameRange{{"straight", "bent"}}, "How."},
                  {"by", RealRange{.at_least = 0}, "How far."}},
                 ToMap({})};
  return {
      .name = "toy",
      .rows = {Row("width", &Toy::width, IntegerRange{1, 16}, "Width", "8", {}, "d_model"),
               Row("depths", &Toy::depths, IntegerRange{1, 4}, "Depths", "[1, 2]", {}, "depths"),
               Row("slope", &Toy::slope, RealRange{.above = 0, .at_most = 1}, "Slope", "0.5", {},
                   "slope"),
               Row("wide", &Toy::wide, BooleanRange(), "Wide", "false", {}, "is_wide"),
               MapRow("curve", &Toy::curve, curve, "Curve", "straight", {}, &ToMap, &FromMap),
               NameRow("colour", &Toy::colour, {"red", "blue"}, "Colour", "red"),
               DropoutRow("dropout", &Toy::dropout, "Dropped", {}, "p_drop")},
      .make = [](const Toy&) -> std::shared_ptr<Model> { return nullptr; },
      .presets = {{"toy-16", Toy{.width = 16}}},
      .hf = {{"toy_net", "ToyModel", Toy{.slope = 0.25}}}};
}

const ModelFamily& FamilyOfConfig(const Toy&) {
  static const TableFamily<Toy> family(Table());
  return family;
}

std::string Mistakes(const Toy& toy) {
  std::string all;
  for (const ShapeMistake& m : Validate(toy)) all += m.field + ": " + m.message + "\n";
  return all;
}

TEST(TableFamily, ReachesEveryFieldByItsName) {
  ModelShape shape = Toy();
  EXPECT_EQ(shape.family().name(), "toy");
  EXPECT_EQ(shape.Find("width"), FieldValue(int64_t{8}));
  EXPECT_EQ(shape.Find("depth"), std::nullopt);
  shape.Set("width", int64_t{12});
  shape.Set("depths", std::vector<int64_t>{3});
  shape.Set("curve", FieldMap{{"type", std::string("bent")}, {"by", 1.5}});
  EXPECT_EQ(shape.Find("colour"), FieldValue("red"));
  shape.Set("colour", std::string("blue"));
  shape.Set("dropout", 0.25);
  const Toy want{.width = 12,
                 .depths = {3},
                 .curve = {true, 1.5},
                 .colour = Toy::Colour::kBlue,
                 .dropout = 0.25};
  EXPECT_EQ(*shape.As<Toy>(), want);
  EXPECT_EQ(shape, ModelShape(want));
  EXPECT_NE(shape, ModelShape(Toy()));
  EXPECT_NE(shape, *DefaultShape("gpt2"));
  EXPECT_NE(shape, ModelShape());
  EXPECT_EQ(FindFamily("gpt2")->Standard().As<Toy>(), nullptr);
  EXPECT_EQ(shape.family().presets()[0].shape, ModelShape(Toy{.width = 16}));
  EXPECT_TRUE(shape.family().Find("dropout")->is_dropout);
  EXPECT_TRUE(shape.family().Find("depths")->is_list);
}

TEST(TableFamily, ShowsAFieldAsARecipeDoes) {
  const ModelShape shape = Toy{.depths = {3, 4}, .curve = {true, 1.5}};
  const auto show = [&](const char* name) {
    return Show(*shape.Find(name), *shape.family().Find(name));
  };
  EXPECT_EQ(show("width"), "8");
  EXPECT_EQ(show("depths"), "[3, 4]");
  EXPECT_EQ(show("slope"), "0.5");
  EXPECT_EQ(show("wide"), "false");
  EXPECT_EQ(show("curve"), "{type: bent, by: 1.5}");
  EXPECT_EQ(show("colour"), "red");
}

TEST(TableFamily, JudgesByTheRanges) {
  EXPECT_EQ(Mistakes({}), "");
  EXPECT_EQ(Mistakes({.width = 16, .depths = {}, .slope = 1}), "");
  EXPECT_EQ(Mistakes({.width = 17, .depths = {1, 5}, .slope = 0, .dropout = 1}),
            "width: want an integer from 1 to 16, got 17\n"
            "depths: want an integer from 1 to 4, got 5\n"
            "slope: want a number above 0 and of at most 1, got 0\n"
            "dropout: want a number of at least 0 and below 1, got 1\n");
  EXPECT_NE(Mistakes({.slope = std::numeric_limits<double>::quiet_NaN()}), "");
  EXPECT_THROW(FamilyOfConfig(Toy()).Make(Toy{.width = 0}), std::invalid_argument);
}

HfObject Object(const std::string& text) {
  constexpr JsonErrors kErrors{
      .raise = [](const std::string& message) { throw CheckpointError(message); }};
  return HfObject(ParseJson(text, "config.json", kErrors));
}

TEST(TableFamily, ReadsAndWritesConfigJson) {
  const ModelFamily& family = FamilyOfConfig(Toy());
  HfObject empty = Object("{}");
  EXPECT_EQ(family.ReadHf("toy_net", empty), ModelShape(Toy{.slope = 0.25}));
  HfObject full =
      Object(R"({"d_model": 4, "depths": [2, 2, 1], "slope": 1, "is_wide": true, "p_drop": 0.1})");
  const Toy want{.width = 4, .depths = {2, 2, 1}, .slope = 1, .wide = true, .dropout = 0.1};
  EXPECT_EQ(family.ReadHf("toy_net", full), ModelShape(want));
  EXPECT_TRUE(full.Unasked().empty());
  EXPECT_EQ(family.WriteHf(want).Dump(),
            R"({"architectures":["ToyModel"],"model_type":"toy_net","d_model":4,)"
            R"("depths":[2,2,1],"slope":1.0,"is_wide":true,"p_drop":0.1})");
  EXPECT_EQ(family.HfType(want), "toy_net");
  HfObject wrong = Object(R"({"d_model": "four"})");
  EXPECT_THROW(family.ReadHf("toy_net", wrong), CheckpointError);
}

}  // namespace
}  // namespace fsdp
