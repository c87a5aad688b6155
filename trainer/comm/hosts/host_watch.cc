#include "trainer/comm/hosts/host_watch.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "trainer/core/errors.h"
#include "trainer/core/start_thread.h"

namespace fsdp {
namespace {

constexpr int kWatchMs = 50;
constexpr std::chrono::milliseconds kAnswerTime{500};  // For a host to say which rank is late.
constexpr std::chrono::seconds kReasonTime{2};         // For the reason of a lost connection.

template <typename T>
std::string ToBytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
T FromBytes(const std::string& text) {
  T value;
  if (text.size() < sizeof(value)) throw CommError("a message between hosts is cut short");
  std::memcpy(&value, text.data(), sizeof(value));
  return value;
}

}  // namespace

HostWatch::HostWatch(const Wiring& wiring, const HostPlacement& placement, int rank, Member& member,
                     const Completed& completed, double timeout_s)
    : wiring_(wiring),
      placement_(placement),
      host_(placement.HostOf(rank)),
      index_(placement.IndexOf(rank)),
      leads_(index_ == 0),
      member_(member),
      completed_(completed),
      timeout_s_(timeout_s),
      inbox_(placement.hosts()) {
  watcher_ = StartThread("the thread that watches hosts", [this] { Watch(); });
}

HostWatch::~HostWatch() {
  stop_ = true;
  Wake();
  watcher_.join();
}

void HostWatch::TellCall(const HostCall& call) {
  wiring_.links->SendToAll(kCall, ToBytes(call));
  const std::lock_guard lock(mutex_);
  inbox_[host_].push_back(call);
}

std::vector<HostCall> HostWatch::AwaitCalls(const CollectiveCall& call) {
  std::unique_lock lock(mutex_);
  SetExpectation(call, -1);
  changed_.wait(lock, [&] { return told_ || MissingHosts().empty(); });
  expectation_.reset();
  if (told_) throw CommError("aborted");
  std::vector<HostCall> calls;
  for (auto& queue : inbox_) {
    calls.push_back(queue.front());
    queue.pop_front();
  }
  return calls;
}

void HostWatch::SetExpectation(const CollectiveCall& call, int peer) {
  const std::chrono::duration<double> timeout(timeout_s_);
  expectation_ = {call, peer, Patience(std::chrono::duration_cast<Clock::duration>(timeout)), {}};
  answers_.assign(placement_.hosts(), std::nullopt);
}

void HostWatch::Expect(const CollectiveCall& call, int peer) {
  const std::lock_guard lock(mutex_);
  SetExpectation(call, peer);
}

void HostWatch::ExpectNothing() {
  const std::lock_guard lock(mutex_);
  expectation_.reset();
}

std::vector<int> HostWatch::MissingHosts() const {
  std::vector<int> missing;
  for (int host = 0; host < placement_.hosts(); ++host) {
    if (inbox_[host].empty()) missing.push_back(host);
  }
  return missing;
}

std::string HostWatch::ReasonFor(const std::string& error, const CollectiveCall& call) {
  const auto until = Clock::now() + kReasonTime;
  while (!member_.aborted() && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (!member_.aborted()) {
    member_.Abort(error + ", in " + ToString(call));
    Wake();
  }
  return member_.Reason(error);
}

void HostWatch::Watch() {
  const auto on_message = [this](int host, uint32_t type, const std::string& text) {
    try {
      OnMessage(host, static_cast<Frame>(type), text);
    } catch (const CommError& error) {
      member_.Abort(error.what());
    }
  };
  const auto on_lost = [this](int host) {
    if (left_.count(host) == 0) LostHost(host);
  };
  while (!stop_) {
    wiring_.links->Poll(kWatchMs, on_message, on_lost);
    Check();
  }
  Check();  // Those who wait for this rank are told.
}

void HostWatch::OnMessage(int host, Frame type, const std::string& text) {
  switch (type) {
    case kCall: {
      const std::lock_guard lock(mutex_);
      inbox_[host].push_back(FromBytes<HostCall>(text));
      changed_.notify_all();
      return;
    }
    case kAbort:
      left_.insert(host);
      // That host had brought all it owed to the calls before; they may be under way here.
      deferred_.push_back({FromBytes<uint64_t>(text), text.substr(sizeof(uint64_t))});
      return;
    case kAsk:
      wiring_.links->Send(host, kAnswer, member_.LateFor(FromBytes<uint64_t>(text)));
      return;
    case kAnswer: {
      const std::lock_guard lock(mutex_);
      answers_[host] = text;
      return;
    }
  }
}

void HostWatch::LostHost(int host) {
  member_.Abort("lost the connection to rank " +
                std::to_string(placement_.NameOf(placement_.LeaderOf(host))) +
                ", which speaks for " + placement_.NamesOf(host) + " of " + Where(host));
}

void HostWatch::Check() {
  if (!member_.aborted()) {
    const std::vector<int>& locals = placement_.RanksOf(host_);
    for (size_t i = 0; i < locals.size(); ++i) {
      const PeerProcess& peer = wiring_.local.peers[i];
      if (static_cast<int>(i) == index_ || !peer.HasEnded()) continue;
      member_.Abort("rank " + std::to_string(placement_.NameOf(locals[i])) + " died (process " +
                    std::to_string(peer.pid()) + ")");
    }
    for (const auto& [calls, why] : deferred_) {
      if (completed_ >= calls) member_.Abort(why);
    }
    CheckTime();
  }
  if (told_ || !member_.aborted()) return;
  if (leads_) {
    const uint64_t completed = completed_;
    wiring_.links->SendToAll(kAbort, ToBytes(completed) + member_.Reason());
  }
  wiring_.mesh->Abort();
  const std::lock_guard lock(mutex_);
  told_ = true;
  changed_.notify_all();
}

void HostWatch::CheckTime() {
  std::string who;
  CollectiveCall call;
  {
    const std::lock_guard lock(mutex_);
    if (!expectation_ || !expectation_->patience.over()) return;
    call = expectation_->call;
    if (expectation_->peer >= 0) {
      const int host = placement_.HostOf(expectation_->peer);
      who = "no more data between this rank and rank " +
            std::to_string(placement_.NameOf(expectation_->peer)) + " (" + Where(host) + " of " +
            placement_.NamesOf(host) + ")";
    } else {
      const std::vector<int> missing = MissingHosts();
      if (missing.empty()) return;
      if (!expectation_->asked) {
        for (const int host : missing) {
          wiring_.links->Send(host, kAsk, ToBytes(call.sequence));
        }
        expectation_->asked = Clock::now();
        return;
      }
      const bool all = std::all_of(missing.begin(), missing.end(),
                                   [&](int host) { return answers_[host].has_value(); });
      if (!all && Clock::now() < *expectation_->asked + kAnswerTime) return;
      for (const int host : missing) {
        who += who.empty() ? "" : ", ";
        if (!answers_[host]) {
          who += placement_.NamesOf(host) + " of " + Where(host) + " do not answer";
        } else if (answers_[host]->empty()) {
          who += placement_.NamesOf(host) + " of " + Where(host) + " sent nothing";
        } else {
          who += *answers_[host];
        }
      }
    }
  }
  std::ostringstream why;
  why << ToString(call) << " timed out after " << timeout_s_ << " s: " << who;
  member_.Abort(why.str());
}

}  // namespace fsdp
