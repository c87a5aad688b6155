// The promises themselves: see communicator_suite.h.
#include "tests/trainer/comm/communicator_suite.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <future>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "trainer/comm/traffic.h"
#include "trainer/core/philox.h"
#include "trainer/runtime/operation.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kLengths[] = {0, 1, 7, 4096, 100003};

// Any bits, NaNs too: byte i of rank r is hash(i + 97 r).
const std::byte* BytesOf(int rank) {
  static const std::vector<std::byte> bytes = [] {
    std::vector<std::byte> table((4 << 20) + 97 * 8);
    uint32_t state = 1;
    for (std::byte& b : table) {
      state = state * 1664525 + 1013904223;  // Numerical Recipes' generator.
      b = static_cast<std::byte>(state >> 24);
    }
    return table;
  }();
  return bytes.data() + 97 * rank;
}

std::string Describe(const char* what, DType dtype, int64_t n, bool in_place) {
  return std::string(what) + " of " + std::to_string(n) + " " + std::string(Name(dtype)) +
         (in_place ? " in place" : "");
}

// Numbers whose sum depends on the order, to the last bit.
float Delicate(int rank, int64_t i) {
  constexpr float kValues[] = {1e8f, 1.f, -1e8f, 3.25f, 1e-3f, -7e7f, 7e7f, 0.1f};
  return kValues[(rank + i) % 8] * (1.f + static_cast<float>(i % 5));
}

// Elements that others copy of `rank` in it.
int64_t ElementsTaken(Collective kind, int rank, int size, int64_t n) {
  const int64_t others = size - 1;
  // In an all-reduce each rank adds up a slice: it gets that slice from each other, and gives its
  // sum.
  const int64_t slice = n * (rank + 1) / size - n * rank / size;
  if (kind == Collective::kAllReduce) return n - slice + others * slice;
  if (kind == Collective::kBroadcast && rank != size - 1) return 0;
  return others * n;
}

}  // namespace

TEST_P(CommunicatorSuite, GathersEveryBit) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("gather", Patient());
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8}) {
      for (const int64_t n : kLengths) {
        for (const bool in_place : {false, true}) {
          Tensor full(device, dtype, n * rank.size), apart(device, dtype, n);
          const View shard = in_place ? full.Slice(rank.rank * n, n) : apart.view();
          const int64_t bytes = shard.bytes();
          if (bytes > 0) std::memcpy(HostAddress(shard.data), BytesOf(rank.rank), bytes);
          comm->AllGather(*stream, shard, full.view());
          stream->Synchronize();
          for (int r = 0; r < rank.size; ++r) {
            full.RequireBytes(r * bytes, bytes, BytesOf(r),
                              Describe("all-gather", dtype, n, in_place));
          }
        }
      }
    }
    return "";
  });
}

TEST_P(CommunicatorSuite, ReduceScatters) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("reduce_scatter", Patient());
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const int64_t n : kLengths) {
        for (const bool in_place : {false, true}) {
          Tensor full(device, dtype, n * rank.size), apart(device, dtype, n);
          full.FillPeriodic([&](int64_t i) { return Value(rank.rank, i); });
          const int64_t begin = rank.rank * n, end = begin + n;
          const View shard = in_place ? full.Slice(begin, n) : apart.view();
          comm->ReduceScatter(*stream, full.view(), shard);
          stream->Synchronize();
          const std::string what = Describe("reduce-scatter", dtype, n, in_place);
          const auto mine = [&](int64_t i) { return Value(rank.rank, i); };
          const auto sum = [&](int64_t i) { return SumOfValues(rank.size, i); };
          full.RequirePeriodic(0, begin, mine, what);  // Only the slice changes.
          if (in_place) {
            full.RequirePeriodic(begin, n, sum, what);
          } else {
            full.RequirePeriodic(begin, n, mine, what);
            apart.RequirePeriodic(
                0, n, [&](int64_t i) { return sum(begin + i); }, what);
          }
          full.RequirePeriodic(end, full.view().NumElements() - end, mine, what);
        }
      }
    }
    return "";
  });
}

