#include "trainer/comm/tcp/tcp_mesh.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "trainer/comm/store/socket.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;
using Messages = std::vector<TcpMesh::Message>;

constexpr double kTimeout_s = 60;
constexpr int64_t kMuch = 16 << 20;  // More than the kernel's buffers of a connection hold.

Bytes Pattern(int64_t bytes, uint64_t seed) {
  Bytes data(static_cast<size_t>(bytes));
  for (std::byte& b : data) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(seed >> 56);
  }
  return data;
}

std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

// Meshes of ranks 0, 1, ... of one process, connected or about to be.
struct World {
  std::vector<std::unique_ptr<TcpMesh>> meshes;

  explicit World(int size, const std::string& address = "127.0.0.1", bool connected = true) {
    for (int rank = 0; rank < size; ++rank) {
      std::vector<int> peers;
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) peers.push_back(peer);
      }
      meshes.push_back(std::make_unique<TcpMesh>(rank, peers, address, kTimeout_s));
    }
    if (connected) Run([&](int rank) { ConnectAll(rank); });
  }

  TcpMesh& operator[](int rank) { return *meshes[rank]; }

  void ConnectAll(int rank) {
    for (int peer = 0; peer < static_cast<int>(meshes.size()); ++peer) {
      if (peer != rank) meshes[rank]->Connect(peer, addresses_[peer][rank]);
    }
  }

  // body(rank) of all ranks, as threads. Throws what one of them throws, which ends the others.
  void Run(const std::function<void(int rank)>& body) {
    if (addresses_.empty()) {
      addresses_.resize(meshes.size(), std::vector<std::string>(meshes.size()));
      ForPairs([&](int from, int to) { addresses_[from][to] = meshes[from]->AddressFor(to); });
    }
    std::vector<std::future<void>> ends;
    for (int rank = 0; rank < static_cast<int>(meshes.size()); ++rank) {
      ends.push_back(std::async(std::launch::async, [&, rank] {
        try {
          body(rank);
        } catch (const std::exception&) {
          for (const auto& mesh : meshes) mesh->Abort();
          throw;
        }
      }));
    }
    for (auto& end : ends) end.wait();
    for (auto& end : ends) end.get();
  }

  void ForPairs(const std::function<void(int from, int to)>& body) const {
    const int size = static_cast<int>(meshes.size());
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        if (from != to) body(from, to);
      }
    }
  }

 private:
  std::vector<std::vector<std::string>> addresses_;
};

void WaitForAll(Messages& messages) {
  for (TcpMesh::Message& message : messages) EXPECT_TRUE(message.Wait());
}

TEST(TcpMeshTest, MessagesOfAllSizesArriveAtEveryRank) {
  for (const int size : {2, 3}) {
    for (const std::string address : {"127.0.0.1", "::1"}) {
      World world(size, address);
      world.Run([&](int rank) {
        for (const int64_t bytes : {0, 1, 3, 4097, 65535, 1000003, 3000001}) {
          Messages messages;
          const Bytes mine = Pattern(bytes, rank);
          std::vector<Bytes> got(size, Bytes(static_cast<size_t>(bytes)));
          for (int peer = 0; peer < size; ++peer) {
            if (peer == rank) continue;
            messages.push_back(world[rank].Receive(peer, 7, got[peer].data(), bytes));
            messages.push_back(world[rank].Send(peer, 7, mine.data(), bytes));
          }
          WaitForAll(messages);
          for (int peer = 0; peer < size; ++peer) {
            EXPECT_TRUE(peer == rank || got[peer] == Pattern(bytes, peer)) << bytes;
          }
        }
      });
    }
  }
}

// Tags are received last first, each twice: the two of a tag in their order.
TEST(TcpMeshTest, TagsAreReceivedInAnyOrder) {
  constexpr int kTags = 5;
  World world(2);
  const auto bytes = [](int tag) { return tag == 2 ? kMuch : 1000 * tag; };
  world.Run([&](int rank) {
    std::vector<Bytes> data;
    for (int i = 0; i < 2 * kTags; ++i) data.push_back(Pattern(bytes(i / 2), i));
    Messages messages;
    if (rank == 0) {
      for (int i = 0; i < 2 * kTags; ++i) {
        messages.push_back(world[0].Send(1, i / 2, data[i].data(), bytes(i / 2)));
      }
      WaitForAll(messages);
      return;
    }
    std::vector<Bytes> got;
    for (int tag = kTags - 1; tag >= 0; --tag) {
      for (int i = 2 * tag; i < 2 * tag + 2; ++i) {
        Bytes data_of_tag(static_cast<size_t>(bytes(tag)));
        EXPECT_TRUE(world[1].Receive(0, tag, data_of_tag.data(), bytes(tag)).Wait());
        EXPECT_TRUE(data_of_tag == data[i]) << i;
      }
    }
  });
}

