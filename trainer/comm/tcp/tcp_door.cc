#include "trainer/comm/tcp/tcp_door.h"

#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr int kTickMs = 100;
constexpr std::chrono::seconds kGuestTime{2};
constexpr size_t kMostGuests = 64;
constexpr std::array<char, 8> kMagic = {'f', 's', 'd', 'p', 't', 'c', 'p', '1'};

template <size_t kSize>
std::array<char, kSize> RandomHex() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::array<char, kSize> text;
  randombytes_buf(text.data(), text.size());
  for (char& c : text) c = kDigits[c & 15];
  return text;
}

bool Same(const auto& a, const auto& b) { return sodium_memcmp(a.data(), b.data(), a.size()) == 0; }

// Up to `bytes`; 0: nothing yet; negative: there is no more.
ssize_t Hear(int fd, void* to, size_t bytes) {
  const ssize_t n = recv(fd, to, bytes, MSG_DONTWAIT);
  if (n > 0) return n;
  return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

}  // namespace

TcpDoor::TcpDoor(int rank, const std::vector<int>& peers, const std::string& address,
                 const std::atomic<bool>& aborted)
    : rank_(rank),
      address_(address),
      aborted_(aborted),
      listening_(ListenAt(address)),
      port_(PortOf(listening_)) {
  if (sodium_init() < 0) throw CommError("libsodium has no random numbers");
  for (const int peer : peers) {
    secrets_[peer] = {RandomHex<kSecretBytes>(), RandomHex<kSecretBytes>()};
  }
}

std::string TcpDoor::AddressFor(int peer) const {
  const Secrets& secrets = secrets_.at(peer);
  return std::to_string(port_) + "/" + std::string(secrets.call.data(), kSecretBytes) + "/" +
         std::string(secrets.answer.data(), kSecretBytes) + "/" + address_;
}

Socket TcpDoor::Connect(int peer, const std::string& address, double timeout_s,
                        const std::string& name) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(timeout_s));
  Socket socket;
  try {
    socket = peer < rank_ ? Call(address, until) : Await(peer, until);
  } catch (const CommError& error) {
    throw CommError("cannot connect to " + name + ": " + error.what());
  }
  ConfigureConnection(socket.get());
  secrets_.erase(peer);  // Nobody takes its place.
  if (secrets_.empty()) listening_.Close();
  return socket;
}

Socket TcpDoor::Await(int peer, Clock::time_point until) {
  while (arrived_.count(peer) == 0) {
    Check(until, "it has not called " + HostPort(address_, port_));
    OpenOnce();
  }
  return std::move(arrived_.at(peer));
}

void TcpDoor::Check(Clock::time_point until, const std::string& missing) const {
  if (aborted_) throw CommError("aborted");
  if (Clock::now() >= until) throw CommError("timed out: " + missing);
}

Socket TcpDoor::Call(const std::string& address, Clock::time_point until) {
  int port = 0;
  char slash = 0;
  Hello hello{kMagic, rank_, {}};
  Secret want{}, answer{};
  std::string host;
  std::istringstream words(address);
  words >> port >> slash;
  words.read(hello.secret.data(), kSecretBytes) >> slash;
  words.read(want.data(), kSecretBytes) >> slash >> host;
  if (!words) throw CommError("\"" + address + "\" is no address of a mesh");
  const std::string where = HostPort(host, port);
  const auto deadline = [&] { return aborted_ ? Clock::time_point::min() : until; };
  for (;;) {
    auto [socket, error] = TryConnect(host, port, deadline);
    if (error != 0 && error != ETIMEDOUT) throw CommError(where + ": " + Errno(error));
    size_t heard = 0;
    const bool said =
        error == 0 && send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello);
    for (ssize_t n = 0; said && n >= 0 && heard < kSecretBytes;) {
      pollfd wait{socket.get(), POLLIN, 0};
      poll(&wait, 1, kTickMs);
      n = Hear(socket.get(), answer.data() + heard, kSecretBytes - heard);
      if (n > 0) heard += static_cast<size_t>(n);
      if (n == 0) Check(until, where + " does not answer");
    }
    if (heard == kSecretBytes) {
      if (!Same(answer, want)) throw CommError("a stranger answers at " + where);
      return std::move(socket);
    }
    Check(until, "no connection to " + where);
    std::this_thread::sleep_for(std::chrono::milliseconds(kTickMs));
  }
}

// Lets in who comes, and listens to guests. Blocks for 0.1 s at most.
void TcpDoor::OpenOnce() {
  std::vector<pollfd> waits = {{listening_.get(), POLLIN, 0}};
  for (const Guest& guest : guests_) waits.push_back({guest.socket.get(), POLLIN, 0});
  if (poll(waits.data(), waits.size(), kTickMs) < 0 && errno != EINTR) {
    throw CommError("poll: " + Errno(errno));
  }
  if (waits[0].revents != 0) {
    Socket socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // Without a file to spare the caller stays in the queue, and poll() would not wait.
    if (socket.get() < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
      throw CommError("accept: " + Errno(errno));
    }
    if (socket.open()) guests_.push_back({std::move(socket), Clock::now() + kGuestTime, {}});
  }
  guests_.remove_if([this](Guest& guest) { return !Stays(guest); });
  if (guests_.size() > kMostGuests) guests_.pop_front();
}

bool TcpDoor::Stays(Guest& guest) {
  char* to = reinterpret_cast<char*>(&guest.hello) + guest.heard;
  const ssize_t n = Hear(guest.socket.get(), to, sizeof(Hello) - guest.heard);
  if (n < 0) return false;
  guest.heard += static_cast<size_t>(n);
  if (guest.heard < sizeof(Hello)) return Clock::now() < guest.until;
  const auto found = secrets_.find(guest.hello.rank);
  if (guest.hello.magic != kMagic || found == secrets_.end() || found->first < rank_ ||
      !Same(guest.hello.secret, found->second.call)) {
    return false;
  }
  const Secret& answer = found->second.answer;
  if (send(guest.socket.get(), answer.data(), kSecretBytes, MSG_NOSIGNAL) > 0) {
    arrived_[found->first] =
        std::move(guest.socket);  // The last call counts: a caller may try again.
  }
  return false;
}

}  // namespace fsdp
