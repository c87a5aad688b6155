// The promises of every Device, whatever runs its kernels (stream_suite_test.cc). A test of a
// device instantiates StreamSuite and BufferSuite, and where kernels really run StreamFailureSuite
// and one of DroppingSuite and GoingOnSuite.
#ifndef FSDP_TRAIN_TESTS_TRAINER_RUNTIME_STREAM_SUITE_H_
#define FSDP_TRAIN_TESTS_TRAINER_RUNTIME_STREAM_SUITE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/trainer/runtime/host_operations.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/stream_checker.h"

namespace fsdp {

struct DeviceCase {
  std::string name;
  // Work of one flop, one byte or one message must take simulated time where time is simulated.
  std::function<std::unique_ptr<Device>(std::shared_ptr<StreamChecker>)> make;
  // Bytes that Allocate() must refuse while half of them would be granted, or could be.
  int64_t too_many_bytes;
};

inline std::string DeviceName(const ::testing::TestParamInfo<DeviceCase>& info) {
  return info.param.name;
}

class StreamSuite : public ::testing::TestWithParam<DeviceCase> {
 protected:
  std::unique_ptr<Device> Make(std::shared_ptr<StreamChecker> checker = nullptr) const {
    return GetParam().make(std::move(checker));
  }
  // Right code passes however late or early it runs; this gives wrong code the time to be caught.
  static void LetWorkersRun() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }
  static const Span& Find(const std::vector<Span>& spans, const std::string& name) {
    for (const Span& span : spans) {
      if (span.name == name) return span;
    }
    throw std::runtime_error("no span " + name);
  }
};

// The checker sees what the streams do, on every device alike.
class CheckedStreamSuite : public StreamSuite {
 protected:
  std::unique_ptr<Device> MakeChecked() {
    return Make(std::make_shared<StreamChecker>(
        [this](const StreamChecker::Race& race) { races_.push_back(race.ToString()); }));
  }
  static Operation Write(const Buffer& buffer, const char* name = "write") {
    Operation operation = Priced(name);
    operation.writes = {Range(buffer.data(), buffer.bytes())};
    return operation;
  }
  std::vector<std::string> races_;
};

class BufferSuite : public StreamSuite {};

// The failure contract of stream.h, for devices whose kernels run.
class StreamFailureSuite : public StreamSuite {
 protected:
  static void Fail(ThreadPool&) { throw CommError("rank 3 is gone"); }

  // The very error that was thrown, not another of the same class.
  static void ExpectFailed(const EventPtr& event, const std::string& what = "rank 3 is gone") {
    for (int i = 0; i < 2; ++i) {  // As often as one asks.
      try {
        event->Synchronize();
        FAIL() << "the event passed";
      } catch (const CommError& error) {
        EXPECT_EQ(error.what(), what);
        EXPECT_EQ(error.code(), ExitCode::kCollective);
      }
    }
    EXPECT_TRUE(event->Ready());
  }
  CpuKernel Count() {
    return [this](ThreadPool&) { ++ran_; };
  }

  std::atomic<int> ran_{0};
};

// For a device that drops what is queued behind a failure, waits too.
class DroppingSuite : public StreamFailureSuite {};

// For a device that cannot.
class GoingOnSuite : public StreamFailureSuite {};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TESTS_TRAINER_RUNTIME_STREAM_SUITE_H_