// Rank 1 waits for rank 0 alone, and posts the first tag while its bytes are held in part.
TEST(TcpMeshTest, AReceiveTakesOverAMessageThatIsHeldInPart) {
  World world(3);
  Bytes first(kMuch), second(1), third(1);
  world.Run([&](int rank) {
    const Bytes large = Pattern(kMuch, 1), small = Pattern(1, 2);
    if (rank == 0) {
      auto message = world[0].Send(1, 1, large.data(), kMuch);
      world[0].Send(2, 0, small.data(), 1).Wait();  // Much of it is in the kernel.
      EXPECT_TRUE(message.Wait());
      EXPECT_TRUE(world[0].Send(1, 2, small.data(), 1).Wait());
    } else if (rank == 1) {
      Messages messages;
      messages.push_back(world[1].Receive(0, 2, second.data(), 1));
      EXPECT_TRUE(world[1].Receive(2, 0, third.data(), 1).Wait());
      messages.push_back(world[1].Receive(0, 1, first.data(), kMuch));
      WaitForAll(messages);
    } else {
      Bytes got(1);
      EXPECT_TRUE(world[2].Receive(0, 0, got.data(), 1).Wait());
      EXPECT_TRUE(world[2].Send(1, 0, small.data(), 1).Wait());
    }
  });
  EXPECT_TRUE(first == Pattern(kMuch, 1));
  EXPECT_TRUE(second == Pattern(1, 2) && third == second);
}

TEST(TcpMeshTest, SizesThatDisagreeAreNamed) {
  for (const bool held : {false, true}) {
    World world(2);
    const Bytes data(12);
    EXPECT_TRUE(world[0].Send(1, 5, data.data(), 12).Wait());
    EXPECT_TRUE(world[0].Send(1, 6, data.data(), 12).Wait());
    Bytes got(12);
    if (held) {
      EXPECT_TRUE(world[1].Receive(0, 6, got.data(), 12).Wait());
    }
    const std::string error = ErrorOf([&] { world[1].Receive(0, 5, got.data(), 8).Wait(); });
    EXPECT_EQ(error, "lost the connection to rank 0: it sent 12 bytes where 8 are due");
    EXPECT_EQ(ErrorOf([&] { world[1].Receive(0, 7, got.data(), 8); }), error);
  }
}

TEST(TcpMeshTest, PeersReceiveWhatWasSentByAMeshThatHasGone) {
  World world(2);
  const Bytes data = Pattern(100000, 3), unread(7);
  EXPECT_TRUE(world[1].Send(0, 9, unread.data(), 7).Wait());  // Nobody receives it.
  EXPECT_TRUE(world[0].Send(1, 1, data.data(), 100000).Wait());
  world.meshes[0].reset();
  Bytes got(100000);
  EXPECT_TRUE(world[1].Receive(0, 1, got.data(), 100000).Wait());
  EXPECT_TRUE(got == data);
  const std::string error = "lost the connection to rank 0: it closed the connection";
  EXPECT_EQ(ErrorOf([&] { world[1].Receive(0, 2, got.data(), 1).Wait(); }), error);
  EXPECT_EQ(ErrorOf([&] {
              for (;;) world[1].Send(0, 1, data.data(), 100000).Wait();  // No SIGPIPE, either.
            }).rfind("lost the connection to rank 0: ", 0),
            0u);
}

TEST(TcpMeshTest, APeerThatGoesInTheMiddleOfAMessageIsNamed) {
  for (const bool sender_goes : {true, false}) {
    World world(2);
    std::vector<Bytes> data(2, Bytes(kMuch));
    const auto begin = [&](int rank, bool sends) {
      return sends ? world[rank].Send(1 - rank, 1, data[rank].data(), kMuch)
                   : world[rank].Receive(1 - rank, 1, data[rank].data(), kMuch);
    };
    std::string error;
    std::thread other([&] {
      error = ErrorOf([&] {
        while (begin(1, !sender_goes).Wait()) {  // A send may end in the kernel's hands.
        }
      });
    });
    {
      auto message = begin(0, sender_goes);
      if (!sender_goes) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    world.meshes[0].reset();
    other.join();
    EXPECT_EQ(error.rfind("lost the connection to rank 0: ", 0), 0u) << error;
  }
}

TEST(TcpMeshTest, AbortEndsEveryWaitAtOnce) {
  World world(2);
  Bytes data(kMuch);
  const auto aborted = [&](int rank, TcpMesh::Message message) {
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world[rank].Abort();
    });
    EXPECT_FALSE(message.Wait());
    other.join();
  };
  aborted(0, world[0].Receive(1, 1, data.data(), 1));
  aborted(1, world[1].Send(0, 2, data.data(), kMuch));
  EXPECT_FALSE(world[0].Receive(1, 3, data.data(), 1).Wait());  // For good.
}

TEST(TcpMeshTest, AbortEndsConnect) {
  for (const int rank : {0, 1}) {  // One waits for the other's call, and one for its answer.
    World world(2, "127.0.0.1", /*connected=*/false);
    const std::string address = world[1 - rank].AddressFor(rank);
    const auto begin = Clock::now();
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world[rank].Abort();
    });
    EXPECT_EQ(ErrorOf([&] { world[rank].Connect(1 - rank, address); }),
              "cannot connect to rank " + std::to_string(1 - rank) + ": aborted");
    other.join();
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  }
}

