#include "trainer/comm/store/store_proof.h"

#include <sodium.h>

#include <cstring>

#include "trainer/core/check.h"

namespace fsdp {
namespace {

static_assert(kTagBytes == crypto_auth_BYTES && crypto_auth_KEYBYTES == 32);

void Initialize() { FSDP_CHECK(sodium_init() >= 0) << "no source of random numbers"; }

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// Every part has a length that is fixed or said, so no two lists give the same text.
void Append(std::string& to, std::string_view text) {
  const uint64_t size = text.size();
  to.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(text);
}
void Append(std::string& to, int64_t value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

std::string NewNonce() {
  Initialize();
  std::string nonce(kNonceBytes, '\0');
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

StoreKey::StoreKey(std::string_view secret) {
  Initialize();
  crypto_generichash(key_.data(), key_.size(), Bytes(secret), secret.size(), nullptr, 0);
}

std::string StoreKey::ClientTag(std::string_view client_nonce, std::string_view server_nonce,
                                const JoinClaim& claim) const {
  return Tag("rank to store", client_nonce, server_nonce, claim, claim.generation);
}

std::string StoreKey::ServerTag(std::string_view client_nonce, std::string_view server_nonce,
                                const JoinClaim& claim, int64_t generation) const {
  return Tag("store to rank", client_nonce, server_nonce, claim, generation);
}

std::string StoreKey::Tag(std::string_view role, std::string_view client_nonce,
                          std::string_view server_nonce, const JoinClaim& claim,
                          int64_t generation) const {
  std::string text;
  for (const std::string_view part : {role, client_nonce, server_nonce}) Append(text, part);
  for (const int64_t part :
       {claim.rank, claim.size, claim.generation, claim.timeout_us, claim.left_us, generation}) {
    Append(text, part);
  }
  std::string tag(kTagBytes, '\0');
  crypto_auth(reinterpret_cast<unsigned char*>(tag.data()), Bytes(text), text.size(), key_.data());
  return tag;
}

bool SameTag(std::string_view a, std::string_view b) {
  return a.size() == kTagBytes && b.size() == kTagBytes &&
         sodium_memcmp(a.data(), b.data(), kTagBytes) == 0;
}

}  // namespace fsdp