TEST_P(CommunicatorSuite, ReduceScattersIntoFp32WithoutRounding) {
  const bool exact = GetParam().in_rank_order;
  ExpectAllFine([exact](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("reduce_scatter", Patient());
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      // Next to it the sums of small numbers have no number of this dtype, so exact sums alone add
      // it.
      const float large = dtype == DType::kBFloat16 ? 256.0f : 2048.0f;
      for (const int64_t n : kLengths) {
        Tensor full(device, dtype, n * rank.size), shard(device, DType::kFloat32, n);
        const auto own = [&](int r, int64_t i) { return exact && r == 0 ? large : Value(r, i); };
        full.FillPeriodic([&](int64_t i) { return own(rank.rank, i); });
        comm->ReduceScatter(*stream, full.view(), shard.view());
        stream->Synchronize();
        const auto sum = [&](int64_t i) {
          const float first = exact ? large - Value(0, rank.rank * n + i) : 0;
          return SumOfValues(rank.size, rank.rank * n + i) + first;
        };
        shard.RequirePeriodic(0, n, sum, Describe("reduce-scatter into fp32", dtype, n, false));
      }
    }
    return "";
  });
}

TEST_P(CommunicatorSuite, AllReduces) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("all_reduce", Patient());
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      // The last is more than one piece of a staging buffer for every size.
      for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{4096}, int64_t{300001}}) {
        Tensor data(device, dtype, n);
        data.FillPeriodic([&](int64_t i) { return Value(rank.rank, i); });
        comm->AllReduce(*stream, data.view());
        stream->Synchronize();
        data.RequirePeriodic(
            0, n, [&](int64_t i) { return SumOfValues(rank.size, i); },
            Describe("all-reduce", dtype, n, true));
      }
    }
    return "";
  });
}

TEST_P(CommunicatorSuite, ExchangesAllToAll) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("all_to_all", Patient());
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t n : kLengths) {
        Tensor in(device, dtype, n * rank.size), out(device, dtype, n * rank.size);
        std::memcpy(HostAddress(in.view().data), BytesOf(rank.rank), in.view().bytes());
        comm->AllToAll(*stream, in.view(), out.view());
        stream->Synchronize();
        const int64_t bytes = n * SizeOf(dtype);
        for (int r = 0; r < rank.size; ++r) {
          out.RequireBytes(r * bytes, bytes, BytesOf(r) + rank.rank * bytes,
                           Describe("all-to-all", dtype, n, false));
        }
      }
    }
    return "";
  });
}

// Counts of a layout: of every pair another one, none for some, and much more than a staging buffer
// for one. The same elements of the last rank go to everybody.
ExchangeLayout Uneven(int size, int64_t largest) {
  std::vector<int64_t> counts, begins;
  for (int from = 0; from < size; ++from) {
    int64_t begin = 3;
    for (int to = 0; to < size; ++to) {
      const int64_t count = (from + 2 * to) % 3 == 0 ? 0 : 7 * from + 13 * to + 1;
      counts.push_back(from == size - 1 ? 50 : from == 0 && to == size / 2 ? largest : count);
      begins.push_back(from == size - 1 ? 5 : begin);
      begin += counts.back() + 1;
    }
  }
  return ExchangeLayout(size, counts, begins);
}

TEST_P(CommunicatorSuite, ExchangesUnevenCounts) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("exchange", Patient());
    Traffic traffic;
    comm->CountIn(&traffic);
    const ExchangeLayout nothing(rank.size, std::vector<int64_t>(rank.size * rank.size));
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const ExchangeLayout small = Uneven(rank.size, 0), large = Uneven(rank.size, 300001);
      for (const ExchangeLayout* layout : {&small, &nothing, &large}) {
        const int64_t element = SizeOf(dtype);
        // More than the layout asks for: what is behind it stays.
        const int64_t arrives = layout->OutElements(rank.rank);
        Tensor in(device, dtype, layout->InElements(rank.rank) + 2),
            out(device, dtype, arrives + 4);
        std::memcpy(HostAddress(in.view().data), BytesOf(rank.rank), in.view().bytes());
        out.FillPeriodic([](int64_t) { return 1; });
        traffic.Clear();
        const int64_t before = comm->bytes_given(Collective::kAllToAll);
        comm->Exchange(*stream, *layout, in.view(), out.view());
        stream->Synchronize();
        for (int r = 0; r < rank.size; ++r) {
          const Stretch sent = layout->Sent(r, rank.rank), came = layout->Arrived(rank.rank, r);
          out.RequireBytes(came.begin * element, came.count * element,
                           BytesOf(r) + sent.begin * element,
                           Describe("exchange", dtype, came.count, false));
        }
        out.RequirePeriodic(
            arrives, 4, [](int64_t) { return 1; }, "behind what arrives");
        const int64_t want = layout->ToOthers(rank.rank) * element;
        Require(traffic.Read().of(Collective::kAllToAll) == want, "others took another number");
        Require(comm->bytes_given(Collective::kAllToAll) - before == want, "planned another");
      }
    }
    return "";
  });
}

