#include "trainer/comm/hosts/host_links.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

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

}  // namespace
}  // namespace fsdp
