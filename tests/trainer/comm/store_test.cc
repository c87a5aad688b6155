#include "trainer/comm/store/store.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "tests/trainer/comm/on_threads.h"
#include "tests/trainer/comm/ranks.h"
#include "tests/trainer/comm/raw_member.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/comm/store/socket.h"
#include "trainer/comm/store/tcp_store.h"
#include "trainer/comm/store/wire.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

using testing::OnThreads;
using testing::Require;

// Runs body(rank, store) on `size` threads, each with its view of one store, and returns what each
// threw ("" for nothing).
using RankBody = std::function<void(int rank, Store& store)>;
using RunStore = std::vector<std::string> (*)(int size, double timeout_s, const RankBody& body);

std::vector<std::string> OnMemory(int size, double timeout_s, const RankBody& body) {
  MemoryStore store(timeout_s);
  return OnThreads(size, [&](int rank) { body(rank, store); });
}

std::vector<std::string> OnTcp(int size, double timeout_s, const RankBody& body) {
  TcpStoreServer server("localhost", 0, size, 60);
  return OnThreads(size, [&](int rank) {
    const auto store = ConnectTcpStore("localhost", server.port(), rank, size, timeout_s);
    body(rank, *store);
  });
}

template <typename E>
std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

class StoreTest : public ::testing::TestWithParam<RunStore> {
 protected:
  void ExpectAllFine(int size, double timeout_s, const RankBody& body) {
    const auto errors = GetParam()(size, timeout_s, body);
    for (int r = 0; r < size; ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
  }
};
INSTANTIATE_TEST_SUITE_P(Memory, StoreTest, ::testing::Values(&OnMemory));
INSTANTIATE_TEST_SUITE_P(Tcp, StoreTest, ::testing::Values(&OnTcp));

TEST_P(StoreTest, SixteenClientsSetGetAndAdd) {
  ExpectAllFine(16, 60, [](int rank, Store& store) {
    for (int round = 0; round < 20; ++round) {
      const std::string key = std::to_string(round) + "/";
      store.Set(key + std::to_string(rank), std::to_string(rank * 100 + round));
      const int next = (rank + 1) % 16;
      Require(store.Get(key + std::to_string(next)) == std::to_string(next * 100 + round), "value");
    }
    store.Add("sum", rank);
    Barrier(store, "added", rank, 16);
    Require(store.Get("sum") == "120", "sum");
    Barrier(store, "read", rank, 16);
    Require(store.Add("sum", -20) <= 100, "each sees its own sum");
    Barrier(store, "subtracted", rank, 16);
    Require(store.Add("sum", 0) == 120 - 16 * 20, "all subtractions count once");
  });
}

TEST_P(StoreTest, ValuesAreAnyBytesUpToTheLimit) {
  ExpectAllFine(1, 60, [](int, Store& store) {
    std::string value(Store::kMaxValue, '\0');
    for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7);
    store.Set(std::string(Store::kMaxKey, 'k'), value);
    Require(store.Get(std::string(Store::kMaxKey, 'k')) == value, "value");
    store.Set("empty", "");
    Require(store.Get("empty").empty(), "empty");
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { store.Set("k", value + "x"); },
             [&] { store.Set(std::string(Store::kMaxKey + 1, 'k'), ""); },
             [&] { store.Set("", ""); }, [&] { store.Set("text", "12a"), store.Add("text", 1); },
             [&] { store.Set("big", "9223372036854775807"), store.Add("big", 1); }}) {
      Require(ErrorOf<std::invalid_argument>(call) != "no error", "taken");
    }
  });
}

TEST_P(StoreTest, ForgetsWhatBeginsSo) {
  ExpectAllFine(2, 60, [](int rank, Store& store) {
    Barrier(store, "save/1/begin", rank, 2);
    if (rank == 0) {
      for (const char* key : {"a/1", "a/10", "a/2", "ab", "b"}) store.Set(key, key);
      store.Add("a/1/n", 5);
      store.Forget("a/1");
      const auto values = store.Fetch({"a/1", "a/10", "a/1/n", "a/2", "ab", "b"}, 0);
      for (int i = 0; i < 6; ++i) Require(values[i].has_value() == (i >= 3), std::to_string(i));
      Require(store.Add("a/1/n", 1) == 1, "counts anew");
    }
    Barrier(store, "save/1/end", rank, 2);
    if (rank == 0) store.Forget("barrier/save/1/begin/");
    Barrier(store, "save/1/forgotten", rank, 2);
    Barrier(store, "save/1/begin", rank, 2);  // The name is new again.
    Barrier(store, "end", rank, 2);
  });
}

TEST_P(StoreTest, GetBlocksUntilSet) {
  ExpectAllFine(2, 60, [](int rank, Store& store) {
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      store.Set("late", "value");
    } else {
      Require(store.Get("late") == "value", "value");
    }
    Barrier(store, "end", rank, 2);
  });
}