TEST(TcpMeshTest, ConnectNamesWhoDoesNotComeOrAnswer) {
  const TcpMesh low(0, {1}, "127.0.0.1", 0.2);
  auto high = std::make_unique<TcpMesh>(1, std::vector<int>{0}, "127.0.0.1", 0.2);
  const std::string address = low.AddressFor(1);
  const std::string port = address.substr(0, address.find('/'));
  EXPECT_EQ(ErrorOf([&] { high->Connect(0, address); }),
            "cannot connect to rank 0: timed out: 127.0.0.1:" + port + " does not answer");
  TcpMesh alone(0, {1}, "127.0.0.1", 0.2);
  const std::string here = alone.AddressFor(1);
  EXPECT_EQ(ErrorOf([&] { alone.Connect(1, high->AddressFor(0)); }),
            "cannot connect to rank 1: timed out: it has not called 127.0.0.1:" +
                here.substr(0, here.find('/')));
  EXPECT_EQ(ErrorOf([&] { high->Connect(0, "nonsense"); }),
            "cannot connect to rank 0: \"nonsense\" is no address of a mesh");
  EXPECT_EQ(ErrorOf([&] { TcpMesh(0, {1}, "192.0.2.1", 1); }),
            "cannot listen at 192.0.2.1: Cannot assign requested address");
}

// Strangers say nothing, something else, or the right words with a wrong secret, and some stay.
TEST(TcpMeshTest, AStrangerTakesNobodysPlace) {
  World world(2, "127.0.0.1", /*connected=*/false);
  const std::string address = world[0].AddressFor(1);
  const int port = std::stoi(address);
  const auto soon = Clock::now() + std::chrono::seconds(30);
  std::vector<Socket> strangers;
  const auto come = [&](const std::string& words) {
    strangers.push_back(Connect("127.0.0.1", port, soon));
    send(strangers.back().get(), words.data(), words.size(), MSG_NOSIGNAL);
  };
  const std::string one("\1\0\0\0", 4);
  for (int i = 0; i < 100; ++i) come("");
  come("GET / HTTP/1.1\r\n\r\n" + std::string(100, ' '));
  come("fsdptcp1" + one + std::string(32, 'x'));
  come("fsdptcp1" + one + address.substr(address.find('/') + 1, 31) + "x");
  const auto begin = Clock::now();
  world.Run([&](int rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    world.ConnectAll(rank);
    Bytes data = Pattern(1000, rank), got(1000);
    auto receive = world[rank].Receive(1 - rank, 1, got.data(), 1000);
    auto sent = world[rank].Send(1 - rank, 1, data.data(), 1000);
    EXPECT_TRUE(receive.Wait() && sent.Wait());
    EXPECT_TRUE(got == Pattern(1000, 1 - rank));
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

// The port of a mesh that has gone belongs to somebody else.
TEST(TcpMeshTest, AStrangerThatAnswersIsNoPeer) {
  const Socket listening = ListenAt("127.0.0.1");
  TcpMesh mesh(1, {0}, "127.0.0.1", kTimeout_s);
  const std::string where = "127.0.0.1:" + std::to_string(PortOf(listening));
  const std::string address = std::to_string(PortOf(listening)) + "/" + std::string(32, 'a') + "/" +
                              std::string(32, 'b') + "/127.0.0.1";
  std::thread stranger([&] {
    Socket socket;
    while (!socket.open()) socket = Socket(accept(listening.get(), nullptr, nullptr));
    send(socket.get(), std::string(32, 'a').data(), 32, MSG_NOSIGNAL);
    char byte;
    while (recv(socket.get(), &byte, 1, 0) > 0) {
    }
  });
  EXPECT_EQ(ErrorOf([&] { mesh.Connect(0, address); }),
            "cannot connect to rank 0: a stranger answers at " + where);
  stranger.join();
}

TEST(TcpMeshTest, WithoutFilesConnectSaysSo) {
  World world(2, "127.0.0.1", /*connected=*/false);
  const std::string address = world[0].AddressFor(1);
  const Socket caller =
      Connect("127.0.0.1", std::stoi(address), Clock::now() + std::chrono::seconds(30));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{3, limit.rlim_max};  // Those of standard input, output and errors.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string error = ErrorOf([&] { world[0].Connect(1, world[1].AddressFor(0)); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(error, "cannot connect to rank 1: accept: Too many open files");
}

TEST(TcpMeshTest, WhatIsHeldHasABound) {
  constexpr int64_t kTooMuch = TcpMesh::kMostHeldBytes + 1;
  World world(2);
  const std::unique_ptr<std::byte[]> zeros(
      new std::byte[kTooMuch]);  // Pages that nobody writes to.
  const auto sent = world[0].Send(1, 1, zeros.get(), kTooMuch);
  std::byte got;
  EXPECT_EQ(ErrorOf([&] { world[1].Receive(0, 2, &got, 1).Wait(); }),
            "lost the connection to rank 0: it sent 1073741825 bytes that nobody waits for");
}

}  // namespace
}  // namespace fsdp
