#include "trainer/ops/arguments.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fsdp {
namespace {

const Arguments kArguments("op");
constexpr DType kF32 = DType::kFloat32;

template <typename Check>
std::string Refusal(const Check& check) {
  try {
    check();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Arguments, DTypeAndShape) {
  float data[6];
  const View x(reinterpret_cast<std::byte*>(data), DType::kFloat32, {2, 3});
  const auto check = [&](const View& view, DType dtype, const Shape& shape) {
    return Refusal([&] { kArguments.Check("x", view, dtype, shape); });
  };
  EXPECT_EQ(check(x, DType::kFloat32, {2, 3}), "accepted");
  EXPECT_EQ(check(x, DType::kFloat32, {3, 2}), "[op] x is fp32 [2, 3], want fp32 [3, 2]");
  EXPECT_EQ(check(x, DType::kFloat32, {6}), "[op] x is fp32 [2, 3], want fp32 [6]");
  EXPECT_EQ(check(x, DType::kInt32, {2, 3}), "[op] x is fp32 [2, 3], want int32 [2, 3]");
  EXPECT_EQ(check(View(nullptr, DType::kFloat32, {2}), DType::kFloat32, {2}),
            "[op] x is fp32 [2] without memory");
  EXPECT_EQ(check(View(nullptr, DType::kFloat32, {0}), DType::kFloat32, {0}), "accepted");
  EXPECT_EQ(Refusal([&] { kArguments.CheckRank("x", x, DType::kFloat32, 2); }), "accepted");
  EXPECT_EQ(Refusal([&] { kArguments.CheckRank("x", x, DType::kFloat32, 1); }),
            "[op] x is fp32 [2, 3], want fp32 with 1 dimensions");
  EXPECT_EQ(Refusal([&] { kArguments.CheckElements("x", x, DType::kFloat32, 6); }), "accepted");
  EXPECT_EQ(Refusal([&] { kArguments.CheckElements("x", x, DType::kFloat32, 5); }),
            "[op] x is fp32 [2, 3], want fp32 with 5 elements");
}

TEST(Arguments, DTypes) {
  constexpr DType kBF16 = DType::kBFloat16;
  EXPECT_EQ(Refusal([&] { kArguments.CheckDType("x", kBF16, {kF32, kBF16}); }), "accepted");
  EXPECT_EQ(Refusal([&] { kArguments.CheckDType("x", kBF16, {kF32}); }),
            "[op] x is bf16, want fp32");
  EXPECT_EQ(Refusal([&] {
              kArguments.CheckDType("x", DType::kInt32, {kF32, kBF16});
            }),
            "[op] x is int32, want fp32 or bf16");
}

TEST(Arguments, WeightsAreOfTheActivationsDTypeOrFp32) {
  float data[2];
  const auto weight = [&](DType dtype, DType activations) {
    const View w(reinterpret_cast<std::byte*>(data), dtype, {2});
    return Refusal([&] { kArguments.CheckWeight("w", w, activations, {2}); });
  };
  constexpr DType kBF16 = DType::kBFloat16, kF16 = DType::kFloat16;
  EXPECT_EQ(weight(kF32, kF32), "accepted");
  EXPECT_EQ(weight(kBF16, kBF16), "accepted");
  EXPECT_EQ(weight(kF32, kBF16), "accepted");
  EXPECT_EQ(weight(kBF16, kF32), "[op] w is bf16 [2], want fp32 [2]");
  EXPECT_EQ(weight(kF16, kBF16), "[op] w is fp16, want bf16 or fp32");
  const auto gradient = [&](DType dtype, const Shape& shape) {
    const View dw(reinterpret_cast<std::byte*>(data), dtype, {2});
    return Refusal([&] { kArguments.CheckGradient("dw", dw, shape); });
  };
  EXPECT_EQ(gradient(kF16, {2}), "accepted");
  EXPECT_EQ(gradient(kF16, {1}), "[op] dw is fp16 [2], want fp16 [1]");
  EXPECT_EQ(gradient(DType::kInt32, {2}), "[op] dw is int32, want fp32, bf16 or fp16");
}

TEST(Arguments, Workspace) {
  float data[6];
  const View workspace(reinterpret_cast<std::byte*>(data), DType::kFloat32, {6});
  EXPECT_EQ(Refusal([&] { kArguments.CheckWorkspace(workspace, 24); }), "accepted");
  EXPECT_EQ(Refusal([&] { kArguments.CheckWorkspace(View(), 0); }), "accepted");
  EXPECT_EQ(Refusal([&] { kArguments.CheckWorkspace(workspace, 25); }),
            "[op] workspace has 24 bytes, want >= 25");
}

// The plan would otherwise hold the workspace of a device that runs nothing.
TEST(Arguments, AWorkspaceIsOfADeviceWithKernels) {
  const auto check = [](DeviceType device) {
    return Refusal([&] { kArguments.CheckHasKernels("x", kF32, {kF32}, device); });
  };
  EXPECT_EQ(check(DeviceType::kCpu), "accepted");
  EXPECT_EQ(check(DeviceType::kSim), "[op] the simulated device has no workspace of its own");
  EXPECT_EQ(
      Refusal([] { kArguments.CheckHasKernels("x", DType::kInt32, {kF32}, DeviceType::kCpu); }),
      "[op] x is int32, want fp32");
}

TEST(Arguments, Disjoint) {
  float data[8];
  const View all(reinterpret_cast<std::byte*>(data), DType::kFloat32, {8});
  const auto check = [&](const View& a, const View& b) {
    return Refusal([&] { kArguments.CheckDisjoint("a", a, "b", b); });
  };
  EXPECT_EQ(check(all.Slice(0, 4), all.Slice(4, 4)), "accepted");
  EXPECT_EQ(check(all.Slice(4, 4), all.Slice(0, 4)), "accepted");
  EXPECT_EQ(check(all.Slice(0, 5), all.Slice(4, 4)), "[op] a and b overlap");
  EXPECT_EQ(check(all, all), "[op] a and b overlap");
}

TEST(Arguments, SameOrDisjoint) {
  float data[8];
  const View all(reinterpret_cast<std::byte*>(data), DType::kFloat32, {8});
  const auto check = [&](const View& a, const View& b) {
    return Refusal([&] { kArguments.CheckSameOrDisjoint("a", a, "b", b); });
  };
  EXPECT_EQ(check(all, all), "accepted");
  EXPECT_EQ(check(all, all.Reshape({2, 4})), "accepted");
  EXPECT_EQ(check(all.Slice(0, 4), all.Slice(4, 4)), "accepted");
  EXPECT_EQ(check(all.Slice(0, 4), all.Slice(3, 4)), "[op] a and b overlap");
  EXPECT_EQ(check(all, all.Slice(0, 4)), "[op] a and b overlap");
}

}  // namespace
}  // namespace fsdp
