// How the two ends of a connection to the TCP store show each other that they know the job's
// secret, without sending it: each puts a tag under what both have said, with a key made of it.
// Tests: tests/trainer/comm/store_join_test.cc
#ifndef FSDP_TRAIN_TRAINER_COMM_STORE_STORE_PROOF_H_
#define FSDP_TRAIN_TRAINER_COMM_STORE_STORE_PROOF_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

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

#endif  // FSDP_TRAIN_TRAINER_COMM_STORE_STORE_PROOF_H_
