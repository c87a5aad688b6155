#include "trainer/comm/store/wire.h"

#include <sodium.h>

#include <bit>
#include <cstring>
#include <utility>

#include "trainer/core/check.h"

namespace fsdp::wire {
namespace {

static_assert(std::endian::native == std::endian::little);

template <typename T>
void Append(std::string& to, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  to.append(bytes, sizeof(T));
}

template <typename T>
T Load(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

Writer::Writer(Type type, uint64_t id) : frame_(sizeof(uint32_t), '\0') {
  Append(frame_, static_cast<uint8_t>(type));
  Append(frame_, id);
}

Writer& Writer::Int(int64_t value) {
  Append(frame_, value);
  return *this;
}

Writer& Writer::String(std::string_view value) {
  Append(frame_, static_cast<uint32_t>(value.size()));
  frame_.append(value);
  return *this;
}

std::string Writer::Frame() {
  const auto length = static_cast<uint32_t>(frame_.size() - sizeof(uint32_t));
  std::memcpy(frame_.data(), &length, sizeof(length));
  return std::move(frame_);
}

Reader::Reader(std::string_view body) : rest_(body) {
  type_ = static_cast<Type>(Load<uint8_t>(Take(sizeof(uint8_t))));
  id_ = Load<uint64_t>(Take(sizeof(uint64_t)));
}

std::string_view Reader::Take(size_t bytes) {
  if (bytes > rest_.size()) throw Malformed("a message ends too early");
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

int64_t Reader::Int() { return Load<int64_t>(Take(sizeof(int64_t))); }

std::string Reader::String(size_t max) {
  const auto size = Load<uint32_t>(Take(sizeof(uint32_t)));
  if (size > max) throw Malformed("a text of " + std::to_string(size) + " bytes");
  return std::string(Take(size));
}

void Reader::ExpectEnd() const {
  if (!rest_.empty()) throw Malformed("a message is too long");
}

std::optional<std::string> TakeFrame(std::string& received, size_t max_body) {
  if (received.size() < sizeof(uint32_t)) return std::nullopt;
  const auto length = Load<uint32_t>(received);
  if (length > max_body) throw Malformed("a message of " + std::to_string(length) + " bytes");
  if (received.size() - sizeof(uint32_t) < length) return std::nullopt;
  std::string body = received.substr(sizeof(uint32_t), length);
  received.erase(0, sizeof(uint32_t) + length);
  return body;
}

}  // namespace fsdp::wire

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
