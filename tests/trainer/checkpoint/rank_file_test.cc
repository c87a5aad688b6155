#include "trainer/checkpoint/rank_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/testing/error_of.h"
#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/finite.h"
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
