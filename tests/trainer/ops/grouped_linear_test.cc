#include "trainer/ops/grouped_linear.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/harness.h"
#include "tests/testing/numeric.h"
#include "trainer/ops/linear.h"

namespace fsdp {
namespace {

using Values = std::vector<double>;
constexpr DType kI32 = DType::kInt32;
constexpr double kBefore = 0.5;

// Groups of so many rows, and rows behind them that belong to nobody.
struct Case {
  std::string name;
  std::vector<int64_t> counts;
  int64_t in, out, behind = 0, column = 0, right = 0;
  float scale = 1;
  bool add = false;

  int64_t experts() const { return std::ssize(counts); }
  int64_t used() const {
    int64_t sum = 0;
    for (const int64_t count : counts) sum += count;
    return sum;
  }
  int64_t rows() const { return used() + behind; }
  int64_t tokens() const { return rows() / 2 + 1; }
  int64_t width() const { return column + out + right; }
  GroupedOptions options() const { return {column, scale, add}; }
  Values Offsets() const {
    Values offsets{0};
    for (const int64_t count : counts) offsets.push_back(offsets.back() + double(count));
    return offsets;
  }
  int64_t GroupOf(int64_t row) const {
    int64_t e = 0;
    for (; row >= counts[e]; ++e) row -= counts[e];
    return e;
  }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<int64_t> Forty() {
  std::vector<int64_t> counts;
  for (int64_t e = 0; e < 40; ++e) counts.push_back(e * 7 % 5);
  return counts;
}

std::vector<Case> Cases(DeviceType device) {
  std::vector<Case> cases{
      {"one row", {0, 1, 0}, 3, 2},
      {"all to one", {0, 0, 70, 0}, 17, 33, 3},
      {"no rows", {0, 0}, 5, 3, 2},
      {"six", {5, 1, 0, 9, 16, 4}, 65, 7, 5, 3, 2, -0.5f},
      {"zipf", {96, 48, 32, 24, 19, 16, 13, 12, 0, 9, 8, 8, 7, 7, 6, 0}, 40, 48, 1},
      {"forty", Forty(), 6, 5},
      {"added", {40, 3, 66}, 32, 24, 0, 8, 0, 0.25f, true},
  };
  if (device == DeviceType::kCpu) {
    // Groups that are gathered in pieces, and sums in pieces.
    cases.push_back({"long rows", {0, 100, 3}, 4096, 3, 2, 1});
    cases.push_back({"longer rows", {2, 0, 3}, 70000, 5});
  }
  return cases;
}

class GroupedLinearTest : public OpTest {
 protected:
  // The operands of a case. Rows behind the groups hold NaN.
  struct Tensors {
    View x, dy;          // By row.
    View all_x, all_dy;  // By token, ...
    View sources;        // ... which has these rows.
    View w, offsets;
    Values x_values, dy_values, w_values;  // By row.
  };

  Tensors Make(const Case& c, uint64_t seed) {
    Random random(seed, dtype());
    const Values all_x = random.Vector(c.tokens() * c.in);
    const Values all_dy = random.Vector(c.tokens() * c.width());
    const Values w = random.Vector(c.experts() * c.out * c.in);
    Values sources(c.rows()), x(c.rows() * c.in, NAN), dy(c.rows() * c.width(), NAN);
    for (int64_t r = 0; r < c.used(); ++r) {
      const int64_t token = random.Integer(0, c.tokens() - 1);
      sources[r] = static_cast<double>(token);
      std::copy_n(all_x.begin() + token * c.in, c.in, x.begin() + r * c.in);
      std::copy_n(all_dy.begin() + token * c.width(), c.width(), dy.begin() + r * c.width());
    }
    return {Input({c.rows(), c.in}, x),
            Input({c.rows(), c.width()}, dy),
            Input({c.tokens(), c.in}, all_x),
            Input({c.tokens(), c.width()}, all_dy),
            Input({c.rows()}, sources, kI32),
            Input({c.experts() * c.out, c.in}, w),
            Input({c.experts() + 1}, c.Offsets(), kI32),
            x,
            dy,
            w};
  }

