// Where the ranks of a group meet: a barrier that compares what they are about to do, notices who
// is missing or dead, and can be aborted. The part that the CPU transports have in common.
// Tests: tests/trainer/comm/shm_communicator_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_RENDEZVOUS_H_
#define FSDP_TRAIN_TRAINER_COMM_RENDEZVOUS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/comm/communicator.h"
#include "trainer/comm/gate.h"

namespace fsdp {

// The shared side. Lies in memory of all ranks, threads or processes: no pointers but those that a
// thread's call carries, and zero bytes are a valid new one.
class Rendezvous {
 public:
  static int64_t Bytes(int size);  // With a slot for each rank; aligned to kAlignment.
  static constexpr int64_t kAlignment = 128;

 private:
  friend class Member;

  static constexpr int kMaxReason = 1000;

  struct alignas(kAlignment) Slot {
    std::atomic<uint64_t> meetings{0};  // At which the rank has arrived.
    std::atomic<uint64_t> call{0};      // The newest one begun: (sequence + 1) * 8 + kind; 0: none.
    // By parity of the meeting: one may be written while a slow peer still reads the other.
    CollectiveCall calls[2];
  };
  Slot* slots() { return reinterpret_cast<Slot*>(this + 1); }

  alignas(kAlignment) Gate gate_;
  // Why the group was aborted, by the first who did: 0 nobody, 1 being written, 2 written.
  alignas(kAlignment) std::atomic<uint32_t> reason_state_{0};
  char reason_[kMaxReason + 1] = {};
};

// One rank's side. One thread uses it, except Abort().
class Member {
 public:
  // Every 100 ms of waiting: a message about a peer that is known to be gone, or empty.
  using Watch = std::function<std::string()>;

  // `shared` is Rendezvous::Bytes(size) bytes, zeroed by whoever made them. `names`: what messages
  // call the ranks, where these are some of a larger group; empty: 0, 1, ...
  Member(void* shared, int rank, int size, const CommOptions& options, Watch watch,
         std::vector<int> names = {});

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Each waits for all ranks and orders what they did before ahead of what they do after. Throws
  // CommError where the group was aborted before the last rank came, and aborts it when a peer is
  // dead, silent for timeout_s, or about to do something else than `call`.
  void Begin(const CollectiveCall& call);            // The first meeting of a collective.
  void BeginUncompared(const CollectiveCall& call);  // For callers that compare by CallOf().
  // A later one. `patience_s` more than timeout_s, where peers may still wait for somebody else.
  void Meet(double patience_s = 0);
  // A later one between threads, which cannot die alone and only copy in between: it passes even
  // when aborted, so that nobody leaves memory that a peer still reads.
  void MeetSurely();

  // The call that `rank` brought to Begin(). Valid until the next Begin() but one.
  const CollectiveCall& CallOf(int rank) const;

  // From here on from any thread.
  void Abort(const std::string& why);
  void Leave();  // An abort that says that this rank has left.
  bool aborted() const { return shared_.gate_.aborted(); }
  std::string Reason(const std::string& otherwise = "aborted") const;  // The abort's.
  // Who has not begun call `sequence`, and what they did last: "rank 1 has not arrived (its last
  // was all_reduce #2), ...". Empty: all have.
  std::string LateFor(uint64_t sequence) const;

 private:
  void Arrive(bool even_if_aborted, double patience_s = 0);
  void Await(const Gate::Ticket& ticket, double patience_s);
  void CompareCalls() const;
  // Aborts with `why` and throws what counts, unless the meeting had passed by then.
  void Fail(const std::string& why, const Gate::Ticket* ticket);
  void WriteReason(const std::string& why);
  std::string Late() const;  // Who has not arrived, and what they did last.
  std::string LateText(int rank) const;
  int NameOf(int rank) const { return names_.empty() ? rank : names_[rank]; }

  Rendezvous& shared_;
  const int rank_;
  const int size_;
  const double timeout_s_;
  const int spins_;
  const Watch watch_;
  const std::vector<int> names_;
  uint64_t meetings_ = 0;
  uint64_t begun_ = 0;  // `meetings_` at the last Begin().
  CollectiveCall call_;
};

// Whether two ranks are about to do the same; addresses do not count.
bool Alike(const CollectiveCall& a, const CollectiveCall& b);
std::string ToString(const CollectiveCall& call);  // "all_gather #3 (n = 7, fp32)"

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_RENDEZVOUS_H_
