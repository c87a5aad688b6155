#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <set>
#include <vector>

#include "trainer/launch/rank_variables.h"

namespace fsdp {
namespace {

bool Listen(const UniqueFd& socket, uint32_t host, int port, bool reuse) {
  const int on = reuse;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
         listen(socket.get(), 1) == 0;
}

TEST(FreePortTest, WhoNamesItCanListenThere) {
  const FreePort port;
  for (const uint32_t host : {INADDR_LOOPBACK, INADDR_ANY}) {
    const UniqueFd store(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_TRUE(Listen(store, host, port.port(), true));
    const UniqueFd second(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_FALSE(Listen(second, host, port.port(), true));  // Not two of them.
  }
}

TEST(FreePortTest, OthersDoNotGetIt) {
  const FreePort port;
  const UniqueFd other(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_FALSE(Listen(other, INADDR_LOOPBACK, port.port(), false));
  std::vector<FreePort> more(100);
  std::set<int> ports = {port.port()};
  for (const FreePort& it : more) ports.insert(it.port());
  EXPECT_EQ(ports.size(), 101u);
}

}  // namespace
}  // namespace fsdp
