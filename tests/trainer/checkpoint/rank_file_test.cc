#include "trainer/checkpoint/rank_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "tests/testing/error_of.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/checkpoint/manifest_writer.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

std::string ErrorOf(const std::function<void()>& call) { return testing::ErrorOf(call); }

// A file of several chunks, all appended.
class RankFile : public ::testing::Test {
 protected:
  RankFile() {
    world_.model = {{"embedding", false, {{"wte", Shape{1000, 401}}}}};
    layout_ = world_.MakeLayout();
    values_.assign(static_cast<size_t>(layout_.flat_parameters[0].size), 0.5f);
    writer_.emplace(directory_, layout_, ShardPlace{}, states_);
    writer_->Append(0, {std::as_bytes(std::span(values_)).data(), DType::kFloat32,
                        Shape{static_cast<int64_t>(values_.size())}});
  }

  const std::string directory_ = FreshDirectory("rank_file");
  const std::string path_ = directory_ + "/rank_0.safetensors";
  World world_;
  Layout layout_;
  const std::vector<StateFormat> states_ = ElementStates({"master"}, 1);
  std::vector<float> values_;
  std::optional<RankFileWriter> writer_;
};

TEST_F(RankFile, IsReadBack) {
  const ManifestFile file = writer_->Finish();
  EXPECT_EQ(file.bytes, static_cast<int64_t>(std::filesystem::file_size(path_)));
  EXPECT_EQ(file.chunks.size(), 2u);
}

TEST_F(RankFile, ThatDoesNotReadBackIsRefused) {
  std::fstream other(path_, std::ios::in | std::ios::out | std::ios::binary);
  other.seekp(1'200'000);
  other.put(1);
  other.flush();
  const std::string error = ErrorOf([&] { writer_->Finish(); });
  EXPECT_NE(error.find(path_ + ": bytes 1048576 to "), std::string::npos) << error;
  EXPECT_NE(error.find("do not read back as they were written"), std::string::npos) << error;
}

TEST_F(RankFile, ThatIsCutShortIsRefused) {
  std::filesystem::resize_file(path_, 1'200'000);
  const std::string error = ErrorOf([&] { writer_->Finish(); });
  EXPECT_NE(error.find("reads back as 1200000 bytes, "), std::string::npos) << error;
}

// A checkpoint of four ranks, two copies, with a frozen unit and buffers of one shape, whose
// manifest and headers are changed together with all checksums.
class ForgedFiles : public ::testing::Test {
 protected:
  ForgedFiles() {
    world_.model = {{"embedding", false, {{"wte", Shape{40, 24}}}},
                    {"h.0", true, {{"h.0.w", Shape{40, 24}}, {"h.0.b", Shape{24}, true}}}};
    world_.shards = 2;
    const auto value = [](const std::string& of, int64_t i) {
      return ElementOf("", of, i, /*salt=*/1);
    };
    WriteCheckpoint(
        path_,
        {.meta = MetaOf(1),
         .layout = world_.MakeLayout(),
         .world = 4,
         .states = world_.states,
         .buffers = kBuffers},
        [&](const std::string& state, const Placement& p, int64_t begin, std::span<float> out) {
          for (auto& x : out) x = value(state + p.name, begin++);
        },
        /*progress=*/nullptr,
        [](const OwnTensor&, int64_t, const View& out) {
          std::memset(out.data, 0, static_cast<size_t>(out.bytes()));
        });
    manifest_ = ReadManifest(path_);
    for (const ManifestFile& file : manifest_.files) files_.push_back(Text(file.name));
  }

  std::string Text(const std::string& name) const { return ReadWholeFile(path_ + "/" + name); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  }
  void WriteManifest(const Manifest& manifest) const {
    Write(kManifestName, ManifestToText(manifest));
  }

  // The error of a reader of everything.
  std::string ErrorOfAReader() const {
    return ErrorOf([&] {
      CheckpointReader reader(path_);
      std::vector<float> values(40 * 24);
      for (const FlatParameter& flat : manifest_.flat_parameters) {
        for (const Placement& p : flat.parameters) {
          for (const std::string& state : world_.states) {
            if (!FlatHasState(flat, state)) continue;
            reader.Read(state, p.name, p.shape, 0,
                        std::span(values).first(static_cast<size_t>(p.size())));
          }
        }
      }
      for (const OwnTensor& tensor : kBuffers) {
        reader.ReadTensor(
            kBuffersState, tensor, 0,
            {std::as_writable_bytes(std::span(values)).data(), tensor.dtype, tensor.shape});
      }
    });
  }

  void ExpectRefusal(const std::string& what) const {
    const std::string error = ErrorOfAReader();
    EXPECT_TRUE(error.starts_with(path_ + "/rank_") || error.starts_with(path_ + "/manifest.json"))
        << what << ": " << error;
    refused_ += !error.empty();
  }

  static inline const std::vector<OwnTensor> kBuffers = {
      {"norm.mean", "", DType::kFloat32, Shape{24}},
      {"norm.var", "", DType::kFloat32, Shape{24}},
      {"norm.count", "", DType::kInt64, Shape{}},
      {"last.count", "", DType::kInt64, Shape{}}};
  const std::string path_ = FreshDirectory("forged") + "/step_1";
  World world_;
  Manifest manifest_;
  std::vector<std::string> files_;
  mutable int refused_ = 0;
};

