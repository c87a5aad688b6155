#include "trainer/comm/hosts/host_links.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>

#include "trainer/comm/store/memory_store.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

struct Ends {
  Socket a, b;
};
Ends MakePair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) throw std::runtime_error("socketpair");
  return {Socket(fds[0]), Socket(fds[1])};
}

std::vector<Socket> SecondOf(Socket socket) {  // As host 0 of two.
  std::vector<Socket> sockets(2);
  sockets[1] = std::move(socket);
  return sockets;
}

TEST(HostLinksTest, MessagesArriveWholeAndInOrderAndTheEndIsToldOnce) {
  Ends ends = MakePair();
  HostLinks here(0, SecondOf(std::move(ends.a)));
  std::vector<std::string> got;
  int lost = 0;
  const auto poll = [&] {
    here.Poll(
        1000,
        [&](int, uint32_t type, const std::string& text) {
          got.push_back(std::to_string(type) + text);
        },
        [&](int host) { lost += host; });
  };
  {
    HostLinks there(0, SecondOf(std::move(ends.b)));
    there.Send(1, 7, "one");
    there.SendToAll(8, std::string(4000, 'x'));
    there.Send(1, 9, "");
    while (got.size() < 3) poll();
  }
  EXPECT_EQ(got, (std::vector<std::string>{"7one", "8" + std::string(4000, 'x'), "9"}));
  EXPECT_EQ(lost, 0);
  poll();
  EXPECT_EQ(lost, 1);
  here.Wake();
  poll();
  EXPECT_EQ(lost, 1);
  here.Send(1, 7, "to nobody");  // Neither throws nor raises SIGPIPE.
}

TEST(HostLinksTest, AMessageThatIsTooLongEndsTheLink) {
  Ends ends = MakePair();
  HostLinks here(0, SecondOf(std::move(ends.a)));
  const uint32_t frame[] = {1, 1u << 30};
  ASSERT_EQ(send(ends.b.get(), frame, sizeof(frame), 0), static_cast<ssize_t>(sizeof(frame)));
  int lost = 0;
  here.Poll(
      1000, [](int, uint32_t, const std::string&) { FAIL(); }, [&](int) { ++lost; });
  EXPECT_EQ(lost, 1);
}

TEST(HostLinksTest, ALinkThatNobodyReadsDoesNotBlock) {
  Ends ends = MakePair();
  HostLinks here(0, SecondOf(std::move(ends.a)));
  for (int i = 0; i < 1000; ++i) here.Send(1, 1, std::string(4000, 'x'));
}

// Whoever finds the port without the secret, or says a wrong host, is sent away; the host comes.
TEST(ConnectHostsTest, StrangersAreSentAway) {
  MemoryStore store(/*timeout_s=*/60);
  const Socket listening = Listen("127.0.0.1", 0), other = Listen("127.0.0.1", 0);
  const std::vector<HostDoor> doors = {{"127.0.0.1", PortOf(listening)},
                                       {"127.0.0.1", PortOf(other)}};
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(60); };
  const Socket silent = Connect("127.0.0.1", doors[0].port, soon());
  const Socket rude = Connect("127.0.0.1", doors[0].port, soon());
  const std::string nonsense(1000, 'n');
  ASSERT_EQ(send(rude.get(), nonsense.data(), nonsense.size(), 0), 1000);
  std::thread wrong([&] {
    try {
      MemoryStore apart(/*timeout_s=*/10);
      ConnectHosts(apart, 1, other, doors, "another secret", 10);
    } catch (const CommError&) {
    }
  });
  wrong.join();
  std::vector<Socket> theirs;
  std::thread host([&] { theirs = ConnectHosts(store, 1, other, doors, "secret", 60); });
  const std::vector<Socket> ours = ConnectHosts(store, 0, listening, doors, "secret", 60);
  host.join();
  ASSERT_EQ(send(theirs[0].get(), "x", 1, 0), 1);
  char got = 0;
  ASSERT_EQ(recv(ours[1].get(), &got, 1, 0), 1);
  EXPECT_EQ(got, 'x');
}

TEST(ConnectHostsTest, AHostThatDoesNotComeIsAnErrorInTimeAndAFailedJobAtOnce) {
  const Socket listening = Listen("127.0.0.1", 0);
  const std::vector<HostDoor> doors = {{"127.0.0.1", PortOf(listening)}, {"127.0.0.1", 1}};
  MemoryStore store(/*timeout_s=*/10);
  EXPECT_THROW(ConnectHosts(store, 0, listening, doors, "secret", 0.3), CommError);
  store.Fail("rank 1 died");
  try {
    ConnectHosts(store, 0, listening, doors, "secret", 60);
    FAIL() << "connected";
  } catch (const CommError& error) {
    EXPECT_STREQ(error.what(), "rank 1 died");
  }
}

}  // namespace
}  // namespace fsdp
