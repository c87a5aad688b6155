#include "trainer/comm/tcp_store.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "trainer/comm/socket.h"
#include "trainer/comm/wire.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using wire::Type;

// On top of the time that the server was given: it answers by itself when that is over, and its
// answer knows more than ours.
constexpr std::chrono::seconds kGrace{5};

Clock::duration Seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

class TcpStore final : public Store {
 public:
  // `server` is null but on rank 0.
  TcpStore(const std::string& host, int port, int rank, int size, double timeout_s,
           std::unique_ptr<TcpStoreServer> server)
      : Store(timeout_s), server_(std::move(server)) {
    const auto deadline = Clock::now() + Seconds(timeout_s);
    try {
      socket_ = Connect(host, port, deadline);
    } catch (const CommError& error) {
      throw CommError("rank " + std::to_string(rank) + " " + error.what());
    }
    reader_ = std::thread([this] { Read(); });
    try {
      Request(Type::kHello, deadline + kGrace,
              [&](wire::Writer& message) { message.String(wire::kMagic).Int(rank).Int(size); });
    } catch (const std::invalid_argument& error) {  // The launcher's mistake, not our caller's.
      Stop();
      throw CommError(error.what());
    } catch (...) {
      Stop();
      throw;
    }
  }

  ~TcpStore() override {
    Leave();
    Stop();
  }

  void Set(const std::string& key, const std::string& value) override {
    CheckSizes(key, value);
    Request(Type::kSet, Soon(), [&](wire::Writer& message) { message.String(key).String(value); });
  }

  int64_t Add(const std::string& key, int64_t delta) override {
    CheckSizes(key, "");
    const std::string reply =
        Request(Type::kAdd, Soon(), [&](wire::Writer& message) { message.String(key).Int(delta); });
    return wire::Reader(reply).Int();
  }

  std::vector<std::optional<std::string>> Fetch(const std::vector<std::string>& keys,
                                                double timeout_s) override {
    for (const std::string& key : keys) CheckSizes(key, "");
    const std::string reply = Request(Type::kFetch, Clock::now() + Seconds(timeout_s) + kGrace,
                                      [&](wire::Writer& message) {
                                        message.Int(static_cast<int64_t>(timeout_s * 1e6));
                                        message.Int(static_cast<int64_t>(keys.size()));
                                        for (const std::string& key : keys) message.String(key);
                                      });
    wire::Reader in(reply);
    std::vector<std::optional<std::string>> values(static_cast<size_t>(in.Int()));
    for (auto& value : values) {
      if (in.Int() != 0) value = in.String(kMaxValue);
    }
    return values;
  }

  void Fail(const std::string& why) override {
    const std::string reason = why.empty() ? "a rank has failed" : why.substr(0, kMaxValue);
    try {
      // Not for timeout_s: that may be over already, because the one who holds the store is silent.
      Request(Type::kFail, Clock::now() + kGrace,
              [&](wire::Writer& message) { message.String(reason); });
    } catch (const CommError&) {  // It has failed already and all know, or nobody can be told.
    }
    std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = reason;
  }