TEST_P(CommunicatorSuite, RanksWithDifferentLayoutsEnd) {
  if (size() == 1) return;
  const std::vector<Outcome> outcomes = Run([](Rank& rank) -> std::string {
    const auto stream = rank.device->CreateStream("comm");
    const auto comm = rank.join("layouts", Patient());
    std::vector<int64_t> counts(rank.size * rank.size, 2);
    counts[rank.rank == 1 ? 1 : rank.size] = 3;  // The same sum; from 0 to 1, and from 1 to 0.
    const ExchangeLayout layout(rank.size, counts);
    Tensor in(*rank.device, DType::kFloat32, 64), out(*rank.device, DType::kFloat32, 64);
    comm->Exchange(*stream, layout, in.view(), out.view());
    stream->Synchronize();
    return "";
  });
  for (const Outcome& outcome : outcomes) EXPECT_NE(outcome.error, "");
}

TEST_P(CommunicatorSuite, BroadcastsFromEveryRoot) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("broadcast", Patient());
    for (int root = 0; root < rank.size; ++root) {
      for (const int64_t n : {int64_t{0}, int64_t{7}, int64_t{300001}}) {
        Tensor data(device, DType::kFloat32, n);
        std::memcpy(HostAddress(data.view().data), BytesOf(rank.rank), data.view().bytes());
        comm->Broadcast(*stream, data.view(), root);
        stream->Synchronize();
        data.RequireBytes(0, data.view().bytes(), BytesOf(root),
                          Describe("broadcast", DType::kFloat32, n, true));
      }
    }
    return "";
  });
}

TEST_P(CommunicatorSuite, SumsInFloat32InRankOrderAndRoundsOnce) {
  if (!GetParam().in_rank_order) return;
  // Otherwise the test would not see another order.
  if (size() >= 3) {
    const float forward = (Delicate(0, 0) + Delicate(1, 0)) + Delicate(2, 0);
    const float backward = (Delicate(2, 0) + Delicate(1, 0)) + Delicate(0, 0);
    const float outside_in = (Delicate(0, 0) + Delicate(2, 0)) + Delicate(1, 0);
    ASSERT_EQ(forward, 0.f);
    ASSERT_EQ(outside_in, 1.f);
    ASSERT_EQ(backward, 0.f);
  }
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("order", Patient());
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const auto wire = [&](float x) {
        return dtype == DType::kFloat32 ? x : static_cast<float>(BFloat16(x));
      };
      const auto want = [&](int64_t i) {
        float sum = wire(Delicate(0, i));
        for (int r = 1; r < rank.size; ++r) sum += wire(Delicate(r, i));
        return wire(sum);
      };
      constexpr int64_t n = 5003;
      Tensor full(device, dtype, n * rank.size), shard(device, dtype, n);
      full.Fill([&](int64_t i) { return Delicate(rank.rank, i); });
      comm->ReduceScatter(*stream, full.view(), shard.view());
      comm->AllReduce(*stream, full.view());
      stream->Synchronize();
      shard.RequireEqual([&](int64_t i) { return want(rank.rank * n + i); }, "reduce-scatter");
      full.RequireEqual(want, "all-reduce");
    }
    return "";
  });
}

