// The promises of every transport (communicator_suite_test.cc), for a test file to instantiate:
//   INSTANTIATE_TEST_SUITE_P(Thread, CommunicatorSuite, SuiteCases(RunThreadRanks), SuiteCaseName);
#ifndef FSDP_TRAIN_TESTS_TRAINER_COMM_COMMUNICATOR_SUITE_H_
#define FSDP_TRAIN_TESTS_TRAINER_COMM_COMMUNICATOR_SUITE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/trainer/comm/ranks.h"
#include "trainer/core/errors.h"
#include "trainer/runtime/device.h"
#include "trainer/runtime/kernel.h"

namespace fsdp::testing {

struct SuiteCase {
  RunRanks run;
  int size;
  bool in_rank_order = true;  // Sums, in fp32.
  bool waits = false;         // A call on another stream for the one before it.
};
inline std::ostream& operator<<(std::ostream& out, const SuiteCase& c) {
  return out << c.size << " ranks";
}

class CommunicatorSuite : public ::testing::TestWithParam<SuiteCase> {
 protected:
  int size() const { return GetParam().size; }
  std::vector<Outcome> Run(const Body& body) const { return GetParam().run(size(), body); }
  void ExpectAllFine(const Body& body) const {
    const auto outcomes = Run(body);
    for (int r = 0; r < size(); ++r) EXPECT_EQ(outcomes[r].error, "") << "rank " << r;
  }
};

inline std::vector<SuiteCase> SuiteCases(RunRanks run) {
  return {{run, 1}, {run, 2}, {run, 3}, {run, 4}, {run, 8}};
}
inline std::string SuiteCaseName(const ::testing::TestParamInfo<SuiteCase>& info) {
  return "Ranks" + std::to_string(info.param.size);
}

// Loops that fill and check tensors are most of the work of a test and none of its subject. They
// are not instrumented, which makes the suite ten times as fast under ThreadSanitizer; collectives
// are.
#define FSDP_PLAIN_LOOP __attribute__((no_sanitize_thread))

inline constexpr int64_t kPeriod = 31;  // The period of Value() below.

// A tensor with a canary behind it. Starts poisoned: what a collective leaves out shows.
class Tensor {
 public:
  Tensor(Device& device, DType dtype, int64_t n)
      : buffer_(device.Allocate(n * SizeOf(dtype) + kCanary)),
        view_(buffer_.As(dtype, Shape{n})),
        host_(Host(view_)) {
    std::memset(host_.data, kPoison, buffer_.bytes());
  }

  const View& view() const { return view_; }
  View Slice(int64_t begin, int64_t count) const { return view_.Slice(begin, count); }

  template <typename Function>
  FSDP_PLAIN_LOOP void Fill(Function value) {
    for (int64_t i = 0; i < view_.NumElements(); ++i) Write(i, value(i));
  }

  FSDP_PLAIN_LOOP float Read(int64_t i) const {
    switch (view_.dtype) {
      case DType::kFloat32:
        return host_.As<float>()[i];
      case DType::kBFloat16:
        return static_cast<float>(host_.As<BFloat16>()[i]);
      default:
        return static_cast<float>(host_.As<Float16>()[i]);
    }
  }

  template <typename Want>
  FSDP_PLAIN_LOOP void RequireEqual(Want want, const std::string& what) const {
    for (int64_t i = 0; i < view_.NumElements(); ++i) {
      const float have = Read(i), wanted = want(i);
      if (std::bit_cast<uint32_t>(have) == std::bit_cast<uint32_t>(wanted)) continue;
      std::ostringstream message;
      message.precision(9);
      message << what << ": element " << i << " is " << have << ", want " << wanted;
      throw std::runtime_error(message.str());
    }
    RequireCanary(what);
  }
  // Bytes [begin, begin + bytes) of it.
  void RequireBytes(int64_t begin, int64_t bytes, const std::byte* want,
                    const std::string& what) const {
    Require(bytes == 0 || std::memcmp(host_.data + begin, want, bytes) == 0, what + " is wrong");
    RequireCanary(what);
  }