TEST_P(StoreTest, TimeoutsNameWhatIsMissing) {
  ExpectAllFine(1, 0.1, [](int, Store& store) {
    store.Set("here", "");
    const std::string get = ErrorOf<CommError>([&] { store.Get("nowhere"); });
    Require(get == "[store] nobody has set \"nowhere\" within 0.1 s", get);
    const std::string wait = ErrorOf<CommError>([&] { store.Wait({"a", "here", "b"}); });
    Require(wait == "[store] nobody has set \"a\", \"b\" within 0.1 s", wait);
    const std::string barrier = ErrorOf<CommError>([&] { Barrier(store, "start", 1, 4); });
    Require(barrier == "[store] barrier/start: rank 0, rank 2, rank 3 did not come within 0.1 s",
            barrier);
  });
}

TEST_P(StoreTest, BarrierHoldsUntilAllHaveCome) {
  std::atomic<int> arrived{0};
  ExpectAllFine(8, 60, [&](int rank, Store& store) {
    std::this_thread::sleep_for(std::chrono::milliseconds(rank * 5));
    ++arrived;
    Barrier(store, "b", rank, 8);
    Require(arrived == 8, "passed too early");
    Require(ErrorOf<std::invalid_argument>([&] { Barrier(store, "b", rank, 8); }) != "no error",
            "a name twice");
    Barrier(store, "end", rank, 8);
  });
}

TEST_P(StoreTest, AgreeNamesTheRankAndTheLabelThatDiffer) {
  ExpectAllFine(3, 60, [](int rank, Store& store) {
    Agree(store, "same", rank, 3, {{"recipe", "a"}, {"schedule", "b 1 2\n\"x\""}});
    const std::string value = ErrorOf<ConfigError>([&] {
      Agree(store, "start", rank, 3,
            {{"recipe", "a"}, {"data", rank == 2 ? "theirs" : "ours"}, {"build", "c"}});
    });
    Require(
        value == "ranks disagree at the start: data is \"theirs\" on rank 2, \"ours\" on rank 0",
        value);
    const std::string absent = ErrorOf<ConfigError>([&] {
      Agree(store, "labels", rank, 3,
            rank == 1 ? Labels{{"x", "1"}, {"y", "2"}} : Labels{{"x", "1"}});
    });
    Require(absent == "ranks disagree at the labels: y is \"2\" on rank 1, none on rank 0", absent);
    Barrier(store, "end", rank, 3);
  });
}

TEST_P(StoreTest, AgreeNamesTheRankThatLacksALabel) {
  ExpectAllFine(3, 60, [](int rank, Store& store) {
    const std::string lacking = ErrorOf<ConfigError>([&] {
      Agree(store, "fewer", rank, 3,
            rank == 2 ? Labels{{"x", "1"}} : Labels{{"x", "1"}, {"y", "2"}});
    });
    Require(lacking == "ranks disagree at the fewer: y is none on rank 2, \"2\" on rank 0",
            lacking);
    Barrier(store, "end", rank, 3);
  });
}

TEST_P(StoreTest, FailUnblocksEveryoneWithTheFirstReason) {
  ExpectAllFine(3, 60, [](int rank, Store& store) {
    if (rank == 0) {
      store.Fail("rank 0: out of disk");
    } else {
      const std::string error = ErrorOf<CommError>([&] { store.Get("never"); });
      Require(error == "rank 0: out of disk", error);
      store.Fail("second thoughts");
    }
    const std::string later = ErrorOf<CommError>([&] { store.Get("never"); });
    Require(later == "rank 0: out of disk", later);
    Require(store.FailureReason() == "rank 0: out of disk", store.FailureReason());
    std::string called;  // It has failed: at once, from here.
    store.OnFailure([&](const std::string& why) { called = why; });
    Require(called == "rank 0: out of disk", called);
  });
}

TEST_P(StoreTest, TheFirstAnnouncementIsToldToAllOnce) {
  ExpectAllFine(3, 60, [](int rank, Store& store) {
    std::atomic<int> calls{0};
    std::promise<std::string> told;
    const auto hear = [&](const std::string& what) {
      if (++calls == 1) told.set_value(what);
    };
    if (rank != 2) store.OnAnnouncement(hear);
    Barrier(store, "ready", rank, 3);
    if (rank == 0) store.Announce("stop");
    Barrier(store, "announced", rank, 3);
    store.Announce("something else");
    if (rank == 2) store.OnAnnouncement(hear);  // It has heard it before.
    const std::string what = told.get_future().get();
    Require(what == "stop", what);
    Barrier(store, "heard", rank, 3);
    Require(calls == 1, std::to_string(calls));
    Require(store.FailureReason().empty(), store.FailureReason());
    store.OnAnnouncement(nullptr);
  });
}