TEST_P(CommunicatorSuite, TwoCommunicatorsOnTwoStreamsInAnyOrderOfIssue) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto a = device.CreateStream("gather"), b = device.CreateStream("reduce");
    const auto gather = rank.join("gather", Patient()), reduce = rank.join("reduce", Patient());
    constexpr int kRounds = 30;
    constexpr int64_t n = 3001;
    std::vector<Tensor> fulls, sums;
    for (int i = 0; i < kRounds; ++i) {
      fulls.emplace_back(device, DType::kFloat32, n * rank.size);
      sums.emplace_back(device, DType::kFloat32, n);
      sums[i].Fill([&](int64_t k) { return Value(rank.rank + i, k); });
      const View shard = fulls[i].Slice(rank.rank * n, n);
      for (int64_t k = 0; k < n; ++k) Host(shard).As<float>()[k] = Value(rank.rank + 2 * i, k);
    }
    const auto issue_gather = [&](int i) {
      gather->AllGather(*a, fulls[i].Slice(rank.rank * n, n), fulls[i].view());
    };
    const auto issue_reduce = [&](int i) { reduce->AllReduce(*b, sums[i].view()); };
    if (rank.rank % 2 == 0) {  // All gathers first, or all reductions.
      for (int i = 0; i < kRounds; ++i) issue_gather(i);
      for (int i = 0; i < kRounds; ++i) issue_reduce(i);
    } else {
      for (int i = 0; i < kRounds; ++i) issue_reduce(i);
      for (int i = 0; i < kRounds; ++i) issue_gather(i);
    }
    b->Synchronize();
    a->Synchronize();
    for (int i = 0; i < kRounds; ++i) {
      fulls[i].RequireEqual(
          [&](int64_t k) { return Value(static_cast<int>(k / n) + 2 * i, k % n); }, "gather");
      sums[i].RequireEqual(
          [&](int64_t k) {
            float sum = 0;
            for (int r = 0; r < rank.size; ++r) sum += Value(r + i, k);
            return sum;
          },
          "reduce");
    }
    return "";
  });
}

std::string MixedCollectives(Rank& rank) {
  Device& device = *rank.device;
  const auto stream = device.CreateStream("comm");
  const auto comm = rank.join("mixed", Patient());
  const RandomStream random(7, "mixed collectives");
  const auto pick = [&](int round, uint64_t salt, uint64_t below) {
    return random.Below(static_cast<uint64_t>(round) * 16 + salt, below);
  };
  std::vector<Tensor> results;
  for (int round = 0; round < 25; ++round) {
    constexpr int64_t kSizes[] = {0, 1, 13, 511, 8192, 18721, 131073};
    const int64_t n = kSizes[pick(round, 0, std::size(kSizes))];
    const DType dtype = pick(round, 1, 2) == 0 ? DType::kFloat32 : DType::kBFloat16;
    const int kind = static_cast<int>(pick(round, 2, kCollectives));
    const bool full_in = kind == 1 || kind == 3, full_out = kind == 0 || kind == 3;
    Tensor in(device, dtype, full_in ? n * rank.size : n);
    Tensor out(device, dtype, full_out ? n * rank.size : n);
    in.Fill([&](int64_t i) {
      const auto word = static_cast<uint32_t>(i * 100 + round * 10 + rank.rank) * 2654435761u;
      return static_cast<float>(word) * 0x1p-32f - 0.5f;
    });
    switch (static_cast<Collective>(kind)) {
      case Collective::kAllGather:
        comm->AllGather(*stream, in.view(), out.view());
        break;
      case Collective::kReduceScatter:
        comm->ReduceScatter(*stream, in.view(), out.view());
        break;
      case Collective::kAllReduce:
        comm->AllReduce(*stream, in.view());
        break;
      case Collective::kAllToAll:
        comm->AllToAll(*stream, in.view(), out.view());
        break;
      case Collective::kBroadcast:
        comm->Broadcast(*stream, in.view(), static_cast<int>(pick(round, 3, rank.size)));
        break;
    }
    results.push_back(std::move(in));
    results.push_back(std::move(out));
  }
  stream->Synchronize();
  uint64_t hash = 0;
  for (const Tensor& result : results) hash = hash * 31 + result.Fingerprint();
  return std::to_string(hash);
}

TEST_P(CommunicatorSuite, MixedCollectivesRepeatTheirBits) {
  const auto first = Run(MixedCollectives), second = Run(MixedCollectives);
  for (int r = 0; r < size(); ++r) {
    EXPECT_EQ(first[r].error, "");
    EXPECT_NE(first[r].result, "");
    EXPECT_EQ(first[r].result, second[r].result);
  }
}

