// Simulated time: streams are queues of work, and work that runs at the same time shares a machine.
// When a piece of work ends depends on work that is enqueued after it. Time is therefore worked out
// only as far as the host asks: up to its own clock, or up to an event that it waits for. Nothing
// that the host does later can change that stretch.
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

// The resources that pieces of work share. Each can give 1 at a time.
enum class SimResource : uint8_t {
  kNone,     // Nothing slows the work down.
  kKernels,  // A device's multiprocessors and memory.
  kInside,   // Links between the ranks of a host.
  kBetween,  // Links between hosts.
  kToHost,   // The link between a device and its host, each way.
  kToDevice,
  kHost,  // The host's cores that move its memory.
  kDiskRead,
  kDiskWrite,
};
inline constexpr int kNumSimResources = 9;

struct SimWork {
  double seconds = 0;  // Where nothing else runs.
  SimResource resource = SimResource::kNone;
  // The part of the resource that the work has while it runs. Where all running work together wants
  // more than 1, each piece gets the same fraction of its share and slows down by it.
  double share = 1;
  double not_before = 0;  // The time at which its peers are there.
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
  // Called for each piece of work and each wait that ends. `begin`: when its stream came to it.
  using Observer = std::function<void(size_t stream, const Label&, double begin, double end)>;

  size_t AddStream();
  void Observe(Observer observer) { observer_ = std::move(observer); }  // Null: no observer.
  // Each call enqueues at the host's `time`, which never goes back.
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
    MarkPtr mark;        // Null: work. Otherwise this stream's mark, or one that it waits for.
    bool waits = false;  // For `mark`.
    Label label;
  };
  struct Queue {
    std::deque<Item> items;
    double free = 0;     // When the item before the first one ended.
    bool begun = false;  // The first item, which is work.
    double begin = 0, left = 0;
  };

  // Advances until `mark` has passed, or, where `mark` is null, no further than `until`.
  void Advance(double until, const Mark* mark);
  void EndWhatIsOver();
  bool EndFirst(size_t stream);
  bool Runs(const Queue& queue) const {
    return queue.begun && queue.left > 0 && queue.items.front().work.not_before <= now_;
  }
  double RateOf(const SimWork& work) const;
  // The time of the next known change, at these rates by stream.
  double NextTime(const std::vector<double>& rates) const;

  const std::vector<SimOverlap> overlaps_;
  std::vector<Queue> queues_;
  std::array<double, kNumSimResources> wanted_{};  // By resource: the running work's shares.
  std::vector<double> rates_;                      // By stream: the running work's speed.
  double now_ = 0;
  Observer observer_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_SIM_TIMELINE_H_
