#include "trainer/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <random>

#include "tests/testing/error_of.h"
#include "tests/testing/json.h"
#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/checkpoint/manifest_writer.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using testing::Json;

Manifest Small() {
  Manifest m;
  m.meta = {5, 600, ~uint64_t{0}, "run: {name: \"x\"}\n", "{}"};
  m.world = m.shards = 2;
  m.states = ElementStates({"master", "m"}, 3);
  m.flat_parameters = {{"root", {{"a", Shape{10, 7}, 0}, {"b", Shape{}, 128}}, 512, 256},
                       {"h.0", {{"c", Shape{300}, 0}}, 512, 256},
                       {"empty", {}, 0, 0}};
  for (int rank = 0; rank < 2; ++rank) {
    ManifestFile file{RankFileName(rank), 8192, 4096, {1, 0xfedcba9876543210u}, {}};
    for (const char* state : {"master", "m"}) {
      for (const char* flat : {"root", "h.0"}) {
        const auto at = static_cast<int64_t>(100 + 1024 * file.slices.size());
        file.slices.push_back({state, flat, 256 * rank, 256, at, 1024});
      }
    }
    m.files.push_back(std::move(file));
  }
  return m;
}

// One of each grid, in every dtype; what is called "root" is of other dtypes than what is not.
Manifest Mixed() {
  constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16, kF16 = DType::kFloat16;
  Manifest m = Small();
  m.states = {{"master", Grid::kElement, {kF32, kBF16, kBF16}, {}},
              {"m", Grid::kElement, {kF16, DType::kUInt8, kF32}, {}},
              {"factor",
               Grid::kTensor,
               {},
               {{"a.rows", "a", kF32, Shape{10}},
                {"a.codes", "a", DType::kUInt8, Shape{2, 3}},
                {"mean", "", kBF16, Shape{}}}}};
  for (int rank = 0; rank < 2; ++rank) {
    const int64_t begin = 256 * rank;
    m.files[rank].slices = {{"master", "root", begin, 256, 100, 1024},
                            {"m", "h.0", begin, 256, 1124, 256},
                            {"master", "h.0", begin, 256, 2000, 512},
                            {"m", "root", begin, 256, 2512, 512}};
  }
  m.files[0].slices.push_back({"factor", "", 0, 10, 4000, 40, "a.rows"});
  m.files[0].slices.push_back({"factor", "", 0, 6, 4040, 6, "a.codes"});
  m.files[1].slices.push_back({"factor", "", 0, 1, 4000, 2, "mean"});
  return m;
}

// The text under a checksum that is right again.
std::string Seal(const std::string& rest) {
  const std::string sealed = ManifestToText(Small());
  const size_t line = sealed.find('\n') + 1;
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(Checksum(rest)));
  std::string head = sealed.substr(0, line);
  return head.replace(head.find(": \"") + 3, 16, digits) + rest;
}

std::string Edit(const std::function<void(Json&)>& edit, const Manifest& manifest = Small()) {
  Json json = Json::parse(ManifestToText(manifest));
  json.erase("checksum");
  edit(json);
  return Seal(json.dump().substr(1));
}

void Remove(Json& list, size_t i) {
  Json others = Json::array();
  for (size_t at = 0; at < list.size(); ++at) {
    if (at != i) others.push_back(list[at]);
  }
  list = others;
}

std::string ErrorOf(const std::string& text) {
  return testing::ErrorOf([&] { ParseManifest(text, "dir/manifest.json"); });
}

