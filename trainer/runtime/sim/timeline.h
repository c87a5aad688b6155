// Simulated time: streams as queues of work, of which what runs at once shares a machine. When a
// piece of work ends depends on what is enqueued after it, so time is worked out only as far as the
// host asks: up to its own clock, or up to an event that it waits for. Nothing that the host does
// later can change that stretch.
// Tests: tests/trainer/runtime/sim/timeline_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_SIM_TIMELINE_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_SIM_TIMELINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fsdp {

// What pieces of work share. Each has as much as 1 to give at a time.
enum class SimResource : uint8_t {
  kNone,     // Nothing: it is slowed down by nobody.
  kKernels,  // A device's multiprocessors and memory.
  kInside,   // Links between the ranks of a host.
  kBetween,  // Links between hosts.
  kToHost,   // The link between a device and its host, each way.
  kToDevice,
  kHost,  // The host's cores, as what moves its memory has them.
  kDiskRead,
  kDiskWrite,
};
inline constexpr int kNumSimResources = 9;

struct SimWork {
  double seconds = 0;  // Where nothing else runs.
  SimResource resource = SimResource::kNone;
  // How much of the resource it has while it runs. Where all that runs wants more than 1, each gets
  // the same part of what it wants, and is as much slower.
  double share = 1;
  double not_before = 0;  // The time at which others, with whom it works, are there.
};

// While work of resource `beside` runs, work of `of` has `rate` of its speed.
struct SimOverlap {
  SimResource of, beside;
  double rate = 1;
};

class Timeline {
 public:
  explicit Timeline(std::vector<SimOverlap> overlaps = {}) : overlaps_(std::move(overlaps)) {}

  // A point in a stream's work.
  struct Mark {
    bool passed = false;
    double time = 0;  // When it passed.
  };
  using MarkPtr = std::shared_ptr<Mark>;
  struct Label {
    const char* name = "";
    uint64_t tag = 0;
    int64_t bytes = 0;
  };
  // Hears of each piece of work and each wait that ends. `begin`: when its stream had come to it.
  using Observer = std::function<void(size_t stream, const Label&, double begin, double end)>;

  size_t AddStream();
  void Observe(Observer observer) { observer_ = std::move(observer); }  // Null: nobody hears.
  // Each is enqueued at `time`, the host's, which never goes back.
  void AddWork(size_t stream, double time, const SimWork& work, const Label& label);
  void AddWait(size_t stream, double time, MarkPtr mark, const Label& label);
  MarkPtr AddMark(size_t stream, double time);

  void AdvanceTo(double time);          // No further than that.
  void AdvanceUntil(const Mark& mark);  // Until it has passed.
  double now() const { return now_; }

 private:
  struct Item {
    double enqueued = 0;
    SimWork work;
    MarkPtr mark;        // Null: work. Else a mark of this stream, or one that it waits for.
    bool waits = false;  // For `mark`.
    Label label;
  };
  struct Queue {
    std::deque<Item> items;
    double free = 0;     // When the item before the first one ended.
    bool begun = false;  // The first item, which is work.
    double begin = 0, left = 0;
  };

  // Until `mark` has passed, or, where it is null, no further than `until`.
  void Advance(double until, const Mark* mark);
  void EndWhatIsOver();
  bool EndFirst(size_t stream);
  bool Runs(const Queue& queue) const {
    return queue.begun && queue.left > 0 && queue.items.front().work.not_before <= now_;
  }
  double RateOf(const SimWork& work) const;
  // How long until the next thing happens that is known of, at these rates by stream.
  double NextTime(const std::vector<double>& rates) const;

  const std::vector<SimOverlap> overlaps_;
  std::vector<Queue> queues_;
  std::array<double, kNumSimResources> wanted_{};  // By resource, of what runs.
  std::vector<double> rates_;                      // By stream, of what runs.
  double now_ = 0;
  Observer observer_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_SIM_TIMELINE_H_