TEST(MemoryStoreTest, FailCallsEveryRanksCallback) {
  MemoryStore store;
  std::vector<std::string> reasons;
  for (int i = 0; i < 3; ++i)
    store.OnFailure([&](const std::string& why) { reasons.push_back(why); });
  store.Fail("why");
  store.Fail("again");
  EXPECT_EQ(reasons, std::vector<std::string>(3, "why"));
}

TEST(TcpStoreTest, ADepartureIsNoFailure) {
  TcpStoreServer server("localhost", 0, 3, 60);
  const auto errors = OnThreads(3, [&](int rank) {
    auto store = ConnectTcpStore("localhost", server.port(), rank, 3, 60);
    if (rank == 1) return;  // Its destructor leaves.
    if (rank == 2) {
      store->Leave();
      Require(ErrorOf<CommError>([&] { store->Set("k", "v"); }) == "this rank has left the store",
              "after leaving");
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    store->Set("still", "here");
    Require(store->FailureReason().empty(), store->FailureReason());
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Rank 0's process is stopped: the others find out, and wait for nothing more.
TEST(TcpStoreTest, ASilentServerIsGivenUpOnce) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const TcpStoreServer server("localhost", 0, 1, 60);
    const int port = server.port();
    if (write(ends[1], &port, sizeof(port)) != sizeof(port)) _exit(1);
    for (;;) pause();
  }
  int port = 0;
  ASSERT_EQ(read(ends[0], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  const auto store = ConnectTcpStore("localhost", port, 0, 1, /*timeout_s=*/0.5);
  kill(holder, SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ErrorOf<CommError>([&] { store->Get("key"); }),
            "the store of rank 0, at localhost:" + std::to_string(port) + ", does not answer");
  store->Fail("rank 1: gives up");
  EXPECT_EQ(store->FailureReason(), "rank 1: gives up");
  // 2 s on an idle machine; it was 7.5 s.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  for (const int end : ends) close(end);
}

TEST(TcpStoreTest, JoinNamesWhoIsMissing) {
  TcpStoreServer server("localhost", 0, 4, /*join_timeout_s=*/1);
  const auto errors = OnThreads(
      2, [&](int i) { ConnectTcpStore("localhost", server.port(), i == 0 ? 0 : 2, 4, 60); });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "rank 1, rank 3 did not join the store within 1 s");
  }
}

TEST(TcpStoreTest, JoinWaitsForAServerThatIsNotUpYet) {
  int port = 0;
  { port = PortOf(Listen("localhost", 0)); }
  const auto errors = OnThreads(2, [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto store = JoinTcpStore("localhost", port, rank, 2, 60);
    Barrier(*store, "up", rank, 2);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(TcpStoreTest, AServerThatNeverComesIsNamed) {
  int port = 0;
  { port = PortOf(Listen("localhost", 0)); }
  const std::string error =
      ErrorOf<CommError>([&] { JoinTcpStore("localhost", port, 1, 2, /*timeout_s=*/0.2); });
  EXPECT_EQ(error, "rank 1 cannot reach the store at localhost:" + std::to_string(port) +
                       ": Connection refused");
}

TEST(TcpStoreTest, WorldsThatDifferAndRanksThatRepeatAreRefused) {
  TcpStoreServer server("localhost", 0, 2, 60);
  const auto join = [&](int rank, int size) {
    return ErrorOf<CommError>([&] { ConnectTcpStore("localhost", server.port(), rank, size, 60); });
  };
  EXPECT_EQ(join(1, 3), "rank 1 says that there are 3 ranks, rank 0 that there are 2");
  EXPECT_EQ(join(2, 2), "rank 2 of 2");
  const auto errors = OnThreads(2, [&](int rank) {
    const auto store = ConnectTcpStore("localhost", server.port(), rank, 2, 60);
    Barrier(*store, "up", rank, 2);
    if (rank == 0) {
      const std::string error = join(1, 2);
      Require(error == "rank 1 has joined the store already", error);
    }
    Barrier(*store, "end", rank, 2);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(TcpStoreTest, ListensOnLoopbackOnlyWhereTheHostIs) {
  // IPv4 and IPv6 by address; a machine without IPv6 has nothing to listen on.
  for (const char* host : {"127.0.0.1", "::1"}) {
    std::unique_ptr<TcpStoreServer> server;
    try {
      server = std::make_unique<TcpStoreServer>(host, 0, 1, 60);
    } catch (const CommError&) {
      EXPECT_STREQ(host, "::1");
      continue;
    }
    const auto store = ConnectTcpStore(host, server->port(), 0, 1, 60);
    store->Set("k", host);
    EXPECT_EQ(store->Get("k"), host);
  }
}

// Whatever strangers send closes their connection and harms nobody.
TEST(TcpStoreTest, MalformedBytesCloseOnlyTheirConnection) {
  TcpStoreServer server("localhost", 0, 1, 60);
  const auto store = ConnectTcpStore("localhost", server.port(), 0, 1, 60);
  const auto frame = [](wire::Type type, auto fill) {
    wire::Writer writer(type, 1);
    fill(writer);
    return std::move(writer).Frame();
  };
  std::vector<std::string> attacks = {
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      std::string(4, '\xff'),  // A frame of 4 GB.
      std::string(4, '\0'),    // A body without a type.
      frame(wire::Type::kSet, [](wire::Writer& w) { w.String("k").String("v"); }),  // No hello.
      frame(wire::Type::kHello,
            [](wire::Writer& w) { w.String("another magic").String(std::string(32, 'n')); }),
      frame(wire::Type::kHello, [](wire::Writer& w) { w.String(wire::kMagic).String("short"); }),
      frame(wire::Type::kHello,
            [](wire::Writer& w) { w.String(wire::kMagic).String(std::string(32, 'n')).Int(0); }),
  };
  const RandomStream random(11, "bytes");
  for (uint64_t i = 0; i < 50; ++i) {
    std::string bytes(4 + random.Below(i * 2, 200), '\0');
    for (size_t k = 0; k < bytes.size(); ++k) {
      bytes[k] = static_cast<char>(random.Bits(1000 * (i + 1) + k));
    }
    bytes[0] = static_cast<char>(bytes.size() - 4);  // Mostly complete frames.
    if (i % 4 != 0) bytes[1] = bytes[2] = bytes[3] = 0;
    attacks.push_back(bytes);
  }
  for (const std::string& attack : attacks) {
    const Socket stranger = Connect("localhost", server.port(),
                                    std::chrono::steady_clock::now() + std::chrono::seconds(60));
    ASSERT_EQ(send(stranger.get(), attack.data(), attack.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(attack.size()));
    shutdown(stranger.get(), SHUT_WR);
    char byte;
    while (recv(stranger.get(), &byte, 1, 0) > 0) {  // A refusal may come first.
    }
    store->Set("k", "v");
    ASSERT_EQ(store->Get("k"), "v");
  }
  EXPECT_EQ(store->FailureReason(), "");
}

// From a member they are a failure: it is not the program that it should be.
TEST(TcpStoreTest, MalformedBytesFromAMemberFailTheJob) {
  TcpStoreServer server("localhost", 0, 2, 60);
  testing::RawMember member(server.port());
  std::string error;
  std::thread sender([&] {
    member.Prove({.rank = 1, .size = 2, .timeout_us = 60'000'000, .left_us = 60'000'000});
    member.Send(std::string("\x01\0\0\0\x02", 5));
    member.ReadToEnd();
  });
  error = ErrorOf<CommError>([&] {
    const auto store = ConnectTcpStore("localhost", server.port(), 0, 2, 60);
    store->Get("never");
  });
  sender.join();
  EXPECT_EQ(error, "rank 1 sent the store a message ends too early");
}

TEST(TcpStoreTest, AKilledClientIsToldToAllOthers) {
  const auto outcomes = testing::RunProcessRanks(4, [](testing::Rank& rank) -> std::string {
    std::promise<std::string> reason;
    rank.store->OnFailure([&](const std::string& why) { reason.set_value(why); });
    if (rank.rank == 2) {
      rank.store->Wait({"0", "1", "3"});
      raise(SIGKILL);
    }
    rank.store->Set(std::to_string(rank.rank), "up");
    const std::string blocked = ErrorOf<CommError>([&] { rank.store->Get("never"); });
    Require(blocked == "rank 2 disconnected from the store", blocked);
    const std::string called = reason.get_future().get();
    Require(called == "rank 2 disconnected from the store", called);
    rank.store->OnFailure(nullptr);
    return "";
  });
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(outcomes[r].error, r == 2 ? "signal " + std::to_string(SIGKILL) : "");
  }
}

TEST(TcpStoreTest, TheServersDeathIsToldToAll) {
  auto server = std::make_unique<TcpStoreServer>("localhost", 0, 2, 60);
  std::promise<void> both_up;
  std::atomic<int> up{0};
  const auto errors = OnThreads(3, [&](int i) {
    if (i == 2) {
      both_up.get_future().wait();
      server.reset();  // Members that have not left cost it 10 s, unless the job has failed.
      return;
    }
    const auto store = ConnectTcpStore("localhost", server->port(), i, 2, 60);
    if (++up == 2) {
      store->Fail("over");
      both_up.set_value();
    }
    const std::string error = ErrorOf<CommError>([&] { store->Get("never"); });
    Require(error == "over", error);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace fsdp