  void ExpectLayersOfTheirOwn(const Case& c);

  // A result of `cols` columns: what it holds where nothing is written. NaN where nothing is read.
  View Result(const Case& c, int64_t cols) {
    return c.add ? Accumulated({c.rows(), cols}, kBefore) : Output({c.rows(), cols});
  }

  // Other columns, and rows behind the groups, are as they were.
  void ExpectNear(const Case& c, const View& view, const Values& want, int64_t terms) {
    Values got = Get(view), wanted = want;
    for (size_t i = 0; i < got.size(); ++i) {
      if (!std::isnan(wanted[i])) continue;
      EXPECT_TRUE(c.add ? got[i] == kBefore : std::isnan(got[i])) << "element " << i;
      got[i] = wanted[i] = 0;
    }
    EXPECT_TRUE(AllNear(got, wanted, Tolerance(dtype(), terms)));
  }
};
FSDP_INSTANTIATE_OP_TEST(GroupedLinearTest, kF32, kBF16, kF16);

TEST_P(GroupedLinearTest, ForwardMatchesOracle) {
  for (const Case& c : Cases(kernel_type())) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Tensors t = Make(c, 1);
    Values want(c.rows() * c.width(), NAN);
    for (int64_t r = 0; r < c.used(); ++r) {
      for (int64_t o = 0; o < c.out; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < c.in; ++i) {
          sum += t.x_values[r * c.in + i] * t.w_values[(c.GroupOf(r) * c.out + o) * c.in + i];
        }
        want[r * c.width() + c.column + o] = c.scale * sum + (c.add ? kBefore : 0);
      }
    }
    const View y = Result(c, c.width()), gathered = Result(c, c.width());
    Run([&](Stream& s) { GroupedForward(s, t.x, {}, t.w, t.offsets, y, c.options()); });
    ExpectNear(c, y, want, c.in);
    EXPECT_EQ(cost().flops, 2.0 * c.rows() * c.in * c.out);
    Run([&](Stream& s) {
      GroupedForward(s, t.all_x, t.sources, t.w, t.offsets, gathered, c.options());
    });
    ExpectNear(c, gathered, want, c.in);
    Clear();
  }
}

TEST_P(GroupedLinearTest, DxMatchesOracle) {
  for (const Case& c : Cases(kernel_type())) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Tensors t = Make(c, 2);
    Values want(c.rows() * c.in, NAN);
    for (int64_t r = 0; r < c.used(); ++r) {
      for (int64_t i = 0; i < c.in; ++i) {
        double sum = 0;
        for (int64_t o = 0; o < c.out; ++o) {
          sum += t.dy_values[r * c.width() + c.column + o] *
                 t.w_values[(c.GroupOf(r) * c.out + o) * c.in + i];
        }
        want[r * c.in + i] = c.scale * sum + (c.add ? kBefore : 0);
      }
    }
    const View dx = Result(c, c.in), gathered = Result(c, c.in);
    Run([&](Stream& s) { GroupedDx(s, t.dy, {}, t.w, t.offsets, dx, c.options()); });
    ExpectNear(c, dx, want, c.out);
    EXPECT_EQ(cost().flops, 2.0 * c.rows() * c.in * c.out);
    Run([&](Stream& s) {
      GroupedDx(s, t.all_dy, t.sources, t.w, t.offsets, gathered, c.options());
    });
    ExpectNear(c, gathered, want, c.out);
    Clear();
  }
}

