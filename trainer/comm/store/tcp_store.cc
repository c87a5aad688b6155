#include "trainer/comm/store/tcp_store.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
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

#include "trainer/comm/patience.h"
#include "trainer/comm/store/socket.h"
#include "trainer/comm/store/together.h"
#include "trainer/comm/store/wire.h"
#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using wire::Type;

// On top of the time that the server was given: it answers by itself when that is over, and its
// answer knows more than ours.
constexpr std::chrono::milliseconds kGrace{1500};
// The same while ranks join and leave, when it has all of them to answer.
constexpr std::chrono::seconds kGraceOfAll{5};
// To hear that a failure has been told. It is sent by then, and read when the store gets to it.
constexpr std::chrono::seconds kToldWithin{2};

Clock::duration Seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// How long a store may take to answer a hello. One that is stopped or has another 500 ranks to
// welcome takes its time; whatever else listens there may never answer.
constexpr std::chrono::seconds kAnswerWithin{30};
// A proof can be turned down for other reasons than the secret: the store has ended, or had to wait
// for it for too long. So it counts where it came promptly, and several times in turn.
constexpr int kRefusals = 3;
constexpr std::chrono::seconds kPromptly{2};

class TcpStore final : public Store {
 public:
  // `server` is null but on rank 0.
  TcpStore(const std::string& host, int port, int rank, int size, double timeout_s,
           const StoreAccess& access, const AskGiveUp& ask, const SayWaiting& waiting,
           std::unique_ptr<TcpStoreServer> server)
      : Store(timeout_s),
        where_(HostPort(host, port)),
        server_(std::move(server)),
        ask_(ask),
        waiting_(waiting),
        say_at_(Clock::now() + waiting.every) {
    const auto deadline = Clock::now() + Seconds(timeout_s);
    const StoreKey key(access.secret);
    JoinClaim claim;
    claim.rank = rank;
    claim.size = size;
    claim.generation = access.generation;
    claim.timeout_us = static_cast<int64_t>(timeout_s * 1e6);
    try {
      Join(host, port, key, claim, deadline);
    } catch (const CommError& error) {
      if (GivesUp()) ThrowGivenUp();
      throw CommError("rank " + std::to_string(rank) + " " + error.what());
    }
    answers_[kJoinId] = std::nullopt;
    reader_ = StartThread("the thread that hears the store", [this] { Read(); });
    try {
      if (GivesUp()) throw GivenUp();
      Await(kJoinId, deadline + kGraceOfAll);
    } catch (const GivenUp&) {
      Fail(given_up_->why);
      const std::string first = FailureReason();
      Stop();
      // A rank that has left may have heard why the job has failed before this one did.
      if (first != given_up_->why && !EarlyStop::Is(given_up_->why)) throw CommError(first);
      ThrowGivenUp();
    } catch (const CommError& error) {
      Stop();
      if (EarlyStop::Is(error.what())) throw EarlyStop();
      throw;
    } catch (const std::invalid_argument& error) {  // The launcher's mistake, not our caller's.
      Stop();
      throw CommError(error.what());
    } catch (...) {
      Stop();
      throw;
    }
    ask_ = {};
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

  void Forget(const std::string& prefix) override {
    CheckSizes(prefix, "");
    Request(Type::kForget, Soon(), [&](wire::Writer& message) { message.String(prefix); });
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
    bool silent = false;
    {
      std::lock_guard lock(mutex_);
      silent = silent_;
    }
    try {
      // Not for timeout_s: that may be over already, because the one who holds the store is silent.
      Request(Type::kFail, Clock::now() + (silent ? Clock::duration() : kToldWithin),
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

  void OnFailure(Callback callback) override { Hear(on_failure_, std::move(callback)); }

  void Announce(const std::string& what) override {
    CheckSizes(what, "");
    Request(Type::kAnnounce, Soon(), [&](wire::Writer& message) { message.String(what); });
  }

  void OnAnnouncement(Callback callback) override { Hear(on_announcement_, std::move(callback)); }

  void Leave() override {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(left_, true) || !failure_.empty()) return;
    }
    try {
      Request(Type::kLeave, Clock::now() + kGraceOfAll, [](wire::Writer&) {});
    } catch (const CommError&) {  // A store that is gone needs no good-bye.
    }
  }

 private:
  static constexpr uint64_t kJoinId = 1;

  struct GivenUp {};
  Clock::time_point Soon() const { return Clock::now() + Seconds(timeout_s()) + kGrace; }

  // Asks until the rank gives up. It then has something to say, as long as there may be a store.
  bool GivesUp() {
    if (given_up_ || !ask_) return given_up_.has_value();
    GiveUp answer = ask_();
    if (answer.why.empty()) return false;
    tell_until_ = Clock::now();
    if (answer.gone != 0) tell_until_ += kTellWithin;
    if (server_ && answer.gone) server_->Gone(*answer.gone);
    given_up_ = std::move(answer);
    return true;
  }
  [[noreturn]] void ThrowGivenUp() const {
    if (EarlyStop::Is(given_up_->why)) throw EarlyStop();
    throw CommError(given_up_->why);
  }
  // While the store has not taken this rank's proof.
  Clock::time_point Until(Clock::time_point deadline) {
    if (waiting_.say && !server_ && Clock::now() >= say_at_) {
      say_at_ = Clock::now() + waiting_.every;
      waiting_.say({0}, "");
    }
    return GivesUp() ? std::min(deadline, tell_until_) : deadline;
  }

  // Until the store has taken this rank's proof and given its own. The answer to kJoinId is yet to
  // come.
  void Join(const std::string& host, int port, const StoreKey& key, JoinClaim claim,
            Clock::time_point deadline) {
    std::string why = "does not answer";
    for (int refusals = 0;;) {
      socket_ = Connect(host, port, [&] { return Until(deadline); });
      received_.clear();
      bool refused = false;
      if (Prove(key, claim, deadline, &why, &refused)) return;
      refusals = refused ? refusals + 1 : 0;
      if (refusals == kRefusals) {
        throw CommError("was refused by the store at " + where_ +
                        ": not the same secret (--rdzv-secret-file or FSDP_TRAIN_SECRET)");
      }
      constexpr std::chrono::milliseconds kPause{200};
      if (Clock::now() + kPause >= Until(deadline)) {
        throw CommError("cannot join the store at " + where_ + ": it " + why);
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  // One attempt. False where another may do better; then *why it did not work. Throws where none
  // can.
  bool Prove(const StoreKey& key, JoinClaim claim, Clock::time_point deadline, std::string* why,
             bool* refused) {
    const auto begin = Clock::now();
    const auto until = std::min(deadline + kGraceOfAll, begin + kAnswerWithin);
    const std::string mine = NewNonce();
    try {
      SendAll(wire::Writer(Type::kHello, kJoinId).String(wire::kMagic).String(mine), until);
      const std::optional<std::string> challenge = ReceiveFrame(until, why);
      if (!challenge) return false;
      wire::Reader asked(*challenge);
      if (asked.type() != Type::kChallenge) throw wire::Malformed("no challenge");
      const std::string theirs = asked.String(kNonceBytes);
      asked.ExpectEnd();

      claim.left_us = std::max<int64_t>(
          0,
          std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now()).count());
      wire::Writer proof(Type::kProof, kJoinId);
      for (const int64_t part :
           {claim.rank, claim.size, claim.generation, claim.timeout_us, claim.left_us}) {
        proof.Int(part);
      }
      SendAll(proof.String(key.ClientTag(mine, theirs, claim)), until);
      const std::optional<std::string> answer = ReceiveFrame(until, why);
      if (!answer) {
        *refused = *why == kCloses && Clock::now() - begin < kPromptly;
        return false;
      }
      wire::Reader proven(*answer);
      if (proven.type() != Type::kProven) throw wire::Malformed("no proof");
      const int64_t generation = proven.Int();
      const std::string tag = proven.String(kTagBytes);
      proven.ExpectEnd();
      if (!SameTag(tag, key.ServerTag(mine, theirs, claim, generation))) {
        throw CommError("does not join the store at " + where_ +
                        ": it does not know the secret (--rdzv-secret-file or FSDP_TRAIN_SECRET)");
      }
      if (generation > claim.generation) {
        throw CommError("belongs to start " + std::to_string(claim.generation) +
                        " of the job, and start " + std::to_string(generation) + " has begun at " +
                        where_);
      }
      if (generation < claim.generation) {
        *why = "is that of start " + std::to_string(generation) +
               " of the job, and this is start " + std::to_string(claim.generation);
        return false;
      }
      return true;
    } catch (const wire::Malformed& error) {
      *why = std::string("is none, or of another version: it sent ") + error.what();
      return false;
    }
  }

  // Nullopt, and *why, where none has come.
  std::optional<std::string> ReceiveFrame(Clock::time_point until, std::string* why) {
    char buffer[1 << 12];
    for (;;) {
      if (auto body = wire::TakeFrame(received_, wire::kMaxReply)) return body;
      if (!WaitFor(POLLIN, until)) {
        *why = "does not answer";
        return std::nullopt;
      }
      const ssize_t n = recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n <= 0) {
        *why = kCloses;
        return std::nullopt;
      }
      received_.append(buffer, static_cast<size_t>(n));
    }
  }

  // False where `until` is over, or the time to tell others.
  bool WaitFor(short events, Clock::time_point until) {
    Patience patience(until - Clock::now());
    for (;;) {
      const auto tick = std::chrono::ceil<std::chrono::milliseconds>(patience.tick()).count();
      pollfd waits{socket_.get(), events, 0};
      if (poll(&waits, 1, static_cast<int>(tick)) > 0) return true;
      if (patience.over() || (GivesUp() && Clock::now() >= tell_until_)) return false;
    }
  }

  // Sends a message, whose rest `fill` writes, and returns the body of the answer.
  template <typename Fill>
  std::string Request(Type type, Clock::time_point deadline, Fill fill) {
    uint64_t id = 0;
    {
      std::lock_guard lock(mutex_);
      if (!failure_.empty()) throw CommError(failure_);
      if (left_ && type != Type::kLeave) throw CommError("this rank has left the store");
      id = next_id_++;
    }
    wire::Writer message(type, id);
    fill(message);
    if (message.bytes() > wire::kMaxRequest) {
      throw std::invalid_argument("[Store] a request of " + std::to_string(message.bytes()) +
                                  " bytes, want at most " + std::to_string(wire::kMaxRequest));
    }
    {
      std::lock_guard lock(mutex_);
      answers_[id] = std::nullopt;
    }
    SendAll(std::move(message), deadline);
    return Await(id, deadline);
  }

  std::string Await(uint64_t id, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    const auto answered = [&] { return answers_[id] || !failure_.empty() || gone_; };
    for (Patience patience(deadline - Clock::now());
         !answered_.wait_for(lock, patience.tick(), answered) && !patience.over();) {
      if (id == kJoinId && GivesUp()) throw GivenUp();
    }
    const std::optional<std::string> answer = std::move(answers_[id]);
    answers_.erase(id);
    if (!answer) {
      if (failure_.empty()) silent_ = true;
      throw CommError(failure_.empty() ? "the store of rank 0, at " + where_ + ", does not answer"
                                       : failure_);
    }
    wire::Reader in(*answer);
    if (in.type() == Type::kRefused) throw std::invalid_argument(in.String(kMaxValue));
    return *answer;
  }

  // A message that cannot be sent by the deadline ends the connection: its rest could not be told
  // from the next message. The reader sees that end, and says so.
  void SendAll(wire::Writer message, Clock::time_point deadline) {
    const std::string frame = std::move(message).Frame();
    std::lock_guard lock(send_mutex_);
    for (size_t sent = 0; sent < frame.size();) {
      const ssize_t n = send(socket_.get(), frame.data() + sent, frame.size() - sent,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        sent += static_cast<size_t>(n);
      } else if (n < 0 && errno == EINTR) {
        continue;
      } else if (n < 0 && errno == EAGAIN) {
        if (WaitFor(POLLOUT, deadline)) continue;
        shutdown(socket_.get(), SHUT_RDWR);
        return;
      } else {
        return;
      }
    }
  }

  // The reader's thread.
  void Read() {
    char buffer[1 << 16];
    for (;;) {
      try {
        while (const auto body = wire::TakeFrame(received_, wire::kMaxReply)) Handle(*body);
      } catch (const wire::Malformed& error) {
        return SetFailure(std::string("the store sent ") + error.what());
      }
      const ssize_t n = recv(socket_.get(), buffer, sizeof(buffer), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return SetFailure("rank 0, which holds the store, has disconnected");
      received_.append(buffer, static_cast<size_t>(n));
    }
  }

  void Handle(const std::string& body) {
    wire::Reader in(body);
    if (in.type() == Type::kFailure) return SetFailure(in.String(kMaxValue));
    if (in.type() == Type::kAnnounced) {
      std::lock_guard callback_lock(callback_mutex_);
      announcement_ = in.String(kMaxKey);
      return CallBack();
    }
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

  void Hear(Callback& member, Callback callback) {
    std::lock_guard callback_lock(callback_mutex_);
    member = std::move(callback);
    CallBack();
  }

  // With callback_mutex_ held: calls each for which there is a text, once.
  void CallBack() {
    const auto call = [](Callback& callback, const std::string& text) {
      if (!text.empty() && callback != nullptr) std::exchange(callback, nullptr)(text);
    };
    call(on_announcement_, announcement_);
    call(on_failure_, FailureReason());
  }

  void Stop() {
    {
      std::lock_guard lock(mutex_);
      left_ = true;
    }
    shutdown(socket_.get(), SHUT_RDWR);
    reader_.join();
  }

  static constexpr const char* kCloses = "closes the connection";

  const std::string where_;
  std::unique_ptr<TcpStoreServer> server_;  // Goes last: after our own leave.
  AskGiveUp ask_;                           // While it joins.
  const SayWaiting waiting_;
  Clock::time_point say_at_;
  std::optional<GiveUp> given_up_;
  Clock::time_point tell_until_;
  Socket socket_;
  std::string received_;  // The reader's, once it runs.
  std::mutex send_mutex_;
  mutable std::mutex mutex_;  // Guards the seven below.
  std::condition_variable answered_;
  uint64_t next_id_ = kJoinId + 1;
  std::map<uint64_t, std::optional<std::string>> answers_;  // By id: who waits, and what came.
  std::string failure_;
  bool left_ = false;
  bool gone_ = false;          // Nothing more will be answered.
  bool silent_ = false;        // A request was not answered in time.
  std::mutex callback_mutex_;  // Held while one runs. Taken before mutex_. Guards the next two.
  std::string announcement_;
  Callback on_failure_, on_announcement_;
  std::thread reader_;
};

}  // namespace

std::unique_ptr<Store> ConnectTcpStore(const std::string& host, int port, int rank, int size,
                                       double timeout_s, const StoreAccess& access,
                                       const AskGiveUp& ask, const SayWaiting& waiting) {
  return std::make_unique<TcpStore>(host, port, rank, size, timeout_s, access, ask, waiting,
                                    nullptr);
}

std::unique_ptr<Store> JoinTcpStore(const std::string& host, int port, int rank, int size,
                                    double timeout_s, const StoreAccess& access,
                                    const AskGiveUp& ask, const SayWaiting& waiting) {
  std::unique_ptr<TcpStoreServer> server;
  if (rank == 0) {
    server = std::make_unique<TcpStoreServer>(host, port, size, timeout_s, access, StoreLimits(),
                                              waiting);
  }
  return std::make_unique<TcpStore>(host, port, rank, size, timeout_s, access, ask, waiting,
                                    std::move(server));
}

}  // namespace fsdp