void Issue(Communicator& comm, Stream& stream, Collective kind, const View& full, const View& shard,
           const View& other) {
  switch (kind) {
    case Collective::kAllGather:
      return comm.AllGather(stream, shard, full);
    case Collective::kReduceScatter:
      return comm.ReduceScatter(stream, full, shard);
    case Collective::kAllReduce:
      return comm.AllReduce(stream, shard);
    case Collective::kAllToAll:
      return comm.AllToAll(stream, full, other);
    case Collective::kBroadcast:
      return comm.Broadcast(stream, shard, comm.size() - 1);
  }
}

TEST_P(CommunicatorSuite, CountsWhatOthersTake) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("traffic", Patient());
    Traffic traffic;
    comm->CountIn(&traffic);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t n : {0, 1, 7, 4096, 300001}) {
        Tensor full(device, dtype, n * rank.size), other(device, dtype, n * rank.size);
        Tensor shard(device, dtype, n);
        full.FillPeriodic([&](int64_t i) { return Value(rank.rank, i); });
        shard.FillPeriodic([&](int64_t i) { return Value(rank.rank, i); });
        for (int k = 0; k < kCollectives; ++k) {
          const auto kind = static_cast<Collective>(k);
          traffic.Clear();
          const int64_t before = comm->bytes_given(kind);
          Issue(*comm, *stream, kind, full.view(), shard.view(), other.view());
          stream->Synchronize();
          TrafficBytes want;
          want.taken[k] = ElementsTaken(kind, rank.rank, rank.size, n) * SizeOf(dtype);
          const TrafficBytes got = traffic.Read();
          Require(got.taken == want.taken, Describe(Name(kind), dtype, n, false) +
                                               ": others took " + std::to_string(got.taken[k]) +
                                               " bytes, want " + std::to_string(want.taken[k]));
          Require(comm->bytes_given(kind) - before == want.taken[k], "planned another number");
        }
      }
    }
    return "";
  });
}

// A part of another collective counts as that one.
TEST_P(CommunicatorSuite, CountsPartsAsTheWhole) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("parts", Patient());
    constexpr int64_t n = 600;
    Tensor full(device, DType::kUInt8, n * rank.size), other(device, DType::kUInt8, n * rank.size);
    full.FillPeriodic([&](int64_t i) { return (rank.rank + i) % 200; });
    Traffic traffic;
    comm->CountIn(&traffic);
    comm->AllToAll(*stream, full.view(), other.view(), Collective::kReduceScatter);
    comm->AllGather(*stream, full.view().Slice(rank.rank * n, n), full.view(),
                    Collective::kAllReduce);
    stream->Synchronize();
    const TrafficBytes got = traffic.Read();
    for (int k = 0; k < kCollectives; ++k) {
      const auto kind = static_cast<Collective>(k);
      const bool counts = kind == Collective::kReduceScatter || kind == Collective::kAllReduce;
      const int64_t want = counts ? (rank.size - 1) * n : 0;
      Require(got.of(kind) == want, std::string(Name(kind)) + " has " +
                                        std::to_string(got.of(kind)) + " bytes, want " +
                                        std::to_string(want));
      Require(comm->bytes_given(kind) == want, "planned another number");
    }
    return "";
  });
}

// Whatever has been issued since, and however late it runs.
TEST_P(CommunicatorSuite, ACallCountsWhereItWasIssued) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm"), gate = device.CreateStream("gate");
    const auto comm = rank.join("issued", Patient());
    constexpr int64_t n = 600;
    Tensor full(device, DType::kFloat32, n * rank.size), shard(device, DType::kFloat32, n);
    shard.FillPeriodic([&](int64_t i) { return Value(rank.rank, i); });
    std::promise<void> open;
    gate->Enqueue({"gate", {}, {}, {}, {.host = [&](ThreadPool&) { open.get_future().wait(); }}});
    stream->Wait(gate->Record());
    Traffic first, second;
    comm->CountIn(&first);
    comm->AllGather(*stream, shard.view(), full.view());
    comm->CountIn(&second);
    comm->ReduceScatter(*stream, full.view(), shard.view());
    comm->AllGather(*stream, shard.view(), full.view());
    comm->CountIn(nullptr);
    comm->AllReduce(*stream, shard.view());
    open.set_value();
    stream->Synchronize();
    const int64_t bytes = (rank.size - 1) * n * 4;
    Require(first.Read().taken == std::array<int64_t, kCollectives>{bytes}, "the first");
    Require(second.Read().taken == std::array<int64_t, kCollectives>{bytes, bytes}, "the second");
    return "";
  });
}