TEST_P(GroupedLinearTest, DwMatchesOracle) {
  for (const Case& c : Cases(kernel_type())) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Tensors t = Make(c, 3);
    Values want(c.experts() * c.out * c.in, kBefore);
    for (int64_t r = 0; r < c.used(); ++r) {
      for (int64_t o = 0; o < c.out; ++o) {
        const double d = c.scale * t.dy_values[r * c.width() + c.column + o];
        for (int64_t i = 0; i < c.in; ++i) {
          want[(c.GroupOf(r) * c.out + o) * c.in + i] += d * t.x_values[r * c.in + i];
        }
      }
    }
    for (const DType gradient : {kF32, dtype(), OtherHalf()}) {
      const auto run = [&](const View& dy, const std::optional<ConstView>& dy_sources,
                           const View& x, const std::optional<ConstView>& x_sources) {
        const View dw = Accumulated(t.w.shape, kBefore, gradient);
        Run([&](Stream& s) {
          GroupedDw(s, dy, dy_sources, x, x_sources, t.offsets, dw, c.options());
        });
        EXPECT_TRUE(AllNear(Get(dw), want, Tolerance(gradient, c.used() + 1)));
      };
      run(t.dy, {}, t.x, {});
      run(t.all_dy, t.sources, t.x, {});
      run(t.dy, {}, t.all_x, t.sources);
      run(t.all_dy, t.sources, t.all_x, t.sources);
    }
    Clear();
  }
}

// The same bits as a layer of the expert's own.
TEST_P(GroupedLinearTest, AnExpertIsALayerOfItsOwn) {
  std::vector<Case> cases{{"four", {30, 0, 129, 65}, 96, 80}};
  if (kernel_type() != DeviceType::kCpu) {
    // Large tiles: of y and dw, and of dx.
    cases.insert(cases.end(), {{"wide", {100, 60}, 3, 8192}, {"deep", {60, 100}, 8192, 3}});
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    ExpectLayersOfTheirOwn(c);
    Clear();
  }
}

void GroupedLinearTest::ExpectLayersOfTheirOwn(const Case& c) {
  const bool has_y = c.in < 1000, has_dx = c.out < 1000;  // Others take an emulator too long.
  const Tensors t = Make(c, 4);
  const View y = Output({c.rows(), c.out}), dx = Output({c.rows(), c.in});
  const View dw = Accumulated(t.w.shape, kBefore);
  Run([&](Stream& s) {
    if (has_y) GroupedForward(s, t.x, {}, t.w, t.offsets, y);
    if (has_dx) GroupedDx(s, t.dy, {}, t.w, t.offsets, dx);
    if (has_y) GroupedDw(s, t.dy, {}, t.x, {}, t.offsets, dw);
  });
  const Values got_y = Get(y), got_dx = Get(dx), got_dw = Get(dw);
  const auto part = [](const Values& v, int64_t begin, int64_t count) {
    return Values(v.begin() + begin, v.begin() + begin + count);
  };
  for (int64_t e = 0, row = 0; e < c.experts(); row += c.counts[e++]) {
    const int64_t rows = c.counts[e], weights = c.out * c.in;
    const View x = Input({rows, c.in}, part(t.x_values, row * c.in, rows * c.in));
    const View dy = Input({rows, c.out}, part(t.dy_values, row * c.out, rows * c.out));
    const View w = Input({c.out, c.in}, part(t.w_values, e * weights, weights));
    const View own_y = Output({rows, c.out}), own_dx = Output({rows, c.in});
    const View own_dw = Accumulated(w.shape, kBefore);
    Run([&](Stream& s) {
      constexpr auto kLayout = WeightLayout::kOutIn;
      if (has_y) LinearForward(s, x, w, kLayout, {}, own_y);
      if (has_dx) LinearBackward(s, x, w, kLayout, dy, own_dx, {}, {});
      if (has_y) LinearBackward(s, x, w, kLayout, dy, {}, own_dw, {});
    });
    const auto expect_same = [](bool has, const Values& got, const Values& want) {
      if (has) {
        EXPECT_EQ(got, want);
      }
    };
    expect_same(has_y, part(got_y, row * c.out, rows * c.out), Get(own_y));
    expect_same(has_dx, part(got_dx, row * c.in, rows * c.in), Get(own_dx));
    expect_same(has_y, part(got_dw, e * weights, weights), Get(own_dw));
  }
}

