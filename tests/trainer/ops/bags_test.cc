#include "trainer/ops/bags.h"

#include <algorithm>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"

namespace fsdp {
namespace {

// Places of rows x slots bags' slots, some absent, some often; and the order of PoolBagsBackward().
struct Bags {
  int64_t rows, n;
  std::vector<double> first, places, order;

  int64_t slots() const { return static_cast<int64_t>(first.back()); }
  int64_t tables() const { return std::ssize(first) - 1; }
};

Bags RandomBags(int64_t rows, int64_t n, const std::vector<double>& first, uint64_t seed) {
  Bags bags{rows, n, first, {}, {}};
  Random random(seed, kF32);
  for (int64_t i = 0; i < rows * bags.slots(); ++i) {
    const int64_t place = random.Integer(-2, n - 1);  // The first ones twice as often.
    bags.places.push_back(static_cast<double>(place < 0 ? place == -1 ? 0 : -1 : place));
  }
  for (int64_t i = 0; i < std::ssize(bags.places); ++i) {
    if (bags.places[i] >= 0) bags.order.push_back(static_cast<double>(i));
  }
  std::ranges::stable_sort(bags.order, {}, [&](double i) { return bags.places[int64_t(i)]; });
  bags.order.resize(bags.places.size(), -1);
  return bags;
}

// Some places have so many slots that a GPU adds them up otherwise.
Bags HotBags() {
  Bags bags{0, 0, {0, 1}, {}, {}};
  const int64_t counts[] = {5, 255, 256, 300, 1, 700, 1};
  int64_t place = 0;
  for (const int64_t count : counts) {
    bags.places.insert(bags.places.end(), count, static_cast<double>(place++));
  }
  bags.rows = std::ssize(bags.places);
  bags.n = place;
  for (int64_t i = 0; i < bags.rows; ++i) bags.order.push_back(static_cast<double>(i));
  return bags;
}

std::vector<Bags> AllBags() {
  return {RandomBags(1, 1, {0, 1}, 1),
          RandomBags(7, 5, {0, 1, 4, 5, 5, 12}, 2),
          RandomBags(33, 40, {0, 3, 4}, 3),
          HotBags(),
          {2, 3, {0, 2, 3}, {-1, -1, -1, -1, -1, -1}, {-1, -1, -1, -1, -1, -1}}};
}

class BagsTest : public OpTest {};
FSDP_INSTANTIATE_OP_TEST(BagsTest, kF32, kBF16, kF16);

TEST_P(BagsTest, PoolsWhatEachBagNames) {
  Random random(5, dtype());
  for (const Bags& bags : AllBags()) {
    for (const int64_t width : {1, 8, 37}) {
      for (const DType stored : {kF32, kBF16}) {
        Random values(6, stored);
        const View vectors = Input({bags.n, width}, values.Vector(bags.n * width), stored);
        const View places = Input({bags.rows, bags.slots()}, bags.places, DType::kInt32);
        const View first = Input({bags.tables() + 1}, bags.first, DType::kInt32);
        const View out = Output({bags.rows * bags.tables(), width});
        const auto pool = [&](Stream& s) { PoolBags(s, vectors, places, first, out); };
        Run(pool);
        const std::vector<double> in = Get(vectors);
        std::vector<double> want;
        for (int64_t bag = 0; bag < bags.rows * bags.tables(); ++bag) {
          for (int64_t j = 0; j < width; ++j) {
            double sum = 0;
            for (auto s = int64_t(bags.first[bag % bags.tables()]);
                 s < int64_t(bags.first[bag % bags.tables() + 1]); ++s) {
              const auto place = int64_t(bags.places[bag / bags.tables() * bags.slots() + s]);
              if (place >= 0) sum += in[place * width + j];
            }
            want.push_back(sum);
          }
        }
        EXPECT_TRUE(AllNear(Get(out), want, Tolerance(dtype(), bags.slots())));
        ExpectSameBits(pool, {out});
        Clear();
      }
    }
  }
}

TEST_P(BagsTest, AddsGradientsInTheOrderOfSlots) {
  Random random(7, dtype());
  for (const Bags& bags : AllBags()) {
    for (const int64_t width : {1, 8, 37}) {
      const View d = Input({bags.rows * bags.tables(), width},
                           random.Vector(bags.rows * bags.tables() * width));
      const View places = Input({bags.rows, bags.slots()}, bags.places, DType::kInt32);
      const View order = Input({bags.rows * bags.slots()}, bags.order, DType::kInt32);
      const View first = Input({bags.tables() + 1}, bags.first, DType::kInt32);
      const View sums = Accumulated({bags.n, width}, 0.5, kF32);
      const auto add = [&](Stream& s) { PoolBagsBackward(s, d, places, order, first, sums); };
      const std::vector<double> in = Get(d);
      // One float after the other: the bits.
      std::vector<float> want(bags.n * width, 0.5f);
      for (const double at : bags.order) {
        if (at < 0) break;
        const auto slot = int64_t(at) % bags.slots(), row = int64_t(at) / bags.slots();
        int64_t t = 0;
        while (slot >= int64_t(bags.first[t + 1])) ++t;
        for (int64_t j = 0; j < width; ++j) {
          want[int64_t(bags.places[int64_t(at)]) * width + j] +=
              static_cast<float>(in[(row * bags.tables() + t) * width + j]);
        }
      }
      Run(add);
      const std::vector<double> got = Get(sums), bits(want.begin(), want.end());
      const bool hot = std::ranges::any_of(
          bags.places, [&](double place) { return std::ranges::count(bags.places, place) >= 256; });
      if (hot && kernel_type() == DeviceType::kCuda) {  // Sums of 0.5 and up to 700 addends.
        EXPECT_TRUE(AllNear(got, bits, Tolerance(kF32, 700)));
      } else {
        EXPECT_EQ(got, bits);
      }
      Set(sums, std::vector<double>(bags.n * width, 0.5));
      ExpectSameBits(add, {sums});
      Clear();
    }
  }
}

TEST_P(BagsTest, RefusesWrongArguments) {
  const View vectors = Input({2, 3}, {1, 2, 3, 4, 5, 6}, kF32), out = Output({2, 3});
  const View places = Input({1, 2}, {0, 1}, DType::kInt32);
  const View first = Input({3}, {0, 1, 2}, DType::kInt32), none = Input({1}, {0}, DType::kInt32);
  const View order = Input({2}, {0, 1}, DType::kInt32), d = Input({2, 3}, {1, 2, 3, 4, 5, 6});
  const View sums = Output({2, 3}, kF32), narrow = Output({2, 2}, kF32);
  ExpectRefused([&](Stream& s) { PoolBags(s, vectors, places, none, out); },
                "[pool_bags] first has less than two");
  ExpectRefused([&](Stream& s) { PoolBags(s, vectors, first, first, out); }, "[pool_bags] places");
  ExpectRefused([&](Stream& s) { PoolBags(s, narrow, places, first, out); }, "[pool_bags] out");
  ExpectRefused([&](Stream& s) { PoolBagsBackward(s, d, places, first, first, sums); },
                "[pool_bags_backward] order");
  ExpectRefused([&](Stream& s) { PoolBagsBackward(s, d, places, order, first, narrow); },
                "[pool_bags_backward] d");
  ExpectRefused([&](Stream& s) { PoolBags(s, vectors, places, first, vectors); }, "overlap");
}

}  // namespace
}  // namespace fsdp