TEST(ManifestTest, ReadsWhatItWrites) {
  const Manifest want = Small();
  const Manifest got = ParseManifest(ManifestToText(want), "");
  EXPECT_EQ(ManifestToText(got), ManifestToText(want));
  EXPECT_EQ(got.meta.seed, want.meta.seed);
  EXPECT_EQ(got.meta.recipe, want.meta.recipe);
  EXPECT_EQ(got.flat_parameters[0].parameters[0].shape, (Shape{10, 7}));
  EXPECT_EQ(got.files[1].chunks[1], 0xfedcba9876543210u);
  EXPECT_EQ(got.DataBytes(), 16384);
  EXPECT_EQ(Json::parse(ManifestToText(want)).at("files")[1].at("slices")[3].at("begin"), 256);
  EXPECT_EQ(ErrorOf(Edit([](Json&) {})), "");
}

TEST(ManifestTest, KeepsEveryFormat) {
  const Manifest got = ParseManifest(ManifestToText(Mixed()), "");
  EXPECT_EQ(ManifestToText(got), ManifestToText(Mixed()));
  EXPECT_EQ(got.StateNames(), (std::vector<std::string>{"master", "m", "factor"}));
  EXPECT_EQ(got.FindState("master")->dtypes[1], DType::kBFloat16);
  EXPECT_EQ(got.FindState("m")->dtypes[1], DType::kUInt8);
  EXPECT_EQ(got.FindState("m")->grid, Grid::kElement);
  EXPECT_EQ(got.FindState("factor")->grid, Grid::kTensor);
  const std::vector<OwnTensor>& tensors = got.FindState("factor")->tensors;
  EXPECT_EQ(tensors[1].owner, "a");
  EXPECT_EQ(tensors[1].shape, (Shape{2, 3}));
  EXPECT_EQ(tensors[2].owner, "");
  EXPECT_EQ(tensors[2].dtype, DType::kBFloat16);
  EXPECT_EQ(got.files[1].slices.back().tensor, "mean");
  EXPECT_EQ(got.FindState("v"), nullptr);
}

// Coded weights have a place in the layout, and no state.
TEST(ManifestTest, NamesTheBaseOfCodedWeights) {
  Manifest m = Small();
  m.meta.base = {"weights/base", 0xfedcba9876543210u};
  FlatParameter& coded = m.flat_parameters[2];
  coded = {"h.0.frozen", {{"w", Shape{10, 7}, 0, 9216}}, 18432, 9216, /*frozen=*/true};
  coded.dtypes.code = WeightCode::kNf4;
  coded.of_base = true;
  FlatParameter plain = {"h.0.frozen.2", {{"norm", Shape{10}, 0}}, 512, 256, /*frozen=*/true};
  plain.of_base = true;
  m.flat_parameters.push_back(plain);
  for (StateFormat& state : m.states) {
    if (state.grid == Grid::kElement) state.dtypes.push_back(DType::kFloat32);
    if (state.grid == Grid::kBlock) state.coded.push_back(false);
  }
  const std::string text = ManifestToText(m);
  const Manifest read = ParseManifest(text, "manifest.json");
  EXPECT_EQ(read.meta.base, m.meta.base);
  EXPECT_EQ(read.flat_parameters[2].dtypes.code, WeightCode::kNf4);
  EXPECT_EQ(read.flat_parameters[2].parameters[0].size(), 9216);
  EXPECT_EQ(ManifestToText(read), text);
  EXPECT_FALSE(FlatHasState(read.flat_parameters[2], "master"));
  EXPECT_FALSE(FlatHasState(read.flat_parameters.back(), "master"));
  EXPECT_TRUE(FlatHasState(read.flat_parameters[0], "master"));
  std::string trained = text.substr(text.find('\n') + 1);
  const std::string frozen = "\"frozen\":true", base = "\"base\":true";
  trained.replace(trained.rfind(frozen), frozen.size(), "\"frozen\":false");
  EXPECT_THAT(testing::ErrorOf<CheckpointError>([&] { ParseManifest(Seal(trained), "x"); }),
              ::testing::HasSubstr("is of the base, but not frozen"));
  std::string held = text.substr(text.find('\n') + 1);
  held.replace(held.find(base), base.size(), "\"base\":false");
  EXPECT_THAT(testing::ErrorOf<CheckpointError>([&] { ParseManifest(Seal(held), "x"); }),
              ::testing::HasSubstr("has a code, but is not of the base"));
  std::string unknown = text.substr(text.find('\n') + 1);
  unknown.replace(unknown.find("\"nf4\""), 5, "\"nf5\"");
  EXPECT_THAT(testing::ErrorOf<CheckpointError>([&] { ParseManifest(Seal(unknown), "x"); }),
              ::testing::HasSubstr("is no code of frozen weights"));
}