// Experts by stretches, each of its rows alone: together they make every bit of all at once.
TEST_P(GroupedLinearTest, StretchesOfExpertsMakeTheWhole) {
  const Case all{"all", {5, 1, 0, 70, 16, 4}, 65, 23, 6};
  const Tensors t = Make(all, 6);
  const View y = Output({all.rows(), all.out}), dx = Output({all.rows(), all.in});
  const View parts_y = Output(y.shape), parts_dx = Output(dx.shape);
  const View dw = Accumulated(t.w.shape, kBefore), parts_dw = Accumulated(t.w.shape, kBefore);
  Run([&](Stream& s) {
    GroupedForward(s, t.all_x, t.sources, t.w, t.offsets, y);
    GroupedDx(s, t.all_dy, t.sources, t.w, t.offsets, dx);
    GroupedDw(s, t.dy, {}, t.all_x, t.sources, t.offsets, dw);
  });
  const double flops = cost().flops;
  double of_parts = 0;
  for (const int64_t first : {0, 2, 4}) {
    const View offsets = t.offsets.Slice(first, 3);
    const auto weights = [&](const View& w) {
      const int64_t expert = all.out * all.in;
      return w.Slice(first * expert, 2 * expert).Reshape({2 * all.out, all.in});
    };
    const GroupedOptions third{.parts = 3};
    Run([&](Stream& s) {
      GroupedForward(s, t.all_x, t.sources, weights(t.w), offsets, parts_y, third);
      GroupedDx(s, t.all_dy, t.sources, weights(t.w), offsets, parts_dx, third);
      GroupedDw(s, t.dy, {}, t.all_x, t.sources, offsets, weights(parts_dw), third);
    });
    of_parts += cost().flops;
  }
  const auto same = [&](const View& got, const View& want) {
    const Values a = Get(got), b = Get(want);
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_TRUE(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) << i;
    }
  };
  same(parts_y, y);
  same(parts_dx, dx);
  same(parts_dw, dw);
  EXPECT_EQ(of_parts, flops);  // 102 rows.
}

// A row among many, and alone.
TEST_P(GroupedLinearTest, ARowHasTheSameBitsWhateverElseIsThere) {
  const Case many{"many", {20, 70, 0, 41}, 70, 40};
  const Tensors t = Make(many, 5);
  const View y = Output({many.rows(), many.out}), dx = Output({many.rows(), many.in});
  Run([&](Stream& s) {
    GroupedForward(s, t.all_x, t.sources, t.w, t.offsets, y);
    GroupedDx(s, t.all_dy, t.sources, t.w, t.offsets, dx);
  });
  const Values got_y = Get(y), got_dx = Get(dx), sources = Get(t.sources);
  for (const int64_t row : {0, 19, 20, 89, 90, 130}) {
    Values offsets;
    for (int64_t e = 0; e <= many.experts(); ++e) offsets.push_back(e > many.GroupOf(row) ? 1 : 0);
    const View of_one = Input({many.experts() + 1}, offsets, kI32);
    const View source = Input({1}, {sources[row]}, kI32);
    const View one_y = Output({1, many.out}), one_dx = Output({1, many.in});
    Run([&](Stream& s) {
      GroupedForward(s, t.all_x, source, t.w, of_one, one_y);
      GroupedDx(s, t.all_dy, source, t.w, of_one, one_dx);
    });
    const auto equal = [&](const Values& one, const Values& all) {
      return std::equal(one.begin(), one.end(), all.begin() + row * std::ssize(one));
    };
    EXPECT_TRUE(equal(Get(one_y), got_y)) << row;
    EXPECT_TRUE(equal(Get(one_dx), got_dx)) << row;
  }
}

