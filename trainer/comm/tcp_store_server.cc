#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <list>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/comm/memory_store.h"
#include "trainer/comm/socket.h"
#include "trainer/comm/tcp_store.h"
#include "trainer/comm/wire.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using wire::Type;

constexpr size_t kMaxStrangers = 64;  // Connections that have not said hello.
constexpr std::chrono::seconds kHelloWithin{10};
constexpr std::chrono::seconds kLinger{10};       // For members to leave, at the end.
constexpr std::chrono::seconds kLingerFailed{1};  // For them to read why the job has failed.
constexpr int64_t kMaxFetchTimeout_us = int64_t{1} << 50;

struct Connection {
  Socket socket;
  Clock::time_point since;
  int rank = -1;  // Before its hello.
  uint64_t hello_id = 0;
  bool left = false;
  bool closed = false;
  std::string received, to_send;
};

struct PendingFetch {
  Connection* connection = nullptr;
  uint64_t id = 0;
  std::vector<std::string> keys;
  Clock::time_point deadline;
};

}  // namespace

class TcpStoreServer::Loop {
 public:
  Loop(const std::string& host, int port, int size, double join_timeout_s)
      : listening_(Listen(host, port)),
        port_(PortOf(listening_)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        members_(size, nullptr),
        join_timeout_s_(join_timeout_s),
        join_deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(join_timeout_s))),
        thread_([this] { Serve(); }) {}

  ~Loop() {
    stop_.store(true);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.fd(), &one, sizeof(one));
    thread_.join();
  }

  int port() const { return port_; }

 private:
  int size() const { return static_cast<int>(members_.size()); }

  void Serve() {
    std::optional<Clock::time_point> end;
    for (;;) {
      if (stop_.load() && !end) {
        end = Clock::now() + (failure_.empty() ? Clock::duration(kLinger) : kLingerFailed);
      }
      if (end && (Clock::now() >= *end ||
                  std::all_of(connections_.begin(), connections_.end(),
                              [](const Connection& c) { return c.rank < 0 || c.left; }))) {
        return;
      }
      PollOnce(end);
      OnTime();
      connections_.remove_if([](const Connection& c) { return c.closed; });
    }
  }

  void PollOnce(const std::optional<Clock::time_point>& end) {
    std::vector<pollfd> fds = {{listening_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
    std::vector<Connection*> owners;
    for (Connection& c : connections_) {
      fds.push_back(
          {c.socket.fd(), static_cast<short>(c.to_send.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      owners.push_back(&c);
    }
    if (poll(fds.data(), fds.size(), PollTimeout(end)) <= 0) return;
    if (fds[1].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(wake_.fd(), &count, sizeof(count));
    }
    for (size_t i = 0; i < owners.size(); ++i) {
      const short events = fds[i + 2].revents;
      if (!owners[i]->closed && (events & POLLOUT) != 0) Flush(*owners[i]);
      if (!owners[i]->closed && (events & ~POLLOUT) != 0) Receive(*owners[i]);
    }
    if (fds[0].revents != 0) Accept();
  }

  int PollTimeout(const std::optional<Clock::time_point>& end) const {
    auto next = Clock::now() + std::chrono::hours(1);
    if (end) next = std::min(next, *end);
    if (!joined_ && failure_.empty()) next = std::min(next, join_deadline_);
    for (const PendingFetch& fetch : fetches_) next = std::min(next, fetch.deadline);
    for (const Connection& c : connections_) {
      if (c.rank < 0) next = std::min(next, c.since + Clock::duration(kHelloWithin));
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::max<int64_t>(0, left));
  }

  void OnTime() {
    const auto now = Clock::now();
    if (!joined_ && failure_.empty() && now >= join_deadline_) {
      std::ostringstream why;
      const char* separator = "";
      for (int r = 0; r < size(); ++r) {
        if (members_[r] != nullptr) continue;
        why << separator << "rank " << r;
        separator = ", ";
      }
      why << " did not join the store within " << join_timeout_s_ << " s";
      FailJob(why.str());
    }
    for (Connection& c : connections_) {
      if (c.rank < 0 && now >= c.since + Clock::duration(kHelloWithin)) Close(c);
    }
    AnswerFetches();
  }

  void Accept() {
    for (;;) {
      Socket socket(accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.fd() < 0) return;
      const auto strangers = std::count_if(connections_.begin(), connections_.end(),
                                           [](const Connection& c) { return c.rank < 0; });
      if (static_cast<size_t>(strangers) >= kMaxStrangers + members_.size()) continue;
      ConfigureConnection(socket.fd());
      connections_.emplace_back();
      connections_.back().socket = std::move(socket);
      connections_.back().since = Clock::now();
    }
  }

  void Receive(Connection& c) {
    char buffer[1 << 16];
    const ssize_t got = recv(c.socket.fd(), buffer, sizeof(buffer), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return Lose(c, "disconnected from the store");
    c.received.append(buffer, static_cast<size_t>(got));
    try {
      while (!c.closed) {
        const auto body =
            wire::TakeFrame(c.received, c.rank < 0 ? wire::kMaxHello : wire::kMaxBody);
        if (!body) return;
        Handle(c, wire::Reader(*body));
      }
    } catch (const wire::Malformed& error) {
      Lose(c, std::string("sent the store ") + error.what());
    }
  }

  void Handle(Connection& c, wire::Reader message) {
    if (c.rank < 0) return Hello(c, message);
    switch (message.type()) {
      case Type::kSet: {
        const std::string key = message.String(Store::kMaxKey);
        std::string value = message.String(Store::kMaxValue);
        message.ExpectEnd();
        table_[key] = std::move(value);
        Send(c, wire::Writer(Type::kDone, message.id()));
        return AnswerFetches();
      }
      case Type::kAdd: {
        const std::string key = message.String(Store::kMaxKey);
        const int64_t delta = message.Int();
        message.ExpectEnd();
        const auto it = table_.find(key);
        try {
          const std::string sum = AddDecimal(key, it == table_.end() ? "0" : it->second, delta);
          table_[key] = sum;
          Send(c, wire::Writer(Type::kSum, message.id()).Int(std::stoll(sum)));
        } catch (const std::invalid_argument& error) {
          Send(c, wire::Writer(Type::kRefused, message.id()).String(error.what()));
        }
        return AnswerFetches();
      }
      case Type::kFetch: {
        PendingFetch fetch;
        const int64_t timeout_us = std::clamp<int64_t>(message.Int(), 0, kMaxFetchTimeout_us);
        fetch.connection = &c;
        fetch.id = message.id();
        fetch.deadline = Clock::now() + std::chrono::microseconds(timeout_us);
        const int64_t count = message.Int();
        for (int64_t i = 0; i < count; ++i) fetch.keys.push_back(message.String(Store::kMaxKey));
        message.ExpectEnd();
        fetches_.push_back(std::move(fetch));
        return AnswerFetches();
      }
      case Type::kFail: {
        const std::string why = message.String(Store::kMaxValue);
        message.ExpectEnd();
        Send(c, wire::Writer(Type::kDone, message.id()));
        return FailJob(why);
      }
      case Type::kLeave:
        message.ExpectEnd();
        c.left = true;
        return Send(c, wire::Writer(Type::kDone, message.id()));
      default:
        throw wire::Malformed("a message of unknown type");
    }
  }

  void Hello(Connection& c, wire::Reader& message) {
    if (message.type() != Type::kHello || message.String(wire::kMaxHello) != wire::kMagic) {
      throw wire::Malformed("no hello");
    }
    const int64_t rank = message.Int(), world = message.Int();
    message.ExpectEnd();
    std::string wrong;
    if (world != size()) {
      wrong = "rank " + std::to_string(rank) + " says that there are " + std::to_string(world) +
              " ranks, rank 0 that there are " + std::to_string(size());
    } else if (rank < 0 || rank >= world) {
      wrong = "rank " + std::to_string(rank) + " of " + std::to_string(world);
    } else if (members_[rank] != nullptr) {
      wrong = "rank " + std::to_string(rank) + " has joined the store already";
    }
    if (!wrong.empty()) {
      Send(c, wire::Writer(Type::kRefused, message.id()).String(wrong));
      return Close(c);
    }
    c.rank = static_cast<int>(rank);
    c.hello_id = message.id();
    members_[rank] = &c;
    ++arrived_;
    if (!failure_.empty()) return Send(c, wire::Writer(Type::kFailure, 0).String(failure_));
    if (arrived_ < size()) return;
    joined_ = true;
    for (Connection* member : members_) {
      Send(*member, wire::Writer(Type::kDone, member->hello_id));
    }
  }

  // Replies to the fetches that are complete or too late.
  void AnswerFetches() {
    const auto now = Clock::now();
    fetches_.remove_if([&](const PendingFetch& fetch) {
      const bool complete =
          std::all_of(fetch.keys.begin(), fetch.keys.end(),
                      [&](const std::string& key) { return table_.count(key) != 0; });
      if (!complete && now < fetch.deadline) return false;
      wire::Writer reply(Type::kValues, fetch.id);
      reply.Int(static_cast<int64_t>(fetch.keys.size()));
      for (const std::string& key : fetch.keys) {
        const auto it = table_.find(key);
        reply.Int(it != table_.end());
        if (it != table_.end()) reply.String(it->second);
      }
      if (reply.bytes() > wire::kMaxBody) {
        reply = wire::Writer(Type::kRefused, fetch.id);
        reply.String("[Store::Fetch] the values are more than " + std::to_string(wire::kMaxBody) +
                     " bytes");
      }
      Send(*fetch.connection, std::move(reply));
      return true;
    });
  }

  void Send(Connection& c, wire::Writer message) {
    if (c.closed) return;
    c.to_send += std::move(message).Frame();
    Flush(c);
  }

  void Flush(Connection& c) {
    while (!c.to_send.empty()) {
      const ssize_t sent =
          send(c.socket.fd(), c.to_send.data(), c.to_send.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) return;  // Later; a broken connection shows when it is read.
      c.to_send.erase(0, static_cast<size_t>(sent));
    }
  }

  void Lose(Connection& c, const std::string& how) {
    const int rank = c.rank;
    const bool failed = rank >= 0 && !c.left;
    Close(c);
    if (failed) FailJob("rank " + std::to_string(rank) + " " + how);
  }

  void Close(Connection& c) {
    c.closed = true;  // Removed by Serve(): callers up the stack still hold it.
    fetches_.remove_if([&](const PendingFetch& fetch) { return fetch.connection == &c; });
    shutdown(c.socket.fd(), SHUT_RDWR);
  }

  void FailJob(const std::string& why) {
    if (!failure_.empty()) return;
    failure_ = why;
    fetches_.clear();
    for (Connection& c : connections_) {
      if (c.rank >= 0) Send(c, wire::Writer(Type::kFailure, 0).String(why));
    }
  }

  Socket listening_;
  const int port_;
  Socket wake_;                        // An eventfd.
  std::list<Connection> connections_;  // A list: members_ and fetches_ point into it.
  std::vector<Connection*> members_;   // By rank; null before it joined, then only a mark.
  int arrived_ = 0;
  bool joined_ = false;
  std::string failure_;
  std::map<std::string, std::string> table_;
  std::list<PendingFetch> fetches_;
  const double join_timeout_s_;
  const Clock::time_point join_deadline_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // Last: it uses all of the above, which is its alone.
};

TcpStoreServer::TcpStoreServer(const std::string& host, int port, int size, double join_timeout_s)
    : loop_(std::make_unique<Loop>(host, port, size, join_timeout_s)) {}

TcpStoreServer::~TcpStoreServer() = default;

int TcpStoreServer::port() const { return loop_->port(); }

}  // namespace fsdp