TEST(ManifestTest, RefusesWhatABuildBeforeTheFirstReleaseWrote) {
  for (const int version : {1, 2, 3, 4}) {
    EXPECT_EQ(ErrorOf(Edit([&](Json& j) { j["version"] = version; })),
              "dir/manifest.json: has version " + std::to_string(version) +
                  ", written by a build before 0.1.0");
  }
}

TEST(ManifestTest, RefusesTextThatIsNotUtf8) {
  Manifest manifest = Small();
  manifest.meta.recipe = "\xff";
  EXPECT_THROW(ManifestToText(manifest), CheckpointError);
}

TEST(ManifestTest, SaysWhatTheRunHasRead) {
  EXPECT_EQ(Small().meta.data, std::nullopt);
  EXPECT_EQ(ParseManifest(ManifestToText(Small()), "").meta.data, std::nullopt);
  Manifest manifest = Small();
  manifest.meta.data = {{{"d/a \"\n.txt", 1000, ~uint64_t{0}}, {"b", 0, 7}}, {{"v", 3, 8}}};
  EXPECT_EQ(ParseManifest(ManifestToText(manifest), "").meta.data, manifest.meta.data);
  // A path of any bytes is no reason to lose a checkpoint.
  manifest.meta.data->train[0].path = "\xff.txt";
  EXPECT_EQ(ParseManifest(ManifestToText(manifest), "").meta.data->train[0].path, "\uFFFD.txt");

  const auto edited = [](const char* data) {
    return ErrorOf(Edit([&](Json& j) { j["data"] = Json::parse(data); }));
  };
  EXPECT_EQ(edited(R"({"train": [], "valid": []})"), "");
  for (const auto& [data, want] : std::initializer_list<std::pair<const char*, const char*>>{
           {"[]", "data: has no train"},
           {R"({"train": []})", "data: has no valid"},
           {R"({"train": {}, "valid": []})", "data.train: is not a list"},
           {R"({"train": [{"path": "a", "bytes": -1, "hash": "0000000000000000"}], "valid": []})",
            "data.train[0].bytes: want an integer"},
           {R"({"train": [{"path": "a", "bytes": 1, "hash": "0"}], "valid": []})",
            "data.train[0].hash: want 16 hexadecimal digits"}}) {
    EXPECT_NE(edited(data).find(want), std::string::npos) << edited(data);
  }
}

TEST(ManifestTest, KeepsWhatSkippedStepsLeave) {
  Manifest manifest = Small();
  manifest.meta.updates = 3;
  manifest.meta.skipped = 2;
  manifest.meta.scaler = {.scale = 0.1f, .good_steps = 1999};
  manifest.meta.evaluation = {.loss = 0.1, .best = 1.0 / 3, .since_best = 2};
  manifest.meta.products = "{\"library\": \"cuBLASLt\"}";
  const CheckpointMeta got = ParseManifest(ManifestToText(manifest), "").meta;
  EXPECT_EQ(got.updates, 3);
  EXPECT_EQ(got.skipped, 2);
  EXPECT_EQ(got.scaler, manifest.meta.scaler);
  EXPECT_EQ(got.evaluation, manifest.meta.evaluation);
  manifest.meta.evaluation->loss.reset();
  EXPECT_EQ(ParseManifest(ManifestToText(manifest), "m").meta.evaluation, manifest.meta.evaluation);
  EXPECT_EQ(got.products, manifest.meta.products);

  const auto edited = [](const char* key, const char* value) {
    return ErrorOf(Edit([&](Json& j) { j[key] = Json::parse(value); }));
  };
  EXPECT_EQ(edited("scaler", R"({"scale": 65536, "good_steps": 0})"), "");
  for (const auto& [key, value, want] : std::initializer_list<std::array<const char*, 3>>{
           {"updates", "6", "updates: want an integer"},
           {"skipped", "-1", "skipped: want an integer"},
           {"scaler", R"({"scale": 0, "good_steps": 0})", "scaler.scale: is no scale"},
           {"scaler", R"({"scale": 1e39, "good_steps": 0})", "scaler.scale: is no scale"},
           {"scaler", R"({"scale": 1})", "scaler: has no good_steps"}}) {
    EXPECT_NE(edited(key, value).find(want), std::string::npos) << edited(key, value);
  }
}

