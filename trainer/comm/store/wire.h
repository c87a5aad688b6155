// Messages of the TCP store: a frame is the length of its body in 4 bytes, then the body; numbers
// are little-endian. Nothing that arrives is trusted.
// Tests: tests/trainer/comm/store_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_WIRE_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp::wire {

enum class Type : uint8_t {
  // To the server. A rank begins with the first two and is a member when the store has taken its
  // proof; all others are answered, with the same id.
  kHello = 1,  // string kMagic, nonce
  kSet,        // key, value
  kAdd,        // key, delta
  kFetch,      // timeout in microseconds, count, keys
  kFail,       // why
  kLeave,
  kForget,  // prefix
  kProof,   // rank, size, generation, timeout and what is left of it in microseconds, tag
  // From the server.
  kDone = 64,  // To a proof: all ranks have joined.
  kSum,        // the new number
  kValues,     // count, then for each 0, or 1 and the value
  kRefused,    // a text: the caller's mistake
  kFailure,    // why the job has failed; unasked, id 0
  kChallenge,  // nonce
  kProven,     // generation, tag: the store's own proof
};

inline constexpr std::string_view kMagic = "fsdp-train store 2";
inline constexpr size_t kMaxRequest = 2 << 20;  // Bytes of a member's body.
inline constexpr size_t kMaxReply = 64 << 20;   // Bytes of the store's.
inline constexpr size_t kMaxStranger = 160;     // Bytes of a body before the sender's proof.

struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Writer {
 public:
  Writer(Type type, uint64_t id);
  Writer& Int(int64_t value);
  Writer& String(std::string_view value);
  size_t bytes() const { return frame_.size(); }
  std::string Frame();  // With its length. Once.

 private:
  std::string frame_;
};

// Reads a body. Throws Malformed where it ends too early or says what it cannot mean.
class Reader {
 public:
  explicit Reader(std::string_view body);  // It has at least a type and an id.
  Type type() const { return type_; }
  uint64_t id() const { return id_; }
  int64_t Int();
  std::string String(size_t max);
  void ExpectEnd() const;

 private:
  std::string_view Take(size_t bytes);

  std::string_view rest_;
  Type type_;
  uint64_t id_;
};

// Takes the first complete frame's body off the front of `received`. Throws Malformed where it is
// longer than `max_body`.
std::optional<std::string> TakeFrame(std::string& received, size_t max_body);

}  // namespace fsdp::wire

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_WIRE_H_