  std::string FailureReason() const override {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  void OnFailure(std::function<void(const std::string&)> callback) override {
    std::lock_guard callback_lock(callback_mutex_);
    callback_ = std::move(callback);
    CallBack();
  }

  void Leave() override {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(left_, true) || !failure_.empty()) return;
    }
    try {
      Request(Type::kLeave, Clock::now() + kGrace, [](wire::Writer&) {});
    } catch (const CommError&) {  // A store that is gone needs no good-bye.
    }
  }

 private:
  Clock::time_point Soon() const { return Clock::now() + Seconds(timeout_s()) + kGrace; }

  // Sends a message, whose rest `fill` writes, and returns the body of the answer.
  template <typename Fill>
  std::string Request(Type type, Clock::time_point deadline, Fill fill) {
    uint64_t id = 0;
    {
      std::lock_guard lock(mutex_);
      if (!failure_.empty()) throw CommError(failure_);
      if (left_ && type != Type::kLeave) throw CommError("this rank has left the store");
      id = next_id_++;
      answers_[id] = std::nullopt;
    }
    wire::Writer message(type, id);
    fill(message);
    Send(std::move(message).Frame());
    std::unique_lock lock(mutex_);
    answered_.wait_until(lock, deadline,
                         [&] { return answers_[id] || !failure_.empty() || gone_; });
    const std::optional<std::string> answer = std::move(answers_[id]);
    answers_.erase(id);
    if (!answer) throw CommError(failure_.empty() ? "the store does not answer" : failure_);
    wire::Reader in(*answer);
    if (in.type() == Type::kRefused) throw std::invalid_argument(in.String(kMaxValue));
    return *answer;
  }

  void Send(const std::string& frame) {
    std::lock_guard lock(send_mutex_);
    for (size_t sent = 0; sent < frame.size();) {
      const ssize_t n = send(socket_.fd(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;  // The reader sees the end of the connection, and says so.
      sent += static_cast<size_t>(n);
    }
  }

  // The reader's thread.
  void Read() {
    std::string received;
    char buffer[1 << 16];
    for (;;) {
      const ssize_t n = recv(socket_.fd(), buffer, sizeof(buffer), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return SetFailure("rank 0, which holds the store, has disconnected");
      received.append(buffer, static_cast<size_t>(n));
      try {
        while (const auto body = wire::TakeFrame(received, wire::kMaxBody)) Handle(*body);
      } catch (const wire::Malformed& error) {
        return SetFailure(std::string("the store sent ") + error.what());
      }
    }
  }

  void Handle(const std::string& body) {
    wire::Reader in(body);
    if (in.type() == Type::kFailure) return SetFailure(in.String(kMaxValue));
    std::lock_guard lock(mutex_);
    const auto waiting = answers_.find(in.id());
    if (waiting == answers_.end()) return;  // Its caller has given up.
    waiting->second = body;
    answered_.notify_all();
  }

  void SetFailure(const std::string& why) {
    {
      std::lock_guard lock(mutex_);
      gone_ = true;
      if (!left_ && failure_.empty()) failure_ = why;
    }
    answered_.notify_all();
    std::lock_guard callback_lock(callback_mutex_);
    CallBack();
  }

  // With callback_mutex_ held: calls it if there is a reason, once.
  void CallBack() {
    const std::string reason = FailureReason();
    if (reason.empty() || callback_ == nullptr) return;
    std::exchange(callback_, nullptr)(reason);
  }

  void Stop() {
    {
      std::lock_guard lock(mutex_);
      left_ = true;
    }
    shutdown(socket_.fd(), SHUT_RDWR);
    reader_.join();
  }

  std::unique_ptr<TcpStoreServer> server_;  // Goes last: after our own leave.
  Socket socket_;
  std::mutex send_mutex_;
  mutable std::mutex mutex_;  // Guards the six below.
  std::condition_variable answered_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::optional<std::string>> answers_;  // By id: who waits, and what came.
  std::string failure_;
  bool left_ = false;
  bool gone_ = false;          // Nothing more will be answered.
  std::mutex callback_mutex_;  // Held while it runs. Taken before mutex_.
  std::function<void(const std::string&)> callback_;
  std::thread reader_;
};

}  // namespace

std::unique_ptr<Store> ConnectTcpStore(const std::string& host, int port, int rank, int size,
                                       double timeout_s) {
  return std::make_unique<TcpStore>(host, port, rank, size, timeout_s, nullptr);
}

std::unique_ptr<Store> JoinTcpStore(const std::string& host, int port, int rank, int size,
                                    double timeout_s) {
  std::unique_ptr<TcpStoreServer> server;
  if (rank == 0) server = std::make_unique<TcpStoreServer>(host, port, size, timeout_s);
  return std::make_unique<TcpStore>(host, port, rank, size, timeout_s, std::move(server));
}

}  // namespace fsdp
