#include "trainer/comm/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "trainer/comm/patience.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/process_limits.h"

namespace fsdp {
namespace {

constexpr std::chrono::milliseconds kWatchInterval = Patience::kTick;

// About 40 us, as far as ranks are apart whose work is alike and less than a time slice; and 4 us,
// which loses little where a peer waits for this very core, but saves the wake-up of an idle one.
// An all-gather of 1 KB over 4 ranks on 2 cores took 44 us with 0 polls, 9 with 200, 37 with 2000;
// over 2 ranks 23, 1.7 and 0.7 (Zen 3, `chrt -r 5 bench comm`: ahead of the other work of a busy
// machine, one run each, 2026-11-21).
constexpr int kSpins = 2000;
constexpr int kSpinsOversubscribed = 200;

int Spins(const CommOptions& options, int size) {
  if (options.spins >= 0) return options.spins;
  return size <= AvailableCores() ? kSpins : kSpinsOversubscribed;
}

}  // namespace

bool Alike(const CollectiveCall& a, const CollectiveCall& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.root == b.root && a.n == b.n &&
         a.layout_hash == b.layout_hash && a.sequence == b.sequence;
}

std::string ToString(const CollectiveCall& call) {
  std::ostringstream out;
  out << Name(call.kind) << " #" << call.sequence << " (n = " << call.n << ", " << Name(call.dtype);
  if (call.kind == Collective::kBroadcast) out << ", root " << call.root;
  if (call.layout_hash != 0) out << ", layout " << std::hex << call.layout_hash;
  out << ")";
  return out.str();
}

int64_t Rendezvous::Bytes(int size) { return sizeof(Rendezvous) + size * sizeof(Slot); }

Member::Member(void* shared, int rank, int size, const CommOptions& options, Watch watch,
               std::vector<int> names)
    : shared_(*static_cast<Rendezvous*>(shared)),
      rank_(rank),
      size_(size),
      timeout_s_(options.timeout_s),
      spins_(Spins(options, size)),
      watch_(std::move(watch)),
      names_(std::move(names)) {}

void Member::Begin(const CollectiveCall& call) {
  BeginUncompared(call);
  CompareCalls();
}

void Member::BeginUncompared(const CollectiveCall& call) {
  // Nobody waits for anybody any more: a slow peer may still be reading this rank's older calls.
  if (shared_.gate_.aborted()) throw CommError(Reason("aborted"));
  call_ = call;
  begun_ = meetings_;
  Rendezvous::Slot& slot = shared_.slots()[rank_];
  slot.calls[begun_ % 2] = call;
  slot.call.store((call.sequence + 1) * 8 + static_cast<uint64_t>(call.kind),
                  std::memory_order_relaxed);
  Arrive(/*even_if_aborted=*/false);
}

void Member::Meet(double patience_s) { Arrive(/*even_if_aborted=*/false, patience_s); }

void Member::MeetSurely() { Arrive(/*even_if_aborted=*/true); }

const CollectiveCall& Member::CallOf(int rank) const {
  return shared_.slots()[rank].calls[begun_ % 2];
}

void Member::Arrive(bool even_if_aborted, double patience_s) {
  shared_.slots()[rank_].meetings.store(++meetings_, std::memory_order_relaxed);
  Gate::Ticket ticket;
  switch (shared_.gate_.Arrive(size_, even_if_aborted, &ticket)) {
    case Gate::Outcome::kPassed:
      return;
    case Gate::Outcome::kWaiting:
      return Await(ticket, patience_s);
    case Gate::Outcome::kAborted:
      throw CommError(Reason("aborted"));
  }
}

void Member::Await(const Gate::Ticket& ticket, double patience_s) {
  Patience patience(std::chrono::duration_cast<Patience::Clock::duration>(
      std::chrono::duration<double>(timeout_s_ + patience_s)));
  for (int spins = spins_;; spins = 0) {
    std::chrono::nanoseconds slice = kWatchInterval;
    if (!ticket.even_if_aborted) slice = patience.tick();
    switch (shared_.gate_.Wait(ticket, spins, slice)) {
      case Gate::Outcome::kPassed:
        return;
      case Gate::Outcome::kAborted:
        throw CommError(Reason("aborted"));
      case Gate::Outcome::kWaiting:
        break;
    }
    if (ticket.even_if_aborted) continue;
    if (watch_) {
      const std::string gone = watch_();
      if (!gone.empty()) return Fail(gone + ", in " + ToString(call_), &ticket);
    }
    if (patience.over()) {
      std::ostringstream why;
      why << ToString(call_) << " timed out after " << timeout_s_ << " s: " << Late();
      return Fail(why.str(), &ticket);
    }
  }
}

void Member::CompareCalls() const {
  const CollectiveCall& first = CallOf(0);
  for (int r = 1; r < size_; ++r) {
    if (Alike(first, CallOf(r))) continue;
    const std::string why = "ranks disagree: rank " + std::to_string(NameOf(0)) + " is in " +
                            ToString(first) + ", rank " + std::to_string(NameOf(r)) + " in " +
                            ToString(CallOf(r));
    const_cast<Member*>(this)->Abort(why);
    throw CommError(why);
  }
}

std::string Member::Late() const {
  std::string out;
  for (int r = 0; r < size_; ++r) {
    if (shared_.slots()[r].meetings.load(std::memory_order_relaxed) >= meetings_) continue;
    out += (out.empty() ? "" : ", ") + LateText(r);
  }
  return out;
}

std::string Member::LateFor(uint64_t sequence) const {
  std::string out;
  for (int r = 0; r < size_; ++r) {
    if (shared_.slots()[r].call.load(std::memory_order_relaxed) / 8 > sequence) continue;
    out += (out.empty() ? "" : ", ") + LateText(r);
  }
  return out;
}

std::string Member::LateText(int rank) const {
  const uint64_t call = shared_.slots()[rank].call.load(std::memory_order_relaxed);
  const std::string text = "rank " + std::to_string(NameOf(rank)) + " has not arrived (";
  if (call == 0) return text + "no collective yet)";
  return text + "its last was " + Name(static_cast<Collective>(call % 8)) + " #" +
         std::to_string(call / 8 - 1) + ")";
}

void Member::Abort(const std::string& why) {
  WriteReason(why);
  shared_.gate_.Abort();
}

void Member::Leave() { Abort("rank " + std::to_string(NameOf(rank_)) + " has left the group"); }

void Member::Fail(const std::string& why, const Gate::Ticket* ticket) {
  WriteReason(why);
  if (shared_.gate_.Abort(ticket) == Gate::Outcome::kPassed) return;
  throw CommError(Reason(why));
}

void Member::WriteReason(const std::string& why) {
  uint32_t nobody = 0;
  if (!shared_.reason_state_.compare_exchange_strong(nobody, 1)) return;
  std::memcpy(shared_.reason_, why.data(), std::min<size_t>(why.size(), Rendezvous::kMaxReason));
  shared_.reason_state_.store(2, std::memory_order_release);
}

std::string Member::Reason(const std::string& otherwise) const {
  // Whoever writes needs no lock and no time; one that was killed while writing never ends.
  for (int i = 0; i < 1000; ++i) {
    if (shared_.reason_state_.load(std::memory_order_acquire) == 2) return shared_.reason_;
    std::this_thread::yield();
  }
  return otherwise;
}

}  // namespace fsdp
