// The declarations of a call to the stream, and its cost: the same on every transport, so the
// simulated one shows them.
#include "trainer/comm/communicator.h"

#include <gtest/gtest.h>

#include <vector>

#include "trainer/comm/sim/sim_communicator.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/cpu/cpu_device.h"
#include "trainer/runtime/sim/sim_device.h"

namespace fsdp {
namespace {

// Seconds = link bytes, so that a stream's time reads as a volume.
SimModel LinkBytes() {
  SimModel model;
  model.s_per_link_byte = 1;
  return model;
}

double TimeOf(Stream& stream) {
  const EventPtr event = stream.RecordTime();
  event->Synchronize();
  return event->Time();
}

TEST(CollectiveCostTest, MovesTheVolumesOfFullSharding) {
  // A tensor of M bytes over W ranks moves (W - 1) / W * M for a gather or a reduce-scatter, twice
  // that for an all-reduce (arXiv:2304.11277, section 3.2).
  for (const int size : {1, 2, 3, 8}) {
    SimDevice device(LinkBytes());
    SimCommunicator comm(RankGroup::World(0, size));
    const int64_t n = 60;
    const double full_bytes = 4.0 * n * size, moved = full_bytes * (size - 1) / size;
    const Buffer a = device.Allocate(4 * n * size), b = device.Allocate(4 * n);
    const View full = a.As(DType::kFloat32, Shape{n * size}),
               shard = b.As(DType::kFloat32, Shape{n});
    const auto stream = device.CreateStream("comm");
    comm.AllGather(*stream, shard, full);
    EXPECT_DOUBLE_EQ(TimeOf(*stream), moved);
    comm.ReduceScatter(*stream, full, shard);
    EXPECT_DOUBLE_EQ(TimeOf(*stream), 2 * moved);
    comm.AllReduce(*stream, full);
    EXPECT_DOUBLE_EQ(TimeOf(*stream), 4 * moved);
    EXPECT_EQ(comm.bytes_given(Collective::kAllGather), moved);
    EXPECT_EQ(comm.bytes_given(Collective::kReduceScatter), moved);
    EXPECT_EQ(comm.bytes_given(Collective::kAllReduce), 2 * moved);
    EXPECT_EQ(comm.bytes_given(Collective::kBroadcast), 0);
  }
}

TEST(CollectiveCostTest, CountsRoundsMemoryAndAdditions) {
  const Cost gather =
      CollectiveCost(Collective::kAllGather, 4, 10, DType::kBFloat16, DType::kBFloat16);
  EXPECT_EQ(gather.link_messages, 3);
  EXPECT_EQ(gather.bytes_read, 20);
  EXPECT_EQ(gather.bytes_written, 80);
  EXPECT_EQ(gather.flops, 0);
  const Cost scatter =
      CollectiveCost(Collective::kReduceScatter, 4, 10, DType::kBFloat16, DType::kFloat32);
  EXPECT_EQ(scatter.link_messages, 3);
  EXPECT_EQ(scatter.link_bytes, 60);
  EXPECT_EQ(scatter.bytes_read, 80);
  EXPECT_EQ(scatter.bytes_written, 40);
  EXPECT_EQ(scatter.flops, 30);
  const Cost reduce =
      CollectiveCost(Collective::kAllReduce, 4, 40, DType::kFloat32, DType::kFloat32);
  EXPECT_EQ(reduce.link_messages, 6);
  EXPECT_EQ(reduce.flops, 30);
}

// For each way of calling: a second stream touches `bytes` without an event. Races must be reported
// exactly where the collective uses them that way.
class DeclarationTest : public ::testing::Test {
 protected:
  static constexpr int kRank = 1, kSize = 3;
  static constexpr int64_t kN = 4;

  int64_t Races(const std::function<void(Communicator&, Stream&)>& call, const View& bytes,
                bool write) {
    auto checker = std::make_shared<StreamChecker>([](const StreamChecker::Race&) {});
    SimDevice device({}, checker);
    const auto stream = device.CreateStream("comm"), other = device.CreateStream("other");
    SimCommunicator comm(RankGroup::World(kRank, kSize));
    call(comm, *stream);
    Operation operation;
    operation.name = "probe";
    (write ? operation.writes : operation.reads).push_back(bytes);
    other->Enqueue(operation);
    return checker->races();
  }

  // Reading races with its writes only; writing races with both.
  void ExpectUses(const std::function<void(Communicator&, Stream&)>& call, const View& bytes,
                  bool reads, bool writes) {
    EXPECT_EQ(Races(call, bytes, /*write=*/false) > 0, writes);
    EXPECT_EQ(Races(call, bytes, /*write=*/true) > 0, reads || writes);
  }

