// Stream, Event and Operation: what work is, in which order it happens, and how it fails. The same
// contract on every device; tests/trainer/runtime/stream_suite.h holds each of them to it.
// Tests: tests/trainer/runtime/cpu/cpu_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_STREAM_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_STREAM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/view.h"
#include "trainer/runtime/cost.h"
#include "trainer/runtime/cuda_stream.h"
#include "trainer/runtime/kernel.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {

class Device;

// The work itself, for each type of device: a device runs its own and looks at no other. The sim
// device runs none and needs none.
//   Throwing  A device's kernel does not throw: on a GPU it cannot. What may be wrong with data is
//             checked on the host before it is enqueued. Two kinds of CPU work do throw, and so
//             fail the stream: communicators (CommError) and host work such as loading a batch.
//   Host      Work of the host in a stream's order, on host and pinned memory alone: every device
//             that has no kernel of its own runs it on a thread of the stream.
struct DeviceKernels {
  CpuKernel cpu = nullptr;
  CudaKernel cuda = nullptr;
  CpuKernel host = nullptr;
};

// `name` must outlive the program (a literal). Reads and writes are all the memory that the kernels
// touch, their Views included; what is both goes into `writes`.
struct Operation {
  const char* name = "";
  std::vector<Range> reads;
  std::vector<Range> writes;
  std::vector<KernelCost> costs;  // Of its kernels, in the order in which they run.
  DeviceKernels kernels = {};
};

// A point in a Stream's work, made by Record() and RecordTime() alone.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Ready() const = 0;  // Never blocks. True also when failed.
  // Blocks the host. Throws what the failed operation threw.
  void Synchronize() const;
  // The same, for a stream's worker: the host thread learns nothing from it.
  virtual void Block() const = 0;
  // To the checker: what `stream` of its AddStream() does from here on comes behind the event. For
  // threads that are no Stream; they Block().
  void OrderBefore(int stream) const;
  // Seconds on the device's clock at which it passed. Only after Ready(), and of RecordTime().
  double Time() const;

 private:
  friend class Stream;
  virtual double DoTime() const = 0;

  std::shared_ptr<StreamChecker> checker_;
  int checker_stream_ = -1;
  VectorClock clock_;
  bool simulated_ = false;  // Time() is simulated time.
  bool timed_ = false;
};
using EventPtr = std::shared_ptr<const Event>;

// Where a stream is, for messages about what takes so long or has failed.
struct StreamPosition {
  const char* operation = "";  // Its name; "wait" where the stream waits for another's event.
  uint64_t tag = 0;            // What SetTag() said when it was enqueued.
};

// An in-order queue of work on one device. Calls enqueue and return; the host runs ahead. A GPU
// holds a limited number of operations, some hundreds: there a call waits for room.
//   Failure  An operation that throws fails the stream: later events are failed, a stream that
//            waits for a failed event fails with the same error, Synchronize() throws it. A failed
//            stream stays failed. What is queued behind the failure is dropped where the device can
//            (CPU). A GPU cannot: its kernels and waits go on, over whatever the failure has left
//            (so it leaves nothing that a kernel would follow out of bounds); work of the host is
//            dropped there too. What they make counts as failed all the same, by a vector clock
//            over the streams, and nobody may use it. A dropped wait does not wait: a failed event
//            says that its own stream is idle, and nothing of other streams.
//   Faults   Of a GPU, or a launch that it refuses: DeviceError. Events of a GPU that has faulted
//            are failed unless the host knows that they have passed.
//   Threads  One thread enqueues at a time, for all streams of a device together.
//   End      The destructor waits for what is queued. Abort communicators first.
class Stream {
 public:
  Stream(Device& device, std::string name);
  virtual ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  const std::string& name() const { return name_; }

  // With a checker, a use of memory that no event orders after an earlier one is reported here.
  // Throws std::invalid_argument, and enqueues nothing, where the operation has no kernel for this
  // device.
  void Enqueue(Operation operation);
  [[nodiscard]] EventPtr Record();  // Passes when all work enqueued so far is done.
  // The same, and knows when that was. A GPU's other events are cheaper to wait for.
  [[nodiscard]] EventPtr RecordTime();
  // The host does not block. Null is a no-op. Any device's event, if both devices share a checker
  // or have none; std::invalid_argument if one of the two is simulated.
  void Wait(const EventPtr& event);
  void Synchronize() { Record()->Synchronize(); }  // Blocks the host: for tests and shutdown.

  // For what is enqueued from here on, which it outlives; null: none. Devices other than CUDA look
  // at none of it.
  void Lend(const StreamResources* resources) { resources_ = resources; }

  // Goes with what is enqueued from here on, for Position() alone.
  void SetTag(uint64_t tag) { tag_ = tag; }
  // What it is in now, or what it failed in; nullopt where it is idle or the device cannot tell.
  // From any thread; what it says may be over by then.
  virtual std::optional<StreamPosition> Position() const { return std::nullopt; }

 protected:
  uint64_t tag() const { return tag_; }
  const StreamResources* resources() const { return resources_; }

 private:
  virtual void DoEnqueue(Operation operation) = 0;
  virtual std::shared_ptr<Event> DoRecord(bool timed) = 0;
  virtual void DoWait(const EventPtr& event) = 0;
  EventPtr Recorded(bool timed);

  Device& device_;
  std::string name_;
  std::shared_ptr<StreamChecker> checker_;  // Null: no checking.
  int checker_stream_ = -1;
  uint64_t tag_ = 0;
  const StreamResources* resources_ = nullptr;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_RUNTIME_STREAM_H_