TEST(ManifestTest, KnowsTheRecords) {
  Manifest manifest = Small();
  EXPECT_EQ(ParseManifest(ManifestToText(manifest), "").meta.records, std::nullopt);
  manifest.meta.records = {.bytes = 1234, .hash = 0x0123456789abcdef};
  EXPECT_EQ(ParseManifest(ManifestToText(manifest), "").meta.records, manifest.meta.records);
  const auto edited = [](const char* records) {
    return ErrorOf(Edit([&](Json& j) { j["records"] = Json::parse(records); }));
  };
  EXPECT_EQ(edited(R"({"bytes": 0, "hash": "ef46db3751d8e999"})"), "");
  EXPECT_NE(edited(R"({"bytes": -1, "hash": "ef46db3751d8e999"})").find("records.bytes: want"),
            std::string::npos);
  EXPECT_NE(edited(R"({"bytes": 1, "hash": "0"})").find("records.hash: want 16"),
            std::string::npos);
}

TEST(ManifestTest, FindsEveryChangedByte) {
  const std::string whole = ManifestToText(Small());
  std::mt19937_64 random(1);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string text = whole;
    text[at] = static_cast<char>(text[at] ^ (1 + random() % 255));
    EXPECT_NE(ErrorOf(text), "") << at;
    EXPECT_NE(ErrorOf(whole.substr(0, at)), "") << at;
  }
}

