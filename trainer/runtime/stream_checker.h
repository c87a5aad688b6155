// Proves the order of memory uses, without timing and on any device: a vector clock per stream over
// declared reads and writes (Mattern 1989; Fidge 1988; the happens-before part of FastTrack, PLDI
// 2009). Two uses of a byte, at least one a write, on two streams (or a stream and the host) must
// be ordered by an event that was recorded after the first and waited for before the second.
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_STREAM_CHECKER_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_STREAM_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trainer/runtime/range.h"

namespace fsdp {

// Entry s counts the operations of stream s known to be done. Missing entries are zero.
using VectorClock = std::vector<uint64_t>;

// Not thread-safe: it follows the one thread that enqueues.
class StreamChecker {
 public:
  struct Race {
    std::string first, second;  // "operation on stream".
    Range bytes;                // The first contiguous overlap.
    std::string ToString() const;
  };

  // on_race: called with each race. The default prints it and aborts.
  explicit StreamChecker(std::function<void(const Race&)> on_race = nullptr);

  int AddStream(std::string name);
  void OnOperation(int stream, const char* name, const std::vector<Range>& reads,
                   const std::vector<Range>& writes);
  VectorClock OnRecord(int stream);
  void OnWait(int stream, const VectorClock& event);
  void OnHostWait(const VectorClock& event);
  // From a failed event the host learns only that its stream's own operations are over: the waits
  // before it may have been dropped with the rest.
  void OnHostWaitFailed(int stream, const VectorClock& event);
  // The stream is destroyed, its own operations are over.
  void OnStreamEnd(int stream) { OnHostWaitFailed(stream, clocks_[stream]); }
  // The host's own reads and writes of memory that streams also use.
  void OnHostAccess(const char* name, const std::vector<Range>& reads,
                    const std::vector<Range>& writes);
  // The memory goes back to the system. A race, if the host does not know that all uses of it are
  // done.
  void OnFree(Range range);

  int64_t races() const { return races_; }
  size_t segments() const { return segments_.size(); }  // Entries kept: steady over repeated steps.

 private:
  static constexpr int kHost = 0;  // Stream number of the host thread.

  struct Use {
    const char* name = nullptr;
    int stream = -1;
    uint64_t time = 0;
  };
  struct Segment {
    uintptr_t end = 0;
    Use write;
    std::vector<Use> reads;  // The newest of each stream since the last write.
  };
  using Segments = std::map<uintptr_t, Segment>;  // Disjoint, by first byte.

  void Access(int stream, const char* name, Range range, bool write);
  void Split(uintptr_t at);
  bool Ordered(const Use& use, int stream) const;
  std::string Describe(const Use& use) const;
  void Report(const Use& first, const Use& second, uintptr_t begin, uintptr_t end);

  std::function<void(const Race&)> on_race_;
  std::vector<std::string> names_{"host"};
  std::vector<VectorClock> clocks_{{0}};
  Segments segments_;
  int64_t races_ = 0;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_STREAM_CHECKER_H_
