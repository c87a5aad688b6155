#include "trainer/core/file_prefix.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "trainer/core/hex.h"
#include "trainer/core/read_file.h"

namespace fsdp {
namespace {}  // namespace

PrefixHash::PrefixHash() : state_(XXH64_createState()) { XXH64_reset(state_.get(), 0); }
PrefixHash::PrefixHash(PrefixHash&&) noexcept = default;
PrefixHash& PrefixHash::operator=(PrefixHash&&) noexcept = default;
PrefixHash::~PrefixHash() = default;

void PrefixHash::Free::operator()(XXH64_state_s* state) const { XXH64_freeState(state); }

void PrefixHash::Update(std::string_view bytes) {
  XXH64_update(state_.get(), bytes.data(), bytes.size());
  bytes_ += std::ssize(bytes);
}

FilePrefix PrefixHash::Taken() const { return {bytes_, XXH64_digest(state_.get())}; }

PrefixHash HashOfFirst(const std::string& path, int64_t bytes) {
  FileBlocks blocks(path);
  PrefixHash hash;
  while (hash.Taken().bytes < bytes) {
    const std::string_view block = blocks.Next();
    if (block.empty()) break;
    hash.Update(block.substr(0, static_cast<size_t>(bytes - hash.Taken().bytes)));
    if (blocks.skipped() > 0) break;  // A hole: no bytes that anybody wrote.
  }
  return hash;
}

std::string HowItDiffers(const std::string& path, const FilePrefix& prefix) {
  const std::string want = std::to_string(prefix.bytes);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return "is gone, want " + want + " bytes";
  if (const int64_t bytes = FileBlocks(path).bytes(); bytes < prefix.bytes) {
    return "has " + std::to_string(bytes) + " bytes, want at least " + want;
  }
  const FilePrefix there = HashOfFirst(path, prefix.bytes).Taken();
  if (there == prefix) return "";
  return "its first " + want + " bytes have the hash " + ToHex(there.hash) + ", want " +
         ToHex(prefix.hash);
}

}  // namespace fsdp