// Each field of each slice, taken from each other slice.
TEST_F(ForgedFiles, SlicesOfAnotherFileAreRefused) {
  ASSERT_EQ(ErrorOfAReader(), "");
  const std::pair<const char*, std::function<void(ManifestSlice&, ManifestSlice&)>> swaps[] = {
      {"state", [](auto& a, auto& b) { std::swap(a.state, b.state); }},
      {"unit", [](auto& a, auto& b) { std::swap(a.flat, b.flat); }},
      {"tensor", [](auto& a, auto& b) { std::swap(a.tensor, b.tensor); }},
      {"begin", [](auto& a, auto& b) { std::swap(a.begin, b.begin); }},
      {"count", [](auto& a, auto& b) { std::swap(a.count, b.count); }},
      {"at", [](auto& a, auto& b) { std::swap(a.at, b.at); }},
      {"bytes", [](auto& a, auto& b) { std::swap(a.bytes, b.bytes); }}};
  Manifest forged = manifest_;
  std::vector<ManifestSlice*> slices;
  for (ManifestFile& file : forged.files) {
    for (ManifestSlice& slice : file.slices) slices.push_back(&slice);
  }
  const std::string whole = Text(kManifestName);
  for (size_t i = 0; i < slices.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      for (const auto& [field, swap] : swaps) {
        swap(*slices[i], *slices[j]);
        WriteManifest(forged);
        if (Text(kManifestName) != whole) {
          ExpectRefusal(std::to_string(i) + " and " + std::to_string(j) + ", " + field);
        }
        swap(*slices[i], *slices[j]);
      }
    }
  }
  EXPECT_GT(refused_, 1000);
}

// Each field of each entry of a header, taken from each other entry.
TEST_F(ForgedFiles, HeadersOfAnotherManifestAreRefused) {
  using Json = nlohmann::ordered_json;
  for (size_t f = 0; f < files_.size(); ++f) {
    const std::string& whole = files_[f];
    uint64_t size = 0;
    std::memcpy(&size, whole.data(), sizeof(size));
    const Json header = Json::parse(whole.substr(8, size));
    std::vector<std::string> names;
    for (const auto& [name, entry] : header.items()) names.push_back(name);
    const auto forge = [&](const Json& changed, const std::string& what) {
      if (changed == header) return;
      std::string text = changed.dump();
      ASSERT_LE(text.size(), size);
      text.resize(size, ' ');
      const std::string bytes = whole.substr(0, 8) + text + whole.substr(8 + size);
      Manifest forged = manifest_;
      ChunkChecksums checksums(forged.files[f].chunk_bytes);
      checksums.Update(std::as_bytes(std::span(bytes)));
      forged.files[f].chunks = checksums.Finish();
      Write(forged.files[f].name, bytes);
      WriteManifest(forged);
      ExpectRefusal(forged.files[f].name + ": " + what);
    };
    for (const std::string& a : names) {
      Json renamed;
      for (const auto& [name, entry] : header.items()) {
        renamed[name == a ? "n" + name.substr(1) : name] = entry;
      }
      forge(renamed, a);
      for (const std::string& b : names) {
        if (a >= b) continue;
        for (const char* field : {"dtype", "shape", "data_offsets"}) {
          Json changed = header;
          std::swap(changed[a][field], changed[b][field]);
          forge(changed, a + ", " + b + ", " + field);
        }
      }
    }
    Write(manifest_.files[f].name, whole);
  }
  EXPECT_GT(refused_, 100);
}

TEST(FirstNotFinite, FindsTheFirstAtAnyPlace) {
  for (const size_t size : {1, 7, 1023, 1024, 1025, 5000}) {
    std::vector<float> values(size, std::numeric_limits<float>::max());
    values[size / 2] = -std::numeric_limits<float>::denorm_min();
    values[0] = -values[0];
    EXPECT_EQ(FirstNotFinite(values), std::nullopt);
    for (size_t at = 0; at < size; at += 1 + size / 50) {
      for (const float wrong : {NAN, -NAN, INFINITY, -INFINITY}) {
        std::vector<float> spoilt = values;
        spoilt[at] = spoilt.back() = wrong;
        EXPECT_EQ(FirstNotFinite(spoilt), at);
      }
    }
  }
  EXPECT_EQ(FirstNotFinite(std::span<const float>()), std::nullopt);
}

TEST(FirstNotFinite, KnowsEveryDType) {
  const auto first = [](auto spoilt, DType dtype, auto finite) {
    std::vector<decltype(finite)> values(3000, finite);
    const ConstView view(std::as_bytes(std::span(values)).data(), dtype, Shape{3000});
    EXPECT_EQ(FirstNotFinite(view), std::nullopt);
    values[1234] = values[2999] = spoilt;
    return FirstNotFinite(view);
  };
  const auto signs = {-1.0f, 1.0f};
  for (const float sign : signs) {
    for (const float wrong : {NAN, INFINITY}) {
      const float v = sign * wrong, f16 = sign * 65504, bf16 = sign * 0x1.fep127f;
      EXPECT_EQ(first(v, DType::kFloat32, sign * 3e38f), 1234u);
      EXPECT_EQ(first(BFloat16(v), DType::kBFloat16, BFloat16(bf16)), 1234u);
      EXPECT_EQ(first(Float16(v), DType::kFloat16, Float16(f16)), 1234u);
    }
  }
  EXPECT_EQ(first(uint8_t{255}, DType::kUInt8, uint8_t{0x7f}), std::nullopt);
}

TEST(FirstNotFinite, IsNamed) {
  World world;
  const Layout layout = world.MakeLayout();
  const FlatParameter& root = layout.flat_parameters[0];
  EXPECT_EQ(DescribeNotFinite("m", root, root.parameters[1].offset + 5, -INFINITY),
            "m of wpe: element 5 is -inf");
  EXPECT_EQ(DescribeNotFinite("m", root, root.size - 1, -NAN),
            "m of unit " + root.name + ": element " + std::to_string(root.size - 1) +
                ", between two parameters, is nan");
}

}  // namespace
}  // namespace fsdp