// Each rank is of two groups beside the world's, as on a mesh: every `step`-th rank, and
// neighbours.
TEST_P(CommunicatorSuite, GroupsOfSomeRanksKeepToThemselves) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const int step = rank.size / 2 + 1;
    std::vector<int> strided, neighbours;
    for (int r = 0; r < rank.size; ++r) {
      if (r % step == rank.rank % step) strided.push_back(r);
      if (r / step == rank.rank / step) neighbours.push_back(r);
    }
    const auto all = rank.join("all", Patient());
    const auto stream = device.CreateStream("all");
    Tensor sum(device, DType::kFloat32, 5003);
    sum.Fill([&](int64_t i) { return Value(rank.rank, i); });
    int round = 0;
    for (const std::vector<int>& ranks : {strided, neighbours}) {
      const RankGroup group(ranks, rank.rank);
      const std::string name = std::to_string(round++) + " from " + std::to_string(ranks[0]);
      const auto comm = rank.join_group(name, group, Patient());
      const auto own = device.CreateStream("group");
      Require(comm->rank() == group.rank() && comm->size() == group.size(), "place in the group");
      constexpr int64_t n = 5003;
      Tensor full(device, DType::kFloat32, n * group.size()), shard(device, DType::kFloat32, n);
      shard.Fill([&](int64_t i) { return Delicate(rank.rank, i); });
      all->AllReduce(*stream, sum.view());  // Under way at the same time.
      comm->AllGather(*own, shard.view(), full.view());
      comm->ReduceScatter(*own, full.view(), shard.view());
      own->Synchronize();
      full.RequireEqual([&](int64_t i) { return Delicate(ranks[i / n], i % n); }, "all-gather");
      shard.RequireEqual(
          [&](int64_t i) {  // Everybody's copy of this rank's part.
            const float mine = Delicate(rank.rank, i);
            float value = mine;
            for (int r = 1; r < group.size(); ++r) value += mine;
            return value;
          },
          "reduce-scatter");
      // In the order of the group: the first one's is large.
      Tensor delicate(device, DType::kFloat32, n);
      delicate.Fill([&](int64_t i) { return Delicate(group.rank(), i); });
      comm->AllReduce(*own, delicate.view());
      own->Synchronize();
      delicate.RequireEqual(
          [&](int64_t i) {
            float value = Delicate(0, i);
            for (int r = 1; r < group.size(); ++r) value += Delicate(r, i);
            return value;
          },
          "all-reduce");
      // An abort ends no other group, and names ranks as the world does.
      if (group.rank() == group.size() - 1) comm->Abort("enough");
      comm->AllReduce(*own, shard.view());
      RequireContains(CommErrorOf(*own),
                      "rank " + std::to_string(ranks.back()) + " aborted: enough");
      stream->Synchronize();
    }
    return "";
  });
}