// Whole but wrong: each is refused, with words that name the place.
TEST(ManifestTest, RefusesWhatContradictsItself) {
  const struct {
    const char* want;
    std::function<void(Json&)> edit;
  } cases[] = {
      {"format", [](Json& j) { j["format"] = "other"; }},
      {"version 6, this build reads up to 5: use the build that wrote it, or a newer one",
       [](Json& j) { j["version"] = 6; }},
      {"version: want an integer", [](Json& j) { j["version"] = 0; }},
      {"version: want an integer", [](Json& j) { j["version"] = true; }},
      {"has no step", [](Json& j) { j.erase("step"); }},
      {"has no updates", [](Json& j) { j.erase("updates"); }},
      {"step: want an integer", [](Json& j) { j["step"] = -1; }},
      {"step: want an integer", [](Json& j) { j["step"] = 1.5; }},
      {"step: want an integer", [](Json& j) { j["step"] = uint64_t{1} << 63; }},
      {"seed: want an unsigned", [](Json& j) { j["seed"] = -1; }},
      {"recipe: is not a string", [](Json& j) { j["recipe"] = nullptr; }},
      {"shards: want an integer from 1 to 2", [](Json& j) { j["shards"] = 3; }},
      {"world is not a multiple", [](Json& j) { j["world"] = 3; }},
      {"2 files for a world of 4", [](Json& j) { j["world"] = 4; }},
      {"2 files for a world of 16777216", [](Json& j) { j["world"] = 1 << 24; }},
      {"world: want", [](Json& j) { j["world"] = int64_t{1} << 40; }},
      {"two states 'm'",
       [](Json& j) {
         j["states"] = {"m", "m"};
       }},
      {"no state 'master'", [](Json& j) { j["states"] = {"m"}; }},
      {"state 'v' do not hold unit 'root'",
       [](Json& j) {
         j["states"] = {"master", "m", "v"};
         j["formats"]["v"] = Json(j["formats"]["m"]);
       }},
      {"formats: has no 'v'",
       [](Json& j) {
         j["states"] = {"master", "m", "v"};
       }},
      {"states: is not a list", [](Json& j) { j["states"] = "master"; }},
      {"two units 'h.0'", [](Json& j) { j["units"][0]["name"] = "h.0"; }},
      {"no unit 'root'", [](Json& j) { j["units"][0]["name"] = "other"; }},
      {"no unit 'other'", [](Json& j) { j["files"][0]["slices"][0]["unit"] = "other"; }},
      {"units[0].name: is empty", [](Json& j) { j["units"][0]["name"] = ""; }},
      {"do not hold unit 'root' exactly once",
       [](Json& j) {
         j["units"][0]["frozen"] = true;
         j["formats"]["m"]["dtypes"].erase("root");
       }},
      {"formats.'m'.dtypes: no unit 'root' has the state",
       [](Json& j) { j["units"][0]["frozen"] = true; }},
      {"units[0].frozen: is neither", [](Json& j) { j["units"][0]["frozen"] = 1; }},
      {"size is not 2 times", [](Json& j) { j["units"][1]["shard_size"] = 128; }},
      {"do not hold unit 'h.0'",
       [](Json& j) {
         j["units"][1]["shard_size"] = 512;
         j["units"][1]["size"] = 1024;
       }},
      {"two parameters 'a'", [](Json& j) { j["units"][1]["parameters"][0]["name"] = "a"; }},
      {"'b' lies on another", [](Json& j) { j["units"][0]["parameters"][1]["offset"] = 69; }},
      {"'c' ends behind its unit", [](Json& j) { j["units"][1]["parameters"][0]["offset"] = 213; }},
      {"offset: want",
       [](Json& j) { j["units"][1]["parameters"][0]["offset"] = int64_t{1} << 62; }},
      {"shape[0]: want", [](Json& j) { j["units"][1]["parameters"][0]["shape"] = {-1}; }},
      {"units[1].parameters[0]",
       [](Json& j) {
         j["units"][1]["parameters"][0]["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
       }},
      {"units[1].parameters[0]",
       [](Json& j) { j["units"][1]["parameters"][0]["shape"] = {1, 1, 1, 1, 1, 1}; }},
      {"'../rank_0.safetensors', want 'rank_0",
       [](Json& j) { j["files"][0]["name"] = "../rank_0.safetensors"; }},
      {"want 'rank_1", [](Json& j) { j["files"][1]["name"] = "rank_0.safetensors"; }},
      {"1 chunks, want 2", [](Json& j) { j["files"][0]["chunks"] = {"00000000000000aa"}; }},
      {"files[0].bytes: want", [](Json& j) { j["files"][0]["bytes"] = -8; }},
      {"chunk_bytes: want", [](Json& j) { j["files"][0]["chunk_bytes"] = 0; }},
      {"chunk_bytes: want", [](Json& j) { j["files"][0]["chunk_bytes"] = int64_t{1} << 40; }},
      {"16 hexadecimal", [](Json& j) { j["files"][0]["chunks"][0] = "00000000000000G0"; }},
      {"16 hexadecimal", [](Json& j) { j["files"][0]["chunks"][0] = "1"; }},
      {"slices[0].at: want", [](Json& j) { j["files"][0]["slices"][0]["at"] = 8193; }},
      {"ends behind its file", [](Json& j) { j["files"][0]["slices"][0]["at"] = 7169; }},
      {"ends behind its file",
       [](Json& j) { j["files"][0]["slices"][0]["bytes"] = int64_t{1} << 60; }},
      {"has 1024 bytes, want",
       [](Json& j) { j["files"][0]["slices"][0]["count"] = int64_t{1} << 59; }},
      {"bytes: want", [](Json& j) { j["files"][0]["slices"][0]["bytes"] = 0; }},
      {"bytes: want", [](Json& j) { j["files"][0]["slices"][0]["bytes"] = -4; }},
      {"slices[0]: has no bytes", [](Json& j) { j["files"][0]["slices"][0].erase("bytes"); }},
      {"count: want", [](Json& j) { j["files"][0]["slices"][0]["count"] = 0; }},
      {"two slices share bytes", [](Json& j) { j["files"][0]["slices"][0]["at"] = 1123; }},
      {"exactly once", [](Json& j) { j["files"][0]["slices"][0]["begin"] = 1; }},
      {"exactly once",
       [](Json& j) {
         j["files"][0]["slices"][0]["count"] = 255;
         j["files"][0]["slices"][0]["bytes"] = 1020;
       }},
      {"exactly once", [](Json& j) { j["files"][1]["slices"][0]["begin"] = 0; }},
      {"exactly once", [](Json& j) { Remove(j["files"][1]["slices"], 0); }},
      {"exactly once",
       [](Json& j) {  // The last of a flat parameter, twice.
         Json again = j["files"][1]["slices"][0];
         again["at"] = 7000;
         j["files"][0]["slices"].push_back(again);
       }},
      {"exactly once", [](Json& j) { j["files"][1]["slices"][0]["begin"] = int64_t{1} << 59; }},
      {"beside[1]: is not the name of a file in the directory",
       [](Json& j) {
         j["beside"] = {"templates/a.jinja", "../b"};
       }},
      {"beside[0]: is not the name", [](Json& j) { j["beside"] = {"/etc/passwd"}; }},
      {"beside[0]: is not the name", [](Json& j) { j["beside"] = {"a/../../b"}; }},
      {"beside[0]: is not the name", [](Json& j) { j["beside"] = {"templates/"}; }},
      {"beside[0]: is empty", [](Json& j) { j["beside"] = {""}; }},
      {"files: is not a list", [](Json& j) { j["files"] = Json::object(); }},
      {"files[0]: has no name", [](Json& j) { j["files"][0] = 3; }},
  };
  for (const auto& c : cases) {
    const std::string error = ErrorOf(Edit(c.edit));
    EXPECT_NE(error.find(c.want), std::string::npos) << "want '" << c.want << "': " << error;
    EXPECT_EQ(error.find("dir/manifest.json:"), error.empty() ? std::string::npos : 0u);
  }
}

// The same of formats, one of each.
TEST(ManifestTest, RefusesFormatsThatDoNotFit) {
  constexpr int kMaster = 0, kM = 1, kRows = 4, kCodes = 5;  // Slices of the first file.
  const auto slice = [](Json& j, int i) -> Json& { return j["files"][0]["slices"][i]; };
  const auto tensor = [](Json& j, int i) -> Json& { return j["formats"]["factor"]["tensors"][i]; };
  const struct {
    const char* want;
    std::function<void(Json&)> edit;
  } cases[] = {
      {"formats: is not an object", [](Json& j) { j["formats"] = Json::array(); }},
      {"has no formats", [](Json& j) { j.erase("formats"); }},
      {"formats: has no 'm'", [](Json& j) { j["formats"].erase("m"); }},
      {"formats: no state 'v'", [](Json& j) { j["formats"]["v"] = Json(j["formats"]["m"]); }},
      {"formats.'m'.grid: this build knows of no grid 'row': use the build that wrote it, or a "
       "newer one",
       [](Json& j) { j["formats"]["m"]["grid"] = "row"; }},
      {"formats.'m': a state of blocks has no 'm'",
       [](Json& j) { j["formats"]["m"]["grid"] = "block"; }},
      {"formats.'m'.dtypes.'h.0': no dtype of states is called 'fp8'",
       [](Json& j) { j["formats"]["m"]["dtypes"]["h.0"] = "fp8"; }},
      {"no dtype of states is called 'int32'", [&](Json& j) { tensor(j, 0)["dtype"] = "int32"; }},
      {"has 40 bytes, want 80", [&](Json& j) { tensor(j, 0)["dtype"] = "int64"; }},
      {"no dtype of states is called 'int64'",
       [](Json& j) { j["formats"]["master"]["dtypes"]["root"] = "int64"; }},
      {"formats.'m': has no dtypes", [](Json& j) { j["formats"]["m"].erase("dtypes"); }},
      {"formats.'m'.dtypes: has no 'h.0'",
       [](Json& j) { j["formats"]["m"]["dtypes"].erase("h.0"); }},
      {"formats.'m'.dtypes: no unit 'h.1' has the state",
       [](Json& j) { j["formats"]["m"]["dtypes"]["h.1"] = "fp32"; }},
      {"formats.'m'.dtypes.'h.0': is not a string",
       [](Json& j) { j["formats"]["m"]["dtypes"]["h.0"] = 4; }},
      // Another dtype or grid than the slices were written in.
      {"a slice of state 'm' has 256 bytes, want 512",
       [](Json& j) { j["formats"]["m"]["dtypes"]["h.0"] = "fp16"; }},
      {"formats.'m': has no tensors", [](Json& j) { j["formats"]["m"]["grid"] = "tensor"; }},
      {"a slice of state 'm' is none of its grid, tensor",
       [](Json& j) {
         j["formats"]["m"] = {{"grid", "tensor"}, {"tensors", Json::array()}};
       }},
      {"a slice of state 'factor' is none of its grid, tensor",
       [&](Json& j) {
         slice(j, kRows).erase("tensor");
         slice(j, kRows)["unit"] = "root";
       }},
      {"a slice of state 'master' is none of its grid, element",
       [&](Json& j) { slice(j, kMaster)["tensor"] = "a.rows"; }},
      {"a slice of state 'm' has 256 bytes, want 255",
       [&](Json& j) { slice(j, kM)["count"] = 255; }},
      {"state 'm' do not hold unit 'h.0' exactly once",
       [&](Json& j) { slice(j, kM)["begin"] = 256; }},
      // Tensors of their own.
      {"tensors[0]: its owner 'x' is no parameter", [&](Json& j) { tensor(j, 0)["owner"] = "x"; }},
      {"tensors[0]: its owner 'root' is no parameter",
       [&](Json& j) { tensor(j, 0)["owner"] = "root"; }},
      {"owner: is not a string", [&](Json& j) { tensor(j, 0)["owner"] = nullptr; }},
      {"owner: is empty", [&](Json& j) { tensor(j, 0)["owner"] = ""; }},
      {"two tensors 'a.codes'", [&](Json& j) { tensor(j, 0)["name"] = "a.codes"; }},
      {"tensors[0]: has no name", [&](Json& j) { tensor(j, 0).erase("name"); }},
      {"tensors[0]: has no elements",
       [&](Json& j) {
         tensor(j, 0)["shape"] = {4, 0};
       }},
      {"shape[0]: want", [&](Json& j) { tensor(j, 0)["shape"] = {-1}; }},
      {"state 'factor' do not hold tensor 'a.rows' exactly once",
       [&](Json& j) { tensor(j, 0)["shape"] = {11}; }},
      {"state 'factor' do not hold tensor 'a.rows' exactly once",
       [&](Json& j) { Remove(j["files"][0]["slices"], kRows); }},
      {"no tensor 'other'", [&](Json& j) { slice(j, kRows)["tensor"] = "other"; }},
      {"state 'factor' do not hold tensor 'mean' exactly once",
       [](Json& j) {  // A second one, beside the first.
         Json again = j["files"][1]["slices"][4];
         again["at"] = 5000;
         j["files"][0]["slices"].push_back(again);
       }},
      {"tensor 'a.rows' is in parts",
       [&](Json& j) {
         Json half = slice(j, kRows);
         half["count"] = slice(j, kRows)["count"] = 5;
         half["bytes"] = slice(j, kRows)["bytes"] = 20;
         half["begin"] = 5;
         half["at"] = 5000;
         j["files"][1]["slices"].push_back(half);
       }},
      {"has 40 bytes, want 20", [&](Json& j) { tensor(j, 0)["dtype"] = "bf16"; }},
      {"files[0]: two slices share bytes", [&](Json& j) { slice(j, kCodes)["at"] = 4039; }},
      {"files[0]: two slices share bytes", [&](Json& j) { slice(j, kM)["at"] = 1123; }},
      {"slices[5]: ends behind its file", [&](Json& j) { slice(j, kCodes)["at"] = 8187; }},
  };
  EXPECT_EQ(ErrorOf(Edit([](Json&) {}, Mixed())), "");
  for (const auto& c : cases) {
    const std::string error = ErrorOf(Edit(c.edit, Mixed()));
    EXPECT_NE(error.find(c.want), std::string::npos) << "want '" << c.want << "': " << error;
    EXPECT_EQ(error.find("dir/manifest.json:"), error.empty() ? std::string::npos : 0u);
  }
}

// Under a right checksum, random damage is read or refused, never worse; what is read holds
// together, so it can be written again.
TEST(ManifestTest, SurvivesRandomDamage) {
  const std::string whole = ManifestToText(Small()), mixed = ManifestToText(Mixed());
  const std::string rests[] = {whole.substr(whole.find('\n') + 1),
                               mixed.substr(mixed.find('\n') + 1)};
  std::mt19937_64 random(99);
  const std::string letters = "0123456789-.,:[]{}\"ertul\\";
  int refused = 0, read = 0;
  for (int i = 0; i < 4'000; ++i) {
    std::string text = rests[i % 2];
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text[at] = letters[random() % letters.size()];
          break;
        case 2:
          text.erase(at, 1 + random() % 40);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), 1 + random() % 40));
      }
    }
    try {
      const Manifest manifest = ParseManifest(Seal(text), "m");
      ParseManifest(ManifestToText(manifest), "again");
      ++read;
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 2'000);
  EXPECT_GT(read, 20);
}

