// Sockets and addresses of the TCP store and of meshes.
// Tests: tests/trainer/comm/store_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_SOCKET_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_SOCKET_H_

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "trainer/core/unique_fd.h"

namespace fsdp {

using Socket = UniqueFd;

std::string Errno(int error);  // The system's message for a value of errno.

// "host:port", an IPv6 address in brackets.
std::string HostPort(const std::string& host, int port);

// Whether `host` names addresses of the loopback device alone.
bool IsLoopbackHost(const std::string& host);

// Non-blocking; on the loopback device only where `host` names it, otherwise on every address, both
// IPv6 and IPv4 where there are both. Throws CommError.
Socket Listen(const std::string& host, int port);
// Non-blocking; any port of one numeric address. Throws CommError.
Socket ListenAt(const std::string& address);
int PortOf(const Socket& listening);

// Blocking. Tries every address of the name, again and again until one answers. Throws CommError
// with the last reason when the deadline is over; the second form looks at it all the time.
Socket Connect(const std::string& host, int port, std::chrono::steady_clock::time_point deadline);
using Deadline = std::function<std::chrono::steady_clock::time_point()>;
Socket Connect(const std::string& host, int port, const Deadline& deadline);

// One attempt, 5 s at most, at a numeric address: a blocking socket and 0, or none and an errno.
std::pair<Socket, int> TryConnect(const std::string& address, int port, const Deadline& deadline);

// Has a host that vanished without a word noticed in about a minute, and small messages sent at
// once.
void ConfigureConnection(int fd);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_SOCKET_H_
