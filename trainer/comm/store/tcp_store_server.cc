// Tests: tests/trainer/comm/store_test.cc
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <list>
#include <optional>
#include <sstream>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/comm/patience.h"
#include "trainer/comm/store/memory_store.h"
#include "trainer/comm/store/socket.h"
#include "trainer/comm/store/tcp_store.h"
#include "trainer/comm/store/wire.h"
#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using wire::Type;

constexpr std::chrono::seconds kLinger{10};       // For members to leave, at the end.
constexpr std::chrono::seconds kLingerFailed{1};  // For them to read why the job has failed.
constexpr std::chrono::milliseconds kNoDescriptors{100};  // Until accept() is tried again.
constexpr std::chrono::milliseconds kTick{500};           // At most asleep, with a deadline.
constexpr int64_t kMaxTimeout_us = int64_t{1} << 50;
constexpr int64_t kMaxKeys = 1 << 16;     // In one fetch.
constexpr size_t kMaxReason = 4 << 10;    // Bytes of why the job has failed.
constexpr size_t kPairBytes = 128;        // That a pair of the table takes beside its bytes.
constexpr size_t kKeyBytes = 64;          // That a key of a fetch takes beside its bytes.
constexpr size_t kReadStranger = 512;     // Bytes at a time: with a message's beginning, and what
constexpr size_t kReadMember = 64 << 10;  // we say, less than kUnprovenBytes.
static_assert(sizeof(uint32_t) + wire::kMaxStranger + kReadStranger < StoreLimits::kUnprovenBytes);

struct Connection {
  enum class Stage { kStranger, kChallenged, kMember };
  Socket socket;
  Clock::time_point since;
  Stage stage = Stage::kStranger;
  int rank = -1;  // A member's.
  uint64_t join_id = 0;
  bool left = false;
  bool closed = false;
  std::string client_nonce, server_nonce;
  std::string received, to_send;
  size_t sent = 0;  // Bytes of to_send.
  size_t fetches = 0, fetch_bytes = 0;

  bool member() const { return stage == Stage::kMember; }
  size_t unread() const { return to_send.size() - sent; }
  bool reads_slowly() const { return unread() > StoreLimits::kUnreadBytes; }
};

struct PendingFetch {
  Connection* connection = nullptr;
  uint64_t id = 0;
  std::vector<std::string> keys;
  size_t present = 0;  // The first so many have been in the table.
  size_t bytes = 0;
  Clock::time_point deadline;
};

}  // namespace