  View full_{reinterpret_cast<std::byte*>(0x1000), DType::kFloat32, Shape{kN * kSize}};
  View shard_{reinterpret_cast<std::byte*>(0x2000), DType::kFloat32, Shape{kN}};
  View slice_ = full_.Slice(kRank * kN, kN);
  View before_ = full_.Slice(0, kRank* kN);
  View after_ = full_.Slice((kRank + 1) * kN, (kSize - 1 - kRank) * kN);
};

TEST_F(DeclarationTest, AllGather) {
  const auto apart = [&](Communicator& c, Stream& s) { c.AllGather(s, shard_, full_); };
  ExpectUses(apart, shard_, true, false);
  ExpectUses(apart, slice_, false, true);
  ExpectUses(apart, after_, false, true);
  const auto in_place = [&](Communicator& c, Stream& s) { c.AllGather(s, slice_, full_); };
  ExpectUses(in_place, slice_, true, true);
  ExpectUses(in_place, before_, false, true);
}

TEST_F(DeclarationTest, ReduceScatter) {
  const auto apart = [&](Communicator& c, Stream& s) { c.ReduceScatter(s, full_, shard_); };
  ExpectUses(apart, shard_, false, true);
  ExpectUses(apart, slice_, true, false);
  const auto in_place = [&](Communicator& c, Stream& s) { c.ReduceScatter(s, full_, slice_); };
  ExpectUses(in_place, slice_, true, true);
  ExpectUses(in_place, before_, true, false);
  ExpectUses(in_place, after_, true, false);
}

TEST_F(DeclarationTest, TheOthers) {
  const View out(reinterpret_cast<std::byte*>(0x3000), DType::kFloat32, Shape{kN * kSize});
  const auto reduce = [&](Communicator& c, Stream& s) { c.AllReduce(s, full_); };
  ExpectUses(reduce, full_, true, true);
  const auto exchange = [&](Communicator& c, Stream& s) { c.AllToAll(s, full_, out); };
  ExpectUses(exchange, full_, true, false);
  ExpectUses(exchange, out, false, true);
  const auto send = [&](Communicator& c, Stream& s) { c.Broadcast(s, full_, kRank); };
  ExpectUses(send, full_, true, false);
  const auto receive = [&](Communicator& c, Stream& s) { c.Broadcast(s, full_, 0); };
  ExpectUses(receive, full_, true, true);
}

TEST(SimCommunicatorTest, RefusesOtherDevicesAndCallsAfterAnAbort) {
  CpuDevice cpu;
  SimDevice sim;
  SimCommunicator comm(RankGroup::World(0, 2));
  const auto on_cpu = cpu.CreateStream("comm"), on_sim = sim.CreateStream("comm");
  const View data(nullptr, DType::kFloat32, Shape{0});
  EXPECT_THROW(comm.AllReduce(*on_cpu, data), std::invalid_argument);
  comm.AllReduce(*on_sim, data);
  comm.Abort("enough");
  EXPECT_THROW(comm.AllReduce(*on_sim, data), CommError);
}

// By their numbers in the job, in the order of the group.
TEST(SimCommunicatorTest, SaysBetweenWhomACallIs) {
  using Ranks = std::vector<int>;
  SimDevice device;
  const auto stream = device.CreateStream("comm");
  std::vector<std::pair<Collective, Ranks>> calls;
  const SimCharge charge = [&](const Stream&, const RankGroup& group, const CollectiveCall& call) {
    calls.emplace_back(call.kind, group.ranks());
    return SimWork();
  };
  SimCommunicator some(RankGroup({4, 6, 1}, 6), charge);
  const auto all = ConnectSimAt(charge)("all", RankGroup::World(3, 4));
  EXPECT_EQ(some.group(), RankGroup({4, 6, 1}, 6));
  EXPECT_EQ(some.rank(), 1);
  const Buffer a = device.Allocate(1200), b = device.Allocate(1200);
  const View whole = a.As(DType::kFloat32, Shape{12}), other = b.As(DType::kFloat32, Shape{12});
  some.AllGather(*stream, other.Slice(0, 4), whole);
  some.ReduceScatter(*stream, whole, other.Slice(0, 4));
  all->AllReduce(*stream, whole);
  some.AllToAll(*stream, whole, other);
  some.Broadcast(*stream, whole, 0);
  const Ranks three = {4, 6, 1};
  EXPECT_EQ(calls,
            (std::vector<std::pair<Collective, Ranks>>{{Collective::kAllGather, three},
                                                       {Collective::kReduceScatter, three},
                                                       {Collective::kAllReduce, {0, 1, 2, 3}},
                                                       {Collective::kAllToAll, three},
                                                       {Collective::kBroadcast, three}}));
}

// Two hosts of two ranks; between them a byte takes ten times as long.
TEST(SimCommunicatorTest, LinksMayBeToldApart) {
  const auto connect =
      ConnectSimAt([](const Stream&, const RankGroup& group, const CollectiveCall& call) {
        const bool between = group.ranks().front() / 2 != group.ranks().back() / 2;
        return SimWork{static_cast<double>(call.bytes()) * (between ? 10 : 1)};
      });
  const auto time = [&](const RankGroup& group) {
    SimDevice device;
    const auto stream = device.CreateStream("comm");
    const auto comm = connect("", group);
    const Buffer data = device.Allocate(400);
    comm->AllReduce(*stream, data.As(DType::kFloat32, Shape{100}));
    EXPECT_EQ(comm->bytes_given(Collective::kAllReduce), 400);
    return TimeOf(*stream);
  };
  EXPECT_EQ(time(RankGroup({2, 3}, 2)), 400);
  EXPECT_EQ(time(RankGroup({1, 2}, 2)), 4000);
}

}  // namespace
}  // namespace fsdp