TEST_P(GroupedLinearTest, WeightsMayBeFp32) {
  const Case c{"two", {9, 4}, 33, 10};
  const Tensors t = Make(c, 6);
  const View w = Input(t.w.shape, t.w_values, kF32);
  const View y = Output({c.rows(), c.out}), same = Output(y.shape);
  const View dx = Output({c.rows(), c.in}), same_dx = Output(dx.shape);
  Run([&](Stream& s) {
    GroupedForward(s, t.x, {}, w, t.offsets, y);
    GroupedForward(s, t.x, {}, t.w, t.offsets, same);
    GroupedDx(s, t.dy, {}, w, t.offsets, dx);
    GroupedDx(s, t.dy, {}, t.w, t.offsets, same_dx);
  });
  EXPECT_TRUE(AllNear(Get(y), Get(same), Tolerance(dtype(), c.in)));
  EXPECT_TRUE(AllNear(Get(dx), Get(same_dx), Tolerance(dtype(), c.out)));
}

TEST_P(GroupedLinearTest, BitsDoNotDependOnThreads) {
  const bool on_cpu = kernel_type() == DeviceType::kCpu;
  const Case c{"three", {on_cpu ? 300 : 30, 77, 0, on_cpu ? 211 : 21}, on_cpu ? 530 : 53, 70};
  const Tensors t = Make(c, 7);
  const View y = Output({c.rows(), c.out}), dx = Output({c.rows(), c.in});
  const View dw = Accumulated(t.w.shape), other = Accumulated(t.w.shape);
  ExpectSameBits(
      [&](Stream& s) {
        GroupedForward(s, t.all_x, t.sources, t.w, t.offsets, y);
        GroupedDx(s, t.all_dy, t.sources, t.w, t.offsets, dx);
        GroupedDw(s, t.all_dy, t.sources, t.x, {}, t.offsets, dw);
        GroupedDw(s, t.dy, {}, t.all_x, t.sources, t.offsets, other);
      },
      {y, dx, dw, other});
}

TEST_P(GroupedLinearTest, RefusesWrongArguments) {
  const View x = Output({4, 3}), w = Output({6, 3}), y = Output({4, 2});
  const View offsets = Input({4}, {0, 1, 2, 4}, kI32), sources = Input({4}, {0, 1, 2, 3}, kI32);
  ExpectRefused([&](Stream& s) { GroupedForward(s, x, {}, w, Input({1}, {0}, kI32), y); },
                "[grouped_forward] offsets has less than two elements");
  ExpectRefused([&](Stream& s) { GroupedForward(s, x, {}, w, sources.Slice(0, 3), y); },
                "[grouped_forward] column, want an expert's outputs within the columns");
  ExpectRefused(
      [&](Stream& s) {
        GroupedForward(s, x, {}, Output({7, 3}), offsets, y);
      },
      "as many rows for each expert");
  ExpectRefused([&](Stream& s) { GroupedForward(s, x, {}, w, offsets, y, {.column = 1}); },
                "[grouped_forward] column, want");
  ExpectRefused([&](Stream& s) { GroupedForward(s, x, sources.Slice(0, 3), w, offsets, y); },
                "[grouped_forward] y is $T [4, 2], want $T [3, 2]");
  const View wide = Output({4, 6});
  ExpectRefused(
      [&](Stream& s) {
        GroupedForward(s, wide.Slice(0, 12).Reshape({4, 3}), {}, w, offsets, wide);
      },
      "y and x overlap");
  ExpectRefused(
      [&](Stream& s) {
        GroupedDx(s, y, {}, w, offsets, Output({3, 3}));
      },
      "[grouped_dx] dx is $T [3, 3], want $T [4, 3]");
  ExpectRefused([&](Stream& s) { GroupedDx(s, y, {}, w, offsets, w); }, "[grouped_dx] dx is");
  ExpectRefused(
      [&](Stream& s) {
        GroupedDw(s, y, {}, Output({3, 3}), {}, offsets, w);
      },
      "[grouped_dw] x and dy have other numbers of rows");
  ExpectRefused(
      [&](Stream& s) {
        GroupedDw(s, y, {}, x, {}, offsets, Output({6, 2}));
      },
      "[grouped_dw] dw is");
  ExpectRefused([&](Stream& s) { GroupedDw(s, y, {}, x, w, offsets, w); },
                "[grouped_dw] x_sources is");
}

}  // namespace
}  // namespace fsdp
