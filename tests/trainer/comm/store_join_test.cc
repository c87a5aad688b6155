// Who may join the TCP store, from where, how long it waits for whom, and what it holds for whom.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/trainer/comm/on_threads.h"
#include "tests/trainer/comm/raw_member.h"
#include "trainer/comm/store/socket.h"
#include "trainer/comm/store/tcp_store.h"
#include "trainer/comm/store/together.h"
#include "trainer/comm/store/wire.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using testing::OnThreads;
using testing::RawMember;
using wire::Type;

constexpr int64_t kMinute_us = 60'000'000;

JoinClaim Claim(int rank, int size, int64_t generation = 0) {
  return {rank, size, generation, kMinute_us, kMinute_us};
}

// Also on a machine so busy that a test takes long between two words.
StoreLimits Patient() {
  StoreLimits limits;
  limits.prove_within = std::chrono::minutes(2);
  return limits;
}

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

double SecondsOf(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string At(const TcpStoreServer& server) {
  return "localhost:" + std::to_string(server.port());
}

// Sets and gets: the store is as good as ever.
void ExpectWorks(Store& store) {
  static std::atomic<int> count{0};
  const std::string value = std::to_string(++count);
  store.Set("works", value);
  EXPECT_EQ(store.Get("works"), value);
  EXPECT_EQ(store.FailureReason(), "");
}

Socket Accept(const Socket& listening) {
  for (;;) {
    Socket client(accept(listening.get(), nullptr, nullptr));
    if (client.get() >= 0) return client;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(StoreSecret, TheSameOneLetsIn) {
  TcpStoreServer server("localhost", 0, 2, 60, {"swordfish", 0});
  const auto errors = OnThreads(2, [&](int rank) {
    const auto store = ConnectTcpStore("localhost", server.port(), rank, 2, 60, {"swordfish", 0});
    Barrier(*store, "in", rank, 2);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(StoreSecret, AnotherOneIsRefusedAndHarmsNobody) {
  TcpStoreServer server("localhost", 0, 1, 60, {"swordfish", 0});
  const auto store = ConnectTcpStore("localhost", server.port(), 0, 1, 60, {"swordfish", 0});
  for (const char* secret : {"", "swordfisi", "swordfish "}) {
    EXPECT_EQ(ErrorOf([&] {
                ConnectTcpStore("localhost", server.port(), 0, 1, 60, {secret, 0});
              }),
              "rank 0 was refused by the store at " + At(server) +
                  ": not the same secret (--rdzv-secret-file or FSDP_TRAIN_SECRET)");
    ExpectWorks(*store);
  }
}

// The other direction: a rank does not talk to whoever has taken the port.
TEST(StoreSecret, AStoreThatDoesNotKnowItIsLeft) {
  const Socket listening = Listen("localhost", 0);
  std::thread impostor([&] {
    const Socket client = Accept(listening);
    const auto reply = [&](wire::Writer message) {
      char buffer[4096];
      if (recv(client.get(), buffer, sizeof(buffer), 0) <= 0) return;
      const std::string frame = std::move(message).Frame();
      send(client.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
    };
    reply(wire::Writer(Type::kChallenge, 1).String(std::string(kNonceBytes, 'x')));
    reply(wire::Writer(Type::kProven, 1).Int(0).String(std::string(kTagBytes, 'x')));
    char byte;
    while (recv(client.get(), &byte, 1, 0) > 0) {
    }
  });
  const int port = PortOf(listening);
  const std::string error = ErrorOf([&] {
    ConnectTcpStore("localhost", port, 1, 2, 60, {"swordfish", 0});
  });
  impostor.join();
  EXPECT_EQ(error, "rank 1 does not join the store at localhost:" + std::to_string(port) +
                       ": it does not know the secret (--rdzv-secret-file or FSDP_TRAIN_SECRET)");
}

// A tag is good for one connection, one claim and one direction.
TEST(StoreSecret, AProofCannotBeUsedAgainOrForAnotherClaim) {
  TcpStoreServer server("localhost", 0, 3, 60, {"swordfish", 0}, Patient());
  RawMember honest(server.port(), "swordfish");
  ASSERT_TRUE(honest.Hello());
  const std::string proof = honest.Proof(Claim(1, 3));
  {
    RawMember thief(server.port(), "");  // Has heard the proof, does not know the secret.
    ASSERT_TRUE(thief.Hello());
    thief.Send(proof);
    EXPECT_EQ(thief.Receive(), std::nullopt);  // Not a word.
  }
  for (const size_t part : {0, 1, 2, 3, 4}) {  // Rank, size, generation, patience, what is left.
    RawMember changed(server.port(), "swordfish");
    ASSERT_TRUE(changed.Hello());
    std::string other = changed.Proof(Claim(1, 3));
    other[4 + 1 + 8 + 8 * part] ^= 1;
    changed.Send(other);
    EXPECT_EQ(changed.Receive(), std::nullopt) << part;
  }
  honest.Send(proof);
  const auto answer = honest.Receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(wire::Reader(*answer).type(), Type::kProven);
}

TEST(StoreSecret, NothingIsAnsweredBeforeTheProof) {
  TcpStoreServer server("localhost", 0, 1, 60, {"swordfish", 0});
  for (const bool hello : {false, true}) {
    RawMember stranger(server.port(), "swordfish");
    if (hello) {
      ASSERT_TRUE(stranger.Hello());
    }
    stranger.Send(wire::Writer(Type::kSet, 1).String("k").String("v").Frame());
    EXPECT_EQ(stranger.Receive(), std::nullopt);
  }
  const auto store = ConnectTcpStore("localhost", server.port(), 0, 1, 60, {"swordfish", 0});
  EXPECT_EQ(store->Fetch({"k"}, 0)[0], std::nullopt);
}

// The older of two starts of a job ends.
TEST(StoreGeneration, AnOlderRankIsToldThatItIs) {
  TcpStoreServer server("localhost", 0, 1, 60, {"s", 2});
  EXPECT_EQ(ErrorOf([&] {
              ConnectTcpStore("localhost", server.port(), 0, 1, 60, {"s", 1});
            }),
            "rank 0 belongs to start 1 of the job, and start 2 has begun at " + At(server));
  const auto store = ConnectTcpStore("localhost", server.port(), 0, 1, 60, {"s", 2});
  ExpectWorks(*store);
}

TEST(StoreGeneration, AnOlderStoreEndsAndANewerRankWaitsForItsLike) {
  auto old = std::make_unique<TcpStoreServer>("localhost", 0, 2, 60, StoreAccess{"s", 0});
  const int port = old->port();
  const auto errors = OnThreads(2, [&](int i) {
    if (i == 0) {  // Waits for its peers of start 0, hears that there will be none, starts again.
      const std::string error = ErrorOf([&] {
        ConnectTcpStore("localhost", port, 0, 2, 60, {"s", 0});
      });
      EXPECT_EQ(error, "start 1 of the job has begun (rank 1), this is start 0");
      old.reset();
      const auto store = JoinTcpStore("localhost", port, 0, 2, 60, {"s", 1});
      Barrier(*store, "in", 0, 2);
    } else {
      const auto store = JoinTcpStore("localhost", port, 1, 2, 60, {"s", 1});
      Barrier(*store, "in", 1, 2);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(StoreGeneration, ANewerRankWaitsNoLongerThanItWasTold) {
  TcpStoreServer server("localhost", 0, 1, 60, {"s", 0});
  EXPECT_EQ(ErrorOf([&] {
              ConnectTcpStore("localhost", server.port(), 0, 1, 0.5, {"s", 1});
            }),
            "rank 0 cannot join the store at " + At(server) +
                ": it is that of start 0 of the job, and this is start 1");
}

// Whoever sits in between passes on both proofs and says that a newer start has begun.
TEST(StoreGeneration, OfTheStoreCannotBeChangedOnTheWay) {
  TcpStoreServer server("localhost", 0, 2, 60, {"swordfish", 0}, Patient());
  const Socket listening = Listen("localhost", 0);
  std::thread between([&] {
    const Socket client = Accept(listening);
    RawMember store(server.port());
    for (const bool proof : {false, true}) {
      char buffer[4096];
      const ssize_t n = recv(client.get(), buffer, sizeof(buffer), 0);
      if (n <= 0 || !store.Send({buffer, static_cast<size_t>(n)})) return;
      std::string body = store.Receive().value_or("");
      if (proof && body.size() > 9) body[1 + 8] ^= 1;
      const auto length = static_cast<uint32_t>(body.size());
      body.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
      send(client.get(), body.data(), body.size(), MSG_NOSIGNAL);
    }
    char byte;
    while (recv(client.get(), &byte, 1, 0) > 0) {
    }
  });
  const int port = PortOf(listening);
  const std::string error = ErrorOf([&] {
    ConnectTcpStore("localhost", port, 1, 2, 60, {"swordfish", 0});
  });
  between.join();
  EXPECT_EQ(error, "rank 1 does not join the store at localhost:" + std::to_string(port) +
                       ": it does not know the secret (--rdzv-secret-file or FSDP_TRAIN_SECRET)");
}

// Whoever came and whoever's patience ends first: all hear who is missing.
TEST(StoreJoin, TheFirstToLosePatienceSaysWhoIsMissing) {
  TcpStoreServer server("localhost", 0, 5, /*join_timeout_s=*/60);
  const auto errors = OnThreads(
      3, [&](int i) { ConnectTcpStore("localhost", server.port(), i, 5, i == 1 ? 0.5 : 60); });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "rank 3, rank 4 did not join the store within 0.5 s");
  }
}

// A port that nobody has, until somebody listens on it.
int SomePort() {
  const Socket listening = Listen("localhost", 0);
  return PortOf(listening);
}

AskGiveUp Always(const std::string& why, std::optional<int> gone = {}) {
  return [=] { return GiveUp{why, gone}; };
}

// Whichever it is, and however early: who comes later hears of it.
TEST(StoreGiveUp, IsToldToThoseWhoComeYet) {
  constexpr int kRanks = 3;
  const std::string stop = EarlyStop::kReason, gone = "rank 7 has left";
  for (const std::string& why : {stop, gone}) {
    for (int told = 0; told < kRanks; ++told) {
      SCOPED_TRACE(why + ", told to rank " + std::to_string(told));
      const int port = SomePort();
      std::atomic<bool> asked{false};
      const auto errors = OnThreads(kRanks, [&](int rank) {
        AskGiveUp ask = [&] { return GiveUp{}; };
        if (rank == told) {
          ask = [&] {
            asked = true;
            return GiveUp{why, {}};
          };
        } else {
          while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        // Who has met all the others by then hears of it as of any failure.
        JoinTcpStore("localhost", port, rank, kRanks, 30, {"s", 0}, ask)->Get("never");
      });
      for (const std::string& error : errors) EXPECT_EQ(error, why);
    }
  }
}

TEST(StoreGiveUp, IsAnEarlyStopOrAFailure) {
  const int port = SomePort();
  EXPECT_THROW(JoinTcpStore("localhost", port, 0, 1, 300, {"s", 0}, Always(EarlyStop::kReason)),
               EarlyStop);
  EXPECT_THROW(JoinTcpStore("localhost", port, 0, 1, 300, {"s", 0}, Always("why")), CommError);
}

// Or for that of a rank which will never come.
TEST(StoreGiveUp, DoesNotWaitForARankThatIsGone) {
  const int port = SomePort();
  for (const int rank : {0, 1}) {
    const double seconds = SecondsOf([&] {
      EXPECT_EQ(ErrorOf([&] {
                  JoinTcpStore("localhost", port, rank, 2, 300, {"s", 0}, Always("why", 1 - rank));
                }),
                "why");
    });
    EXPECT_LT(seconds, static_cast<double>(kTellWithin.count())) << rank;
  }
}

// The job fails while the rank asks, and the answer is about one that has heard of it and left.
TEST(StoreGiveUp, TheFirstReasonCounts) {
  const int port = SomePort();
  const auto begin = std::chrono::steady_clock::now();
  const auto late = begin + std::chrono::seconds(2);
  const AskGiveUp ask = [&] {
    if (std::chrono::steady_clock::now() < begin + std::chrono::milliseconds(500)) return GiveUp{};
    std::this_thread::sleep_until(late);
    return GiveUp{"rank 1 has left", 1};
  };
  EXPECT_EQ(ErrorOf([&] {
              JoinTcpStore("localhost", port, 0, 2, /*timeout_s=*/1, {"s", 0}, ask);
            }),
            "rank 1 did not join the store within 1 s");
}

// Rank 0 names those that have not come; another, that rank 0 has not.
TEST(StoreJoin, SaysWhomItWaitsFor) {
  const int port = SomePort();
  std::mutex mutex;
  std::map<int, std::vector<int>> said;  // By who says it, the last.
  const auto has_said = [&](int rank, const std::vector<int>& ranks) {
    const std::lock_guard lock(mutex);
    return said[rank] == ranks;
  };
  const auto errors = OnThreads(4, [&](int rank) {
    const SayWaiting waiting{[&, rank](const std::vector<int>& ranks, const std::string&) {
                               const std::lock_guard lock(mutex);
                               said[rank] = ranks;
                             },
                             std::chrono::milliseconds(20)};
    const auto wait_until = [](const auto& condition) {
      while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    if (rank == 0) wait_until([&] { return has_said(2, {0}); });
    if (rank == 1) wait_until([&] { return has_said(0, {1, 3}); });
    if (rank == 3) wait_until([&] { return has_said(0, {3}); });
    JoinTcpStore("localhost", port, rank, 4, 60, {"s", 0}, {}, waiting);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(said[2], std::vector<int>{0});
}

TEST(StoreJoin, ByAddressOfEachFamilyAndByName) {
  for (const char* host : {"127.0.0.1", "::1", "localhost"}) {
    std::unique_ptr<TcpStoreServer> server;
    try {
      server = std::make_unique<TcpStoreServer>(host, 0, 2, 60, StoreAccess{"s", 0});
    } catch (const CommError&) {
      EXPECT_STREQ(host, "::1");
      GTEST_LOG_(INFO) << "skipped: this machine has no IPv6";
      continue;
    }
    const auto errors = OnThreads(2, [&](int rank) {
      const auto store = ConnectTcpStore(host, server->port(), rank, 2, 60, {"s", 0});
      Barrier(*store, "in", rank, 2);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << host;
  }
  EXPECT_EQ(HostPort("::1", 5), "[::1]:5");
  EXPECT_EQ(HostPort("node-1", 5), "node-1:5");
  EXPECT_TRUE(IsLoopbackHost("::1"));
  EXPECT_TRUE(IsLoopbackHost("127.0.0.1"));
  EXPECT_FALSE(IsLoopbackHost("192.0.2.1"));
  EXPECT_FALSE(IsLoopbackHost("no such host"));
}

// One listening socket takes both families where the host is not the loopback device.
TEST(StoreJoin, OnAllAddressesOfBothFamilies) {
  TcpStoreServer server("0.0.0.0", 0, 2, 60, {"s", 0});
  const char* const hosts[] = {"127.0.0.1", "::1"};
  bool ipv6 = true;
  try {
    Listen("::1", 0);
  } catch (const CommError&) {
    ipv6 = false;
    GTEST_LOG_(INFO) << "skipped the second half: this machine has no IPv6";
  }
  const auto errors = OnThreads(2, [&](int rank) {
    const auto store =
        ConnectTcpStore(hosts[ipv6 ? rank : 0], server.port(), rank, 2, 60, {"s", 0});
    Barrier(*store, "in", rank, 2);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(StoreJoin, FiveHundredAndTwelve) {
  constexpr int kRanks = 512;
  TcpStoreServer server("localhost", 0, kRanks, 300, {"s", 0});
  std::vector<std::unique_ptr<Store>> stores(kRanks);
  std::vector<std::string> errors;
  const double joined = SecondsOf([&] {
    errors = OnThreads(kRanks, [&](int rank) {
      stores[rank] = ConnectTcpStore("localhost", server.port(), rank, kRanks, 300, {"s", 0});
    });
  });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  const double exchanged = SecondsOf([&] {
    errors = OnThreads(kRanks, [&](int rank) {
      const auto values = Exchange(*stores[rank], "e", rank, kRanks, std::to_string(rank));
      if (values[kRanks - 1 - rank] != std::to_string(kRanks - 1 - rank)) throw CommError("value");
    });
  });
  for (const std::string& error : errors) ASSERT_EQ(error, "");
  errors = OnThreads(kRanks, [&](int rank) { stores[rank].reset(); });
  GTEST_LOG_(INFO) << kRanks << " clients: joined in " << joined << " s, exchanged values in "
                   << exchanged << " s";
}

// --- Its limits ---

TEST(StoreLimits, WhoDoesNotProveItselfIsGoneSoon) {
  StoreLimits limits;
  limits.prove_within = std::chrono::seconds(1);
  TcpStoreServer server("localhost", 0, 1, 60, {"s", 0}, limits);
  const auto store = ConnectTcpStore("localhost", server.port(), 0, 1, 60, {"s", 0});
  RawMember silent(server.port()), half(server.port());
  half.Hello();
  const double seconds = SecondsOf([&] {
    EXPECT_TRUE(silent.ReadToEnd());
    EXPECT_TRUE(half.ReadToEnd());
  });
  EXPECT_LT(seconds, 30);
  ExpectWorks(*store);  // A member stays.
}

TEST(StoreLimits, OfManyStrangersTheOldestGoes) {
  TcpStoreServer server("localhost", 0, 1, 60, {"s", 0}, Patient());
  std::vector<std::unique_ptr<RawMember>> strangers;
  const size_t most = StoreLimits::Unproven(1);
  for (size_t i = 0; i < most + 10; ++i) {
    strangers.push_back(std::make_unique<RawMember>(server.port()));
  }
  // A rank gets in all the same.
  const auto store = ConnectTcpStore("localhost", server.port(), 0, 1, 60, {"s", 0});
  ExpectWorks(*store);
  for (size_t i = 0; i < 10; ++i) EXPECT_TRUE(strangers[i]->ReadToEnd()) << i;
  EXPECT_FALSE(strangers.back()->Closed());
}

TEST(StoreLimits, StrangersLeaveTheRankHalfOfItsFiles) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto unproven = [&](rlim_t files, int ranks) {
    const rlimit limit = {files, before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return StoreLimits::Unproven(ranks);
  };
  EXPECT_EQ(unproven(1024, 8), 64u + 8);
  EXPECT_EQ(unproven(1024, 512), 240u);
  EXPECT_EQ(unproven(64, 2), 15u);
  EXPECT_EQ(unproven(64, 40), 4u);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(StoreLimits, AStrangersMessageIsShort) {
  TcpStoreServer server("localhost", 0, 1, 60, {"s", 0});
  const auto store = ConnectTcpStore("localhost", server.port(), 0, 1, 60, {"s", 0});
  RawMember stranger(server.port(), "s");
  stranger.Send(wire::Writer(Type::kHello, 1).String(std::string(1000, 'x')).Frame());
  EXPECT_EQ(stranger.Receive(), std::nullopt);
  RawMember slow(server.port(), "s");  // Says that it will be long: gone before it is.
  const uint32_t length = wire::kMaxStranger + 1;
  slow.Send(std::string(reinterpret_cast<const char*>(&length), sizeof(length)));
  EXPECT_TRUE(slow.ReadToEnd());
  ExpectWorks(*store);
}

TEST(StoreLimits, AMembersRequestsAreBounded) {
  const auto set = [](size_t bytes) {
    return wire::Writer(Type::kSet, 2).String("k").String(std::string(bytes, 'v')).Frame();
  };
  const auto fetch = [](size_t keys, size_t bytes) {
    wire::Writer message(Type::kFetch, 2);
    message.Int(kMinute_us).Int(static_cast<int64_t>(keys));
    for (size_t i = 0; i < keys; ++i) message.String(std::string(bytes, 'k'));
    return std::move(message).Frame();
  };
  std::string many;
  for (size_t i = 0; i <= StoreLimits::kFetches; ++i) many += fetch(1, 1);
  std::string large;
  for (size_t i = 0; i < 6; ++i) large += fetch(1000, 1000);
  for (const auto& [bytes, how] :
       std::vector<std::pair<std::string, std::string>>{{set(wire::kMaxRequest), "a message of "},
                                                        {set(Store::kMaxValue + 1), "a text of "},
                                                        {many, "more requests than it waits for"},
                                                        {large, "more requests than it waits for"},
                                                        {fetch(70000, 1), "a fetch of 70000 keys"},
                                                        {fetch(1, 0), "an empty key"}}) {
    TcpStoreServer server("localhost", 0, 2, 60, {"s", 0}, Patient());
    RawMember member(server.port(), "s");
    ASSERT_TRUE(member.Prove(Claim(1, 2)));
    std::thread sender([&, bytes = std::string_view(bytes)] { member.Send(bytes); });
    const std::string error = ErrorOf([&] {
      ConnectTcpStore("localhost", server.port(), 0, 2, 60, {"s", 0})->Get("never");
    });
    EXPECT_EQ(error.find("rank 1 sent the store " + how), 0u) << error;
    member.Reset();
    sender.join();
  }
}

int64_t ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  in >> pages >> resident;
  return resident * 4096;
}

// A member that asks and does not read: the server keeps one answer for it, others go on, and when
// it reads, it gets all.
TEST(StoreLimits, AMemberThatDoesNotReadIsNotAnswered) {
  TcpStoreServer server("localhost", 0, 2, 60, {"s", 0}, Patient());
  RawMember lazy(server.port(), "s");
  ASSERT_TRUE(lazy.Prove(Claim(1, 2)));
  const auto store = ConnectTcpStore("localhost", server.port(), 0, 2, 60, {"s", 0});
  store->Set("k", std::string(Store::kMaxValue, 'v'));
  const int64_t before = ResidentBytes();
  constexpr int kAsked = 500;  // Values of 1 MiB each.
  for (int i = 0; i < kAsked; ++i) {
    ASSERT_TRUE(lazy.Send(wire::Writer(Type::kFetch, 2).Int(0).Int(1).String("k").Frame()));
    if (i % 50 == 0) ExpectWorks(*store);
  }
  ExpectWorks(*store);
  malloc_trim(0);
  EXPECT_LT(ResidentBytes() - before, int64_t{64} << 20);
  int answers = 0;
  while (answers <= kAsked) {  // The first one is that to its proof.
    const auto body = lazy.Receive();
    ASSERT_TRUE(body);
    ++answers;
  }
  ExpectWorks(*store);
}

TEST(StoreLimits, AFullTableIsAnErrorOfWhoAdds) {
  StoreLimits limits;
  limits.table_bytes = 10000;
  TcpStoreServer server("localhost", 0, 1, 60, {"s", 0}, limits);
  const auto store = ConnectTcpStore("localhost", server.port(), 0, 1, 60, {"s", 0});
  store->Set("a", std::string(5000, 'a'));
  std::string error;
  try {
    store->Set("b", std::string(5000, 'b'));
  } catch (const std::invalid_argument& refused) {
    error = refused.what();
  }
  EXPECT_EQ(error, "[Store::Set] the table is full: 1 keys, 10000 bytes");
  store->Set("a", "");  // Makes room.
  store->Set("b", std::string(5000, 'b'));
  EXPECT_EQ(store->Get("b").size(), 5000u);
  for (int i = 0; i < 10; ++i) {  // Forgotten keys leave their room.
    const std::string save = "save/" + std::to_string(i) + "/";
    for (int k = 0; k < 5; ++k) store->Set(save + std::to_string(k), std::string(400, 's'));
    store->Forget(save);
  }
  for (int i = 0;; ++i) {
    ASSERT_LT(i, 100);
    try {
      store->Add("counter" + std::to_string(i), 1);
    } catch (const std::invalid_argument& refused) {
      EXPECT_EQ(std::string(refused.what()).find("[Store::Add] the table is full: "), 0u);
      break;
    }
  }
  EXPECT_EQ(store->Get("b").size(), 5000u);
  EXPECT_EQ(store->FailureReason(), "");
}

}  // namespace
}  // namespace fsdp
