// Which kernels a process takes: by its processor, its system and FSDP_TRAIN_ISA.
#include "trainer/ops/cpu/kinds.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/testing/error_of.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

Processor With(Isa best) {
  return {best, [] { return std::string(); }};
}

TEST(Kinds, TheBestIsTaken) {
  EXPECT_EQ(ChooseIsa(nullptr, With(Isa::kAvx2)).name, "avx2");
  EXPECT_EQ(ChooseIsa("", With(Isa::kAvx512)).name, "avx512");
  EXPECT_EQ(ChooseIsa(nullptr, With(Isa::kAvx512Bf16)).name, "avx512_bf16");
  const IsaChoice amx = ChooseIsa(nullptr, With(Isa::kAmx));
  EXPECT_EQ(amx.name, "amx");
  EXPECT_EQ(amx.isa, Isa::kAmx);
  EXPECT_EQ(amx.tiles, TileUse::kHardware);
  EXPECT_EQ(amx.refused, "");
}

TEST(Kinds, AnyThatTheProcessorHasCanBeChosen) {
  for (const std::string name : {"avx2", "avx512", "avx512_bf16", "amx"}) {
    const IsaChoice choice = ChooseIsa(name.c_str(), With(Isa::kAmx));
    EXPECT_EQ(choice.name, name);
    EXPECT_EQ(choice.tiles, name == "amx" ? TileUse::kHardware : TileUse::kNone);
  }
}

TEST(Kinds, ASecondWordSaysHowPairsAreMultiplied) {
  for (const std::string name : {"avx512_bf16", "amx", "amx_emulated"}) {
    const auto way = [&](const char* word) {
      const IsaChoice choice = ChooseIsa((name + word).c_str(), With(Isa::kAmx));
      EXPECT_EQ(choice.name, name) << word;
      return choice.pairs;
    };
    EXPECT_EQ(way(""), PairWay::kFaster) << name;
    EXPECT_EQ(way(" pairs"), PairWay::kInstruction) << name;
    EXPECT_EQ(way(" floats"), PairWay::kFloats) << name;
  }
  // Kinds without VDPBF16PS have one way, and a word alone is no kind.
  for (const char* name : {"avx512 pairs", "avx2 floats", "amx_emulated_on_avx2 pairs", " pairs",
                           "pairs", "amx  pairs", "amx pairs floats", "amx floats pairs"}) {
    EXPECT_EQ(testing::ErrorOf<ConfigError>([&] { ChooseIsa(name, With(Isa::kAmx)); }),
              "FSDP_TRAIN_ISA is \"" + std::string(name) +
                  "\", which this processor does not have: it has avx2, avx512, avx512_bf16, amx");
  }
  EXPECT_THROW(ChooseIsa("amx_emulated pairs", With(Isa::kAvx512)), ConfigError);
}

TEST(Kinds, OthersAreRefusedWithThoseThatThereAre) {
  for (const char* name : {"amx", "avx512_bf16", "AVX2", "best"}) {
    EXPECT_EQ(testing::ErrorOf<ConfigError>([&] { ChooseIsa(name, With(Isa::kAvx512)); }),
              "FSDP_TRAIN_ISA is \"" + std::string(name) +
                  "\", which this processor does not have: it has avx2, avx512");
  }
}

TEST(Kinds, TilesAreAskedForOnceAndOnlyWhereTheyAreTaken) {
  int asked = 0;
  const auto ask = [&asked] {
    ++asked;
    return std::string("no");
  };
  EXPECT_EQ(ChooseIsa("avx512_bf16", {Isa::kAmx, ask}).refused, "");
  EXPECT_EQ(ChooseIsa("amx_emulated", {Isa::kAmx, ask}).refused, "");
  EXPECT_EQ(ChooseIsa(nullptr, {Isa::kAvx512Bf16, ask}).refused, "");
  EXPECT_EQ(asked, 0);
  for (const char* wanted : {"", "amx"}) {
    const IsaChoice choice = ChooseIsa(wanted, {Isa::kAmx, ask});
    EXPECT_EQ(choice.refused, "no");
    EXPECT_EQ(choice.name, "avx512_bf16");
    EXPECT_EQ(choice.isa, Isa::kAvx512Bf16);
    EXPECT_EQ(choice.tiles, TileUse::kNone);
  }
  EXPECT_EQ(asked, 2);
}

// Ranks agree on the bits that they compute, not on how.
TEST(Kinds, RanksAgreeOnTheOrderOfSums) {
  const auto order = [](const char* wanted, Isa best, bool bf16) {
    return OrderOfSums(ChooseIsa(wanted, With(best)), bf16);
  };
  for (const bool bf16 : {false, true}) {
    EXPECT_EQ(order(nullptr, Isa::kAvx2, bf16), "avx2");
    EXPECT_EQ(order(nullptr, Isa::kAvx512, bf16), "avx512");
    EXPECT_EQ(order(nullptr, Isa::kAvx512Bf16, bf16), "avx512");
    EXPECT_EQ(order(nullptr, Isa::kAmx, bf16), bf16 ? "amx" : "avx512");
    EXPECT_EQ(order("amx_emulated", Isa::kAmx, bf16), bf16 ? "amx" : "avx512");
    EXPECT_EQ(order("amx_emulated", Isa::kAvx512, bf16), bf16 ? "amx" : "avx512");
    // All but these products has AVX2's order there.
    EXPECT_EQ(order("amx_emulated", Isa::kAvx2, bf16), bf16 ? "amx with avx2" : "avx2");
    EXPECT_EQ(order("amx_emulated_on_avx2", Isa::kAmx, bf16), bf16 ? "amx with avx2" : "avx2");
  }
}

}  // namespace
}  // namespace fsdp
