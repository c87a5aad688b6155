// Messages of the TCP store, and the proof by which the two ends of a connection show each other
// that they know the job's secret without sending it. A frame is the length of its body in 4 bytes,
// then the body; numbers are little-endian. Nothing that arrives is trusted.
// Tests: tests/trainer/comm/store_join_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_WIRE_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_WIRE_H_

#include <array>
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
  kForget,    // prefix
  kProof,     // rank, size, generation, timeout and what is left of it in microseconds, tag
  kAnnounce,  // a text
  // From the server.
  kDone = 64,  // To a proof: all ranks have joined.
  kSum,        // the new number
  kValues,     // count, then for each 0, or 1 and the value
  kRefused,    // a text: the caller's mistake
  kFailure,    // why the job has failed; unasked, id 0
  kChallenge,  // nonce
  kProven,     // generation, tag: the store's own proof
  kAnnounced,  // the first text that a member has announced; unasked, id 0
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

namespace fsdp {

inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kTagBytes = 32;

// Random bytes of the system, good for one connection.
std::string NewNonce();

// A rank's words about itself when it asks to join.
struct JoinClaim {
  int64_t rank = 0, size = 0;
  int64_t generation = 0;  // How often the job has been started again.
  int64_t timeout_us = 0;  // How long it waits in all, and how much of that is left.
  int64_t left_us = 0;
};

// HMAC-SHA512-256 with a hash of the secret as the key. A tag is for one direction, one pair of
// nonces and one claim: it cannot be sent back, sent again, or moved to another rank.
class StoreKey {
 public:
  explicit StoreKey(std::string_view secret);

  std::string ClientTag(std::string_view client_nonce, std::string_view server_nonce,
                        const JoinClaim& claim) const;
  // `generation`: the server's own.
  std::string ServerTag(std::string_view client_nonce, std::string_view server_nonce,
                        const JoinClaim& claim, int64_t generation) const;

 private:
  std::string Tag(std::string_view role, std::string_view client_nonce,
                  std::string_view server_nonce, const JoinClaim& claim, int64_t generation) const;

  std::array<unsigned char, 32> key_;
};

// Compares in a time that does not depend on where they differ. False where a length is not
// kTagBytes.
bool SameTag(std::string_view a, std::string_view b);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_WIRE_H_