class TcpStoreServer::Loop {
 public:
  Loop(const std::string& host, int port, int size, double join_timeout_s,
       const StoreAccess& access, const StoreLimits& limits, const SayWaiting& waiting)
      : waiting_(waiting),
        say_at_(Clock::now() + waiting.every),
        listening_(Listen(host, port)),
        port_(PortOf(listening_)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        key_(access.secret),
        generation_(access.generation),
        limits_(limits),
        strangers_(StoreLimits::Unproven(size)),
        members_(size, nullptr),
        joined_ranks_(size, false),
        join_timeout_s_(join_timeout_s),
        join_deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(join_timeout_s))),
        thread_(StartThread("the thread of the store", [this] { Serve(); })) {}

  ~Loop() {
    stop_.store(true);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }

  int port() const { return port_; }
  void Gone(int rank) { gone_.store(rank); }

 private:
  int size() const { return static_cast<int>(members_.size()); }

  // Less the time in which this process was stopped while it had deadlines: see Patience.
  Clock::time_point Now() const { return Clock::now() - stopped_; }
  void LookAtClock() {
    const auto now = Clock::now();
    const Clock::duration away = now - looked_at_clock_;
    if (away > kTick + Patience::kLongest) stopped_ += away - kTick;
    looked_at_clock_ = now;
  }

  void Serve() {
    std::optional<Clock::time_point> end;
    for (;;) {
      if (stop_.load() && !end) {
        end = Now() + (failure_.empty() ? Clock::duration(kLinger)
                       : Untold()       ? kTellWithin
                                        : kLingerFailed);
      }
      const auto gone = [](const Connection& c) { return !c.member() || c.left; };
      if (end && (Now() >= *end ||
                  (!Untold() && std::all_of(connections_.begin(), connections_.end(), gone)))) {
        return;
      }
      PollOnce(end);
      OnTime();
      RemoveClosed();
    }
  }

  // Whether ranks may come that the job's failure is news to.
  bool Untold() const {
    const int gone = gone_.load();
    const bool absent = gone >= 0 && gone < size() && !joined_ranks_[gone];
    return tell_who_comes_ && arrived_ + (absent ? 1 : 0) < size();
  }

  void PollOnce(const std::optional<Clock::time_point>& end) {
    const bool accepting = Now() >= accept_from_;
    std::vector<pollfd> fds = {{accepting ? listening_.get() : -1, POLLIN, 0},
                               {wake_.get(), POLLIN, 0}};
    std::vector<Connection*> owners;
    for (Connection& c : connections_) {
      const int events = (c.reads_slowly() ? 0 : POLLIN) | (c.unread() > 0 ? POLLOUT : 0);
      fds.push_back({c.socket.get(), static_cast<short>(events), 0});
      owners.push_back(&c);
    }
    const int ready = poll(fds.data(), fds.size(), PollTimeout(end));
    LookAtClock();
    if (ready <= 0) return;
    if (fds[1].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
    }
    for (size_t i = 0; i < owners.size(); ++i) {
      const short events = fds[i + 2].revents;
      if (!owners[i]->closed && (events & POLLOUT) != 0) {
        Flush(*owners[i]);
        HandleReceived(*owners[i]);
      }
      if (!owners[i]->closed && (events & ~POLLOUT) != 0) Receive(*owners[i]);
    }
    if (fds[0].revents != 0) Accept();
  }

  void RemoveClosed() {
    for (Connection& c : connections_) {
      if (c.closed && c.member()) members_[c.rank] = nullptr;
    }
    connections_.remove_if([](const Connection& c) { return c.closed; });
  }

  int PollTimeout(const std::optional<Clock::time_point>& end) const {
    constexpr Clock::time_point kNever = Clock::time_point::max();
    Clock::time_point next = kNever;
    if (end) next = std::min(next, *end);
    if (Now() < accept_from_) next = std::min(next, accept_from_);
    if (!joined_ && failure_.empty()) next = std::min(next, join_deadline_);
    if (SaysWaiting()) next = std::min(next, say_at_);
    for (const PendingFetch& fetch : fetches_) {
      if (!fetch.connection->reads_slowly()) next = std::min(next, fetch.deadline);
    }
    for (const Connection& c : connections_) {
      if (!c.member()) next = std::min(next, c.since + limits_.prove_within);
    }
    if (next == kNever) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Now());
    return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kTick).count());
  }

  bool SaysWaiting() const {
    return waiting_.say != nullptr && !joined_ && failure_.empty() && !stop_.load();
  }

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (int r = 0; r < size(); ++r) {
      if (!joined_ranks_[r]) missing.push_back(r);
    }
    return missing;
  }

  const char* Refused() const {
    return refused_ ? ": somebody came who does not know the secret (--rdzv-secret-file or "
                      "FSDP_TRAIN_SECRET)"
                    : "";
  }

  void OnTime() {
    const auto now = Now();
    if (SaysWaiting() && now >= say_at_) {
      say_at_ = now + waiting_.every;
      waiting_.say(Missing(), Refused());
    }
    if (!joined_ && failure_.empty() && now >= join_deadline_) {
      std::ostringstream why;
      const char* separator = "";
      for (const int r : Missing()) {
        why << separator << "rank " << r;
        separator = ", ";
      }
      why << " did not join the store within " << join_timeout_s_ << " s" << Refused();
      FailJob(why.str(), /*tell_who_comes=*/false);
    }
    for (Connection& c : connections_) {
      if (!c.member() && now >= c.since + limits_.prove_within) Close(c);
    }
    AnswerFetches();
  }

  void Accept() {
    for (;;) {
      Socket socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.get() < 0) {
        const bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (full) accept_from_ = Now() + kNoDescriptors;
        return;
      }
      const auto unproven = [](const Connection& c) { return !c.member() && !c.closed; };
      const auto oldest = std::find_if(connections_.begin(), connections_.end(), unproven);
      const auto count = std::count_if(connections_.begin(), connections_.end(), unproven);
      if (static_cast<size_t>(count) >= strangers_) {
        Close(*oldest);
        RemoveClosed();
      }
      ConfigureConnection(socket.get());
      connections_.emplace_back();
      connections_.back().socket = std::move(socket);
      connections_.back().since = Now();
    }
  }

  void Receive(Connection& c) {
    char buffer[kReadMember];
    const size_t most = c.member() ? kReadMember : kReadStranger;
    const ssize_t got = recv(c.socket.get(), buffer, most, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return Lose(c, "disconnected from the store");
    c.received.append(buffer, static_cast<size_t>(got));
    HandleReceived(c);
  }

  // As long as answers can be sent.
  void HandleReceived(Connection& c) {
    try {
      while (!c.closed && !c.reads_slowly()) {
        const auto body =
            wire::TakeFrame(c.received, c.member() ? wire::kMaxRequest : wire::kMaxStranger);
        if (!body) return;
        Handle(c, wire::Reader(*body));
      }
    } catch (const wire::Malformed& error) {
      Lose(c, std::string("sent the store ") + error.what());
    }
  }

  void Handle(Connection& c, wire::Reader message) {
    if (c.stage == Connection::Stage::kStranger) return Hello(c, message);
    if (c.stage == Connection::Stage::kChallenged) return Proof(c, message);
    switch (message.type()) {
      case Type::kSet: {
        const std::string key = Key(message);
        std::string value = message.String(Store::kMaxValue);
        message.ExpectEnd();
        if (!Put(c, message.id(), "Set", key, std::move(value))) return;
        Send(c, wire::Writer(Type::kDone, message.id()));
        return AnswerFetches();
      }
      case Type::kAdd: {
        const std::string key = Key(message);
        const int64_t delta = message.Int();
        message.ExpectEnd();
        const auto it = table_.find(key);
        try {
          const std::string sum = AddDecimal(key, it == table_.end() ? "0" : it->second, delta);
          if (!Put(c, message.id(), "Add", key, sum)) return;
          Send(c, wire::Writer(Type::kSum, message.id()).Int(std::stoll(sum)));
        } catch (const std::invalid_argument& error) {
          Send(c, wire::Writer(Type::kRefused, message.id()).String(error.what()));
        }
        return AnswerFetches();
      }
      case Type::kFetch: {
        PendingFetch fetch;
        const int64_t timeout_us = std::clamp<int64_t>(message.Int(), 0, kMaxTimeout_us);
        fetch.connection = &c;
        fetch.id = message.id();
        fetch.deadline = Now() + std::chrono::microseconds(timeout_us);
        const int64_t count = message.Int();
        if (count < 0 || count > kMaxKeys) {
          throw wire::Malformed("a fetch of " + std::to_string(count) + " keys");
        }
        for (int64_t i = 0; i < count; ++i) {
          fetch.keys.push_back(Key(message));
          fetch.bytes += fetch.keys.back().size() + kKeyBytes;
        }
        message.ExpectEnd();
        if (c.fetches == StoreLimits::kFetches ||
            (c.fetches > 0 && c.fetch_bytes + fetch.bytes > StoreLimits::kFetchBytes)) {
          throw wire::Malformed("more requests than it waits for");
        }
        ++c.fetches;
        c.fetch_bytes += fetch.bytes;
        fetches_.push_back(std::move(fetch));
        return AnswerFetches();
      }
      case Type::kForget: {
        const std::string prefix = Key(message);
        message.ExpectEnd();
        std::erase_if(table_, [&](const auto& pair) {
          if (!pair.first.starts_with(prefix)) return false;
          table_bytes_ -= Bytes(pair);
          return true;
        });
        return Send(c, wire::Writer(Type::kDone, message.id()));
      }
      case Type::kFail: {
        const std::string why = message.String(Store::kMaxValue);
        message.ExpectEnd();
        Send(c, wire::Writer(Type::kDone, message.id()));
        return FailJob(why);
      }
      case Type::kAnnounce: {
        std::string what = Key(message);
        message.ExpectEnd();
        if (announcement_.empty()) {
          announcement_ = std::move(what);
          for (Connection& member : connections_) {
            if (!member.member()) continue;
            Send(member, wire::Writer(Type::kAnnounced, 0).String(announcement_));
          }
        }
        return Send(c, wire::Writer(Type::kDone, message.id()));
      }
      case Type::kLeave:
        message.ExpectEnd();
        c.left = true;
        return Send(c, wire::Writer(Type::kDone, message.id()));
      default:
        throw wire::Malformed("a message of unknown type");
    }
  }

  static std::string Key(wire::Reader& message) {
    std::string key = message.String(Store::kMaxKey);
    if (key.empty()) throw wire::Malformed("an empty key");
    return key;
  }

  // False, and the member has been told, where the table has no room.
  bool Put(Connection& c, uint64_t id, const char* what, const std::string& key,
           std::string value) {
    const auto it = table_.find(key);
    const size_t before = it == table_.end() ? 0 : Bytes(*it);
    const size_t after = key.size() + value.size() + kPairBytes;
    if (after > before && table_bytes_ - before + after > limits_.table_bytes) {
      Send(c, wire::Writer(Type::kRefused, id)
                  .String("[Store::" + std::string(what) +
                          "] the table is full: " + std::to_string(table_.size()) + " keys, " +
                          std::to_string(limits_.table_bytes) + " bytes"));
      return false;
    }
    table_bytes_ += after - before;
    table_[key] = std::move(value);
    return true;
  }
  static size_t Bytes(const std::pair<const std::string, std::string>& pair) {
    return pair.first.size() + pair.second.size() + kPairBytes;
  }

  void Hello(Connection& c, wire::Reader& message) {
    if (message.type() != Type::kHello || message.String(wire::kMaxStranger) != wire::kMagic) {
      throw wire::Malformed("no hello");
    }
    c.client_nonce = message.String(kNonceBytes);
    message.ExpectEnd();
    if (c.client_nonce.size() != kNonceBytes) throw wire::Malformed("a short nonce");
    c.server_nonce = NewNonce();
    c.stage = Connection::Stage::kChallenged;
    Send(c, wire::Writer(Type::kChallenge, message.id()).String(c.server_nonce));
  }

  void Proof(Connection& c, wire::Reader& message) {
    if (message.type() != Type::kProof) throw wire::Malformed("no proof");
    JoinClaim claim;
    for (int64_t* part :
         {&claim.rank, &claim.size, &claim.generation, &claim.timeout_us, &claim.left_us}) {
      *part = message.Int();
    }
    const std::string tag = message.String(kTagBytes);
    message.ExpectEnd();
    if (!SameTag(tag, key_.ClientTag(c.client_nonce, c.server_nonce, claim))) {
      refused_ = true;
      return Close(c);
    }
    Send(c, wire::Writer(Type::kProven, message.id())
                .Int(generation_)
                .String(key_.ServerTag(c.client_nonce, c.server_nonce, claim, generation_)));
    if (claim.generation != generation_) {
      Close(c);
      if (claim.generation > generation_) {
        FailJob("start " + std::to_string(claim.generation) + " of the job has begun (rank " +
                    std::to_string(claim.rank) + "), this is start " + std::to_string(generation_),
                /*tell_who_comes=*/false);
      }
      return;
    }
    std::string wrong;
    if (claim.size != size()) {
      wrong = "rank " + std::to_string(claim.rank) + " says that there are " +
              std::to_string(claim.size) + " ranks, rank 0 that there are " +
              std::to_string(size());
    } else if (claim.rank < 0 || claim.rank >= size()) {
      wrong = "rank " + std::to_string(claim.rank) + " of " + std::to_string(size());
    } else if (joined_ranks_[claim.rank]) {
      wrong = "rank " + std::to_string(claim.rank) + " has joined the store already";
    }
    if (!wrong.empty()) {
      Send(c, wire::Writer(Type::kRefused, message.id()).String(wrong));
      return Close(c);
    }
    c.stage = Connection::Stage::kMember;
    c.rank = static_cast<int>(claim.rank);
    c.join_id = message.id();
    members_[claim.rank] = &c;
    joined_ranks_[claim.rank] = true;
    ++arrived_;
    if (!failure_.empty()) return Send(c, wire::Writer(Type::kFailure, 0).String(failure_));
    const auto patience =
        Now() + std::chrono::microseconds(std::clamp<int64_t>(claim.left_us, 0, kMaxTimeout_us));
    if (patience < join_deadline_) {
      join_deadline_ = patience;
      join_timeout_s_ = static_cast<double>(claim.timeout_us) / 1e6;
    }
    if (arrived_ < size()) return;
    joined_ = true;
    for (Connection* member : members_) {
      // One that did not wait for the others has left already.
      if (member != nullptr) Send(*member, wire::Writer(Type::kDone, member->join_id));
    }
  }

  // Replies to the fetches that are complete or too late.
  void AnswerFetches() {
    const auto now = Now();
    for (auto it = fetches_.begin(); it != fetches_.end();) {
      PendingFetch& fetch = *it;
      Connection& c = *fetch.connection;
      while (fetch.present < fetch.keys.size() && table_.count(fetch.keys[fetch.present]) != 0) {
        ++fetch.present;
      }
      const bool complete = fetch.present == fetch.keys.size();
      if ((!complete && now < fetch.deadline) || c.reads_slowly()) {
        ++it;
        continue;
      }
      Answer(fetch);
      --c.fetches;
      c.fetch_bytes -= fetch.bytes;
      it = fetches_.erase(it);
    }
  }

  void Answer(const PendingFetch& fetch) {
    size_t bytes = 0;
    for (const std::string& key : fetch.keys) {
      const auto it = table_.find(key);
      bytes += 2 * sizeof(int64_t) + (it == table_.end() ? 0 : it->second.size());
    }
    if (bytes > wire::kMaxReply - kMaxReason) {
      return Send(*fetch.connection, wire::Writer(Type::kRefused, fetch.id)
                                         .String("[Store::Fetch] the values are more than " +
                                                 std::to_string(wire::kMaxReply) + " bytes"));
    }
    wire::Writer reply(Type::kValues, fetch.id);
    reply.Int(static_cast<int64_t>(fetch.keys.size()));
    for (const std::string& key : fetch.keys) {
      const auto it = table_.find(key);
      reply.Int(it != table_.end());
      if (it != table_.end()) reply.String(it->second);
    }
    Send(*fetch.connection, std::move(reply));
  }

  void Send(Connection& c, wire::Writer message) {
    if (c.closed) return;
    c.to_send += std::move(message).Frame();
    Flush(c);
  }

  void Flush(Connection& c) {
    while (c.unread() > 0) {
      const ssize_t sent =
          send(c.socket.get(), c.to_send.data() + c.sent, c.unread(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) return;  // Later; a broken connection shows when it is read.
      c.sent += static_cast<size_t>(sent);
    }
    // Also gives the memory of a large answer back.
    c.to_send = std::string();
    c.sent = 0;
  }

  void Lose(Connection& c, const std::string& how) {
    const int rank = c.rank;
    const bool failed = c.member() && !c.left;
    Close(c);
    if (failed) FailJob("rank " + std::to_string(rank) + " " + how);
  }

  void Close(Connection& c) {
    c.closed = true;  // Removed by Serve(): callers up the stack still hold it.
    fetches_.remove_if([&](const PendingFetch& fetch) { return fetch.connection == &c; });
    shutdown(c.socket.get(), SHUT_RDWR);
  }

  void FailJob(const std::string& why, bool tell_who_comes = true) {
    if (!failure_.empty()) return;
    failure_ = why.substr(0, kMaxReason);
    tell_who_comes_ = tell_who_comes && !joined_;
    fetches_.clear();
    for (Connection& c : connections_) {
      c.fetches = c.fetch_bytes = 0;
      if (c.member()) Send(c, wire::Writer(Type::kFailure, 0).String(failure_));
    }
  }

  const SayWaiting waiting_;
  Clock::time_point say_at_;
  bool refused_ = false;  // A proof was wrong.
  Socket listening_;
  const int port_;
  Socket wake_;  // An eventfd.
  const StoreKey key_;
  const int64_t generation_;
  const StoreLimits limits_;
  const size_t strangers_;
  std::list<Connection> connections_;  // A list: members_ and fetches_ point into it.
  std::vector<Connection*> members_;   // By rank; null before it has joined and when it is gone.
  std::vector<bool> joined_ranks_;     // Once joined, for ever.
  int arrived_ = 0;
  bool joined_ = false;
  std::string failure_, announcement_;
  bool tell_who_comes_ = false;
  std::unordered_map<std::string, std::string> table_;
  size_t table_bytes_ = 0;
  std::list<PendingFetch> fetches_;
  double join_timeout_s_;  // Whose end join_deadline_ is.
  Clock::time_point join_deadline_;
  Clock::time_point accept_from_{};
  Clock::duration stopped_{0};
  Clock::time_point looked_at_clock_ = Clock::now();
  std::atomic<bool> stop_{false};
  std::atomic<int> gone_{-1};
  std::thread thread_;  // Last: it uses all of the above, which is its alone.
};

size_t StoreLimits::Unproven(int size) {
  constexpr size_t kLeast = 4;
  const size_t ranks = static_cast<size_t>(size), most = kUnproven + ranks;
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return most;
  const size_t taken = kOwnFiles + ranks;
  if (files.rlim_cur <= taken) return kLeast;
  return std::clamp((static_cast<size_t>(files.rlim_cur) - taken) / 2, kLeast, most);
}

TcpStoreServer::TcpStoreServer(const std::string& host, int port, int size, double join_timeout_s,
                               const StoreAccess& access, const StoreLimits& limits,
                               const SayWaiting& waiting)
    : loop_(std::make_unique<Loop>(host, port, size, join_timeout_s, access, limits, waiting)) {}

TcpStoreServer::~TcpStoreServer() = default;

int TcpStoreServer::port() const { return loop_->port(); }

void TcpStoreServer::Gone(int rank) { loop_->Gone(rank); }

}  // namespace fsdp