TEST_P(CommunicatorSuite, RanksThatDisagreeAllFailWithBothSides) {
  if (size() == 1) return;  // Nobody to disagree with.
  using Call = void (*)(Communicator&, Stream&, View);
  struct Disagreement {
    const char* name;
    Call theirs, odd;  // Calls of all but the last rank, and of the last.
    const char *their_text, *odd_text;
  };
  const Call all_reduce = [](Communicator& c, Stream& s, View data) { c.AllReduce(s, data); };
  const Disagreement disagreements[] = {
      {"n", all_reduce,
       [](Communicator& c, Stream& s, View data) { c.AllReduce(s, data.Slice(0, 0)); },
       "all_reduce #0 (n = 7, fp32)", "all_reduce #0 (n = 0, fp32)"},
      {"dtype", all_reduce,
       [](Communicator& c, Stream& s, View data) {
         c.AllReduce(s, View(data.data, DType::kBFloat16, Shape{7}));
       },
       "all_reduce #0 (n = 7, fp32)", "all_reduce #0 (n = 7, bf16)"},
      {"kind", all_reduce, [](Communicator& c, Stream& s, View data) { c.Broadcast(s, data, 1); },
       "all_reduce #0 (n = 7, fp32)", "broadcast #0 (n = 7, fp32, root 1)"},
      {"root", [](Communicator& c, Stream& s, View data) { c.Broadcast(s, data, 0); },
       [](Communicator& c, Stream& s, View data) { c.Broadcast(s, data, 1); },
       "broadcast #0 (n = 7, fp32, root 0)", "broadcast #0 (n = 7, fp32, root 1)"},
  };
  for (const Disagreement& d : disagreements) {
    SCOPED_TRACE(d.name);
    ExpectAllFine([&](Rank& rank) -> std::string {
      Device& device = *rank.device;
      const auto stream = device.CreateStream("comm"), later = device.CreateStream("later");
      const auto comm = rank.join("disagree", Patient());
      Tensor data(device, DType::kFloat32, 7);
      (rank.rank == rank.size - 1 ? d.odd : d.theirs)(*comm, *stream, data.view());
      const std::string error = CommErrorOf(*stream);
      RequireContains(error, std::string("rank 0 is in ") + d.their_text);
      RequireContains(error, "rank " + std::to_string(rank.size - 1) + " in " + d.odd_text);
      comm->AllReduce(*later, data.view());
      Require(CommErrorOf(*later) == error, "a later call must fail alike");
      return "";
    });
  }
}

TEST_P(CommunicatorSuite, NamesTheRankThatNeverComes) {
  if (size() != 3 && size() != 8) return;  // It takes a second each.
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    CommOptions options;
    options.timeout_s = 1;
    const auto comm = rank.join("late", options);
    Tensor data(device, DType::kFloat32, 7);
    const bool late = rank.rank == rank.size - 1;
    comm->AllReduce(*stream, data.view());
    stream->Synchronize();
    Barrier(*rank.store, "all are up", rank.rank, rank.size);
    if (!late) {
      comm->AllReduce(*stream, data.view());
      const std::string error = CommErrorOf(*stream);
      RequireContains(error, "all_reduce #1 (n = 7, fp32) timed out after 1 s");
      RequireContains(error, "rank " + std::to_string(rank.size - 1) +
                                 " has not arrived (its last was all_reduce #0)");
    }
    Barrier(*rank.store, "all have failed", rank.rank, rank.size);
    if (late) {  // Too late: the group is beyond repair.
      comm->AllReduce(*stream, data.view());
      RequireContains(CommErrorOf(*stream), "timed out after 1 s");
    }
    Barrier(*rank.store, "the late one too", rank.rank, rank.size);
    return "";
  });
}

TEST_P(CommunicatorSuite, AbortEndsWhatIsInFlightOnEveryRank) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("abort", Patient());
    Tensor data(device, DType::kFloat32, 7);
    if (rank.rank != 0) {
      comm->AllReduce(*stream, data.view());
    } else {  // From another thread than the one that enqueues, while the others wait.
      std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        comm->Abort("the disk is full");
      }).join();
      comm->AllReduce(*stream, data.view());
    }
    Require(CommErrorOf(*stream) == "rank 0 aborted: the disk is full", "another reason");
    comm->Abort("second thoughts");  // The first reason counts.
    const auto later = device.CreateStream("later");
    comm->AllReduce(*later, data.view());
    Require(CommErrorOf(*later) == "rank 0 aborted: the disk is full", "another reason later");
    Barrier(*rank.store, "done", rank.rank, rank.size);
    return "";
  });
}

// The first moment at which a rank may go: right after its last collective, others still in it.
TEST_P(CommunicatorSuite, RanksMayLeaveAfterTheirLastCollective) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    for (int i = 0; i < 20; ++i) {
      const auto stream = device.CreateStream("comm");
      const auto comm = rank.join("short " + std::to_string(i), Patient());
      Tensor data(device, DType::kFloat32, 1000);
      data.Fill([&](int64_t k) { return Value(rank.rank, k); });
      comm->AllReduce(*stream, data.view());
      stream->Synchronize();
      data.RequireEqual([&](int64_t k) { return SumOfValues(rank.size, k); }, "all-reduce");
    }
    Barrier(*rank.store, "done", rank.rank, rank.size);
    return "";
  });
}