  // The same for a `value` of period kPeriod in i: by hand for the first of them, then as bytes.
  template <typename Function>
  void FillPeriodic(Function value) {
    const int64_t n = view_.NumElements(), element = SizeOf(view_.dtype);
    for (int64_t i = 0; i < std::min(n, kPeriod); ++i) Write(i, value(i));
    for (int64_t done = kPeriod; done < n; done *= 2) {
      std::memcpy(host_.data + done * element, host_.data, std::min(done, n - done) * element);
    }
  }
  // Elements [begin, begin + count) of it.
  template <typename Want>
  void RequirePeriodic(int64_t begin, int64_t count, Want want, const std::string& what) const {
    const int64_t element = SizeOf(view_.dtype), period = kPeriod * element;
    for (int64_t i = begin; i < begin + std::min(count, kPeriod); ++i) {
      if (Read(i) == want(i)) continue;
      throw std::runtime_error(what + ": element " + std::to_string(i) + " is " +
                               std::to_string(Read(i)) + ", want " + std::to_string(want(i)));
    }
    const std::byte* data = host_.data + begin * element;
    const int64_t rest = count * element - period;
    Require(rest <= 0 || std::memcmp(data, data + period, rest) == 0,
            what + ": wrong after the first " + std::to_string(kPeriod) + " elements");
    RequireCanary(what);
  }

  FSDP_PLAIN_LOOP uint64_t Fingerprint() const {  // A hash of every bit.
    uint64_t hash = 1469598103934665603u;
    for (int64_t i = 0; i < view_.NumElements(); ++i) {
      hash = (hash ^ std::bit_cast<uint32_t>(Read(i))) * 1099511628211u;
    }
    return hash;
  }

 private:
  static constexpr int64_t kCanary = 64;
  static constexpr int kPoison = 0xab;

  FSDP_PLAIN_LOOP void Write(int64_t i, float value) {
    switch (view_.dtype) {
      case DType::kFloat32:
        host_.As<float>()[i] = value;
        break;
      case DType::kBFloat16:
        host_.As<BFloat16>()[i] = BFloat16(value);
        break;
      default:
        host_.As<Float16>()[i] = Float16(value);
        break;
    }
  }
  void RequireCanary(const std::string& what) const {
    for (int64_t i = view_.bytes(); i < buffer_.bytes(); ++i) {
      if (host_.data[i] != static_cast<std::byte>(kPoison)) {
        throw std::runtime_error(what + ": wrote too far");
      }
    }
  }

  Buffer buffer_;
  View view_;
  View host_;  // The same, for the test.
};

// A small whole number, different for neighbours in rank and index: sums over 8 ranks are exact in
// every dtype, bf16 (whole numbers to 256) included.
inline float Value(int rank, int64_t i) {
  return static_cast<float>((i * 7 + rank * 13) % kPeriod - 15);
}
inline float SumOfValues(int size, int64_t i) {
  float sum = 0;
  for (int r = 0; r < size; ++r) sum += Value(r, i);
  return sum;
}

// The message of the CommError that failed the stream; throws if there was none.
inline std::string CommErrorOf(Stream& stream) {
  try {
    stream.Synchronize();
  } catch (const CommError& error) {
    return error.what();
  }
  throw std::runtime_error("the stream did not fail");
}

inline void RequireContains(const std::string& text, const std::string& part) {
  Require(text.find(part) != std::string::npos, "\"" + text + "\" does not say \"" + part + "\"");
}

inline CommOptions Patient() {
  CommOptions options;
  options.timeout_s = 60;
  return options;
}

// Everything in turn, of lengths around the borders of pieces, without a pause. Returns a hash of
// all results.
std::string MixedCollectives(Rank& rank);

// A call of each kind; in an all-to-all n is of what each has for each.
void Issue(Communicator& comm, Stream& stream, Collective kind, const View& full, const View& shard,
           const View& other);

}  // namespace fsdp::testing

#endif  // FSDP_TRAIN_TESTS_TRAINER_COMM_COMMUNICATOR_SUITE_H_
