// Stream and Event: the contract for work (operation.h), its order and its failure. It is the same
// on every device; tests/trainer/runtime/stream_suite.h tests each of them.
// Tests: tests/trainer/runtime/cpu/cpu_device_test.cc
#ifndef FSDP_TRAIN_TRAINER_RUNTIME_STREAM_H_
#define FSDP_TRAIN_TRAINER_RUNTIME_STREAM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

class Device;
class StreamChecker;
class StreamResources;
struct Operation;

// A point in a Stream's work, made by Record() and RecordTime() alone.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Ready() const = 0;  // Never blocks. True also when failed.
  // Blocks the host. Throws the failed operation's error.
  void Synchronize() const;
  // Synchronize() for a stream's worker: the host thread learns nothing from it.
  virtual void Block() const = 0;
  // Tells the checker that the work of `stream`, a number from its AddStream(), comes behind the
  // event from here on. For threads that are no Stream and use Block().
  void OrderBefore(int stream) const;
  // Seconds on the device's clock at which the event passed. Only for events of RecordTime(), after
  // Ready().
  double Time() const;

 private:
  friend class Stream;
  virtual double DoTime() const = 0;

  std::shared_ptr<StreamChecker> checker_;
  int checker_stream_ = -1;
  std::vector<uint64_t> clock_;  // A VectorClock (stream_checker.h).
  bool simulated_ = false;       // Time() is simulated time.
  bool timed_ = false;
};
using EventPtr = std::shared_ptr<const Event>;

// Where a stream is, for messages about slow or failed work.
struct StreamPosition {
  const char* operation = "";  // Its name; "wait" where the stream waits for another's event.
  uint64_t tag = 0;            // The tag of SetTag() when the operation was enqueued.
};

// An in-order queue of work on one device. Calls enqueue and return; the host runs ahead. A GPU
// holds a limited number of operations, some hundreds: there a call waits for room.
//   Failure  An operation that throws fails the stream: later events are failed, a stream that
//            waits for a failed event fails with the same error, Synchronize() throws it. A failed
//            stream stays failed. A CPU drops the work queued behind the failure. A GPU drops only
//            host work: its kernels and waits go on over whatever the failure has left, so a
//            failure must leave nothing that a kernel would follow out of bounds. Their results
//            count as failed, by a vector clock over the streams, and nobody may use them. A
//            dropped wait does not wait: a failed event says that its own stream is idle, and
//            nothing about other streams.
//   Faults   A fault of a GPU, or a launch that it refuses, is DeviceError. Events of a GPU that
//   has
//            faulted are failed unless the host knows that they have passed.
//   Threads  One thread enqueues at a time, for all streams of a device together.
//   End      The destructor waits for what is queued. Abort communicators first.
//   Lifetime All that work reads outlives the stream. Its owner declares it as the last member, so
//            that it ends before what the owner lets work read, also where a constructor throws.
//            Work that others enqueue reads copies, and what outlives the stream's owner;
//            never a local variable, which is gone where the host throws.
class Stream {
 public:
  Stream(Device& device, std::string name);
  virtual ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  const std::string& name() const { return name_; }

  // With a checker, this call reports a use of memory that no event orders after an earlier one.
  // Throws std::invalid_argument, and enqueues nothing, where the operation has no kernel for this
  // device.
  void Enqueue(Operation operation);
  [[nodiscard]] EventPtr Record();  // Passes when all work enqueued so far is done.
  // Record(), with the time at which the event passes. A GPU's events without a time are cheaper to
  // wait for.
  [[nodiscard]] EventPtr RecordTime();
  // Does not block the host. A null event is a no-op. Takes any device's event, if both devices
  // share a checker or have none; std::invalid_argument if one of the two devices is simulated.
  void Wait(const EventPtr& event);
  void Synchronize() { Record()->Synchronize(); }  // Blocks the host: for tests and shutdown.

  // Lends resources to the work that is enqueued from here on, which they must outlive; null: none.
  // Only CUDA devices use them.
  void Lend(const StreamResources* resources) { resources_ = resources; }

  // Tags the work that is enqueued from here on, for Position() alone.
  void SetTag(uint64_t tag) { tag_ = tag; }
  // The operation that the stream is in, or failed in; nullopt where it is idle or the device
  // cannot tell. Any thread may call; the answer may be out of date.
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