TEST_P(CommunicatorSuite, DestructionFailsWhatWaitsForTheRankThatLeft) {
  if (size() == 1) return;
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    auto comm = rank.join("leave", Patient());
    Tensor data(device, DType::kFloat32, 7);
    if (rank.rank == 0) {
      comm.reset();
    } else {
      comm->AllReduce(*stream, data.view());
      Require(CommErrorOf(*stream) == "rank 0 has left the group", "another reason");
    }
    Barrier(*rank.store, "done", rank.rank, rank.size);
    return "";
  });
}

TEST_P(CommunicatorSuite, DestructionWithWorkQueuedEndsIt) {
  if (size() == 1) return;
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    auto comm = rank.join("queued", Patient());
    Tensor data(device, DType::kFloat32, 7);
    if (rank.rank == 0) {  // Nobody else comes, so these would wait for long.
      for (int i = 0; i < 5; ++i) comm->AllReduce(*stream, data.view());
      comm.reset();
      RequireContains(CommErrorOf(*stream), "rank 0 has left the group");
    }
    Barrier(*rank.store, "done", rank.rank, rank.size);
    return "";
  });
}

TEST_P(CommunicatorSuite, CallersMistakesEnqueueNothing) {
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto stream = device.CreateStream("comm");
    const auto comm = rank.join("mistakes", Patient());
    const int64_t size = rank.size;
    Tensor full(device, DType::kFloat32, 8 * size), shard(device, DType::kFloat32, 8);
    Tensor half(device, DType::kBFloat16, 8), whole(device, DType::kInt32, 8);
    const auto rejects = [](const char* what, const std::function<void()>& call) {
      try {
        call();
      } catch (const std::invalid_argument&) {
        return;
      }
      throw std::runtime_error(std::string(what) + " was taken");
    };
    rejects("short", [&] { comm->AllGather(*stream, shard.Slice(0, 7), full.view()); });
    rejects("dtype", [&] { comm->AllGather(*stream, half.view(), full.view()); });
    rejects("overlap", [&] {
      comm->AllGather(*stream, full.Slice(rank.rank * 8 + (rank.rank == 0 ? 1 : -1), 8),
                      full.Slice(0, 8 * size));
    });
    rejects("short", [&] { comm->ReduceScatter(*stream, full.view(), shard.Slice(0, 7)); });
    rejects("fp32 of itself", [&] {
      Tensor wire(device, DType::kBFloat16, 8 * size);
      comm->ReduceScatter(*stream, wire.view(), View(wire.view().data, DType::kFloat32, Shape{8}));
    });
    rejects("bf16 of fp32", [&] { comm->ReduceScatter(*stream, full.view(), half.view()); });
    rejects("sum of int32", [&] { comm->AllReduce(*stream, whole.view()); });
    rejects("aliases", [&] { comm->AllToAll(*stream, full.view(), full.view()); });
    rejects("root", [&] { comm->Broadcast(*stream, shard.view(), rank.size); });
    rejects("root", [&] { comm->Broadcast(*stream, shard.view(), -1); });
    shard.Fill([&](int64_t i) { return Value(rank.rank, i); });
    comm->AllReduce(*stream, shard.view());
    stream->Synchronize();
    shard.RequireEqual([&](int64_t i) { return SumOfValues(rank.size, i); }, "all-reduce");
    return "";
  });
}

TEST_P(CommunicatorSuite, CallsOnStreamsThatNothingOrdersFail) {
  if (GetParam().waits) return;  // These are in order by themselves.
  ExpectAllFine([](Rank& rank) -> std::string {
    Device& device = *rank.device;
    const auto first = device.CreateStream("first"), second = device.CreateStream("second");
    const auto gate = device.CreateStream("gate");
    const auto comm = rank.join("turn", Patient());
    Tensor data(device, DType::kFloat32, 7);
    std::promise<void> open;
    gate->Enqueue({"gate", {}, {}, {}, {.host = [&](ThreadPool&) { open.get_future().wait(); }}});
    first->Wait(gate->Record());
    comm->AllReduce(*first, data.view());
    comm->AllReduce(*second, data.view());  // Runs while the first call cannot.
    std::string error;
    try {
      second->Synchronize();
    } catch (const std::logic_error& e) {
      error = e.what();
    }
    open.set_value();
    RequireContains(error, "call #1 runs while #0 has not");
    first->Synchronize();
    return "";
  });
}

}  // namespace fsdp::testing