TEST(ChunkChecksumTest, IsXxh64OfEachChunk) {
  // From the specification's sanity checks: the empty input with seed 0.
  EXPECT_EQ(Checksum(std::string_view()), 0xef46db3751d8e999u);
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i * 37);
  const auto span = std::as_bytes(std::span(bytes));
  for (const size_t step : {1u, 7u, 64u, 256u, 1000u}) {
    ChunkChecksums chunks(256);
    for (size_t at = 0; at < bytes.size(); at += step) {
      chunks.Update(span.subspan(at, std::min(step, bytes.size() - at)));
    }
    EXPECT_EQ(chunks.Finish(), (std::vector<uint64_t>{
                                   Checksum(span.first(256)), Checksum(span.subspan(256, 256)),
                                   Checksum(span.subspan(512, 256)), Checksum(span.subspan(768))}));
  }
}

TEST(ChunkChecksumTest, KeepsTheNumberOfChunksSmall) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(ChunkBytes(0), kMiB);
  EXPECT_EQ(ChunkBytes((kMiB << 14) - 1), kMiB);
  EXPECT_EQ(ChunkBytes(kMiB << 14), 2 * kMiB);
  EXPECT_EQ(ChunkBytes(kMiB << 19), 64 * kMiB);
  EXPECT_EQ(ChunkBytes(kMiB << 30), 64 * kMiB);
}

}  // namespace
}  // namespace fsdp
