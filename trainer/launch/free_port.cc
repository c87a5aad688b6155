#include "trainer/launch/free_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "trainer/core/errors.h"

namespace fsdp {

FreePort::FreePort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  const int on = 1;
  // SO_REUSEADDR after bind: before it, the port could be one that another reservation holds.
  if (!socket_.open() || bind(socket_.get(), any, length) != 0 ||
      getsockname(socket_.get(), any, &length) != 0 ||
      setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) {
    throw DeviceError(std::string("no free port on 127.0.0.1: ") + std::strerror(errno));
  }
  port_ = ntohs(address.sin_port);
}

}  // namespace fsdp
