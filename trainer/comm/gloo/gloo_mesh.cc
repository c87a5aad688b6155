#include "trainer/comm/gloo/gloo_mesh.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdlib>

#include "trainer/core/errors.h"

namespace fsdp {
namespace {

constexpr char kLibrary[] = "libfsdp_gloo.so";
constexpr char kCure[] =
    "apt install libgloo0, or use the release archive, which brings what it needs";

std::string DirectoryOfBinary() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  const std::string text(path, n > 0 ? static_cast<size_t>(n) : 0);
  return text.substr(0, text.rfind('/'));
}

std::vector<std::string> Candidates() {
  if (const char* named = std::getenv("FSDP_TRAIN_GLOO")) return {named};
  const std::string here = DirectoryOfBinary();
  return {here + "/" + kLibrary, here + "/../lib/" + kLibrary,
          here + "/../trainer/comm/gloo/" + kLibrary};
}

const FsdpGlooApi* Load() {
  const std::vector<std::string> candidates = Candidates();
  for (const std::string& path : candidates) {
    if (access(path.c_str(), F_OK) != 0) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // Stays.
    if (library == nullptr) {
      throw CommError(std::string("joining hosts needs Gloo: ") + dlerror() + "; " + kCure);
    }
    using Entry = const FsdpGlooApi* (*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(library, "fsdp_gloo_api"));
    if (entry == nullptr || entry()->version != FSDP_GLOO_VERSION) {
      throw CommError("joining hosts needs Gloo: " + path +
                      " is not of this version of fsdp-train");
    }
    return entry();
  }
  std::string looked;
  for (const std::string& path : candidates) looked += (looked.empty() ? "" : ", ") + path;
  throw CommError(std::string("joining hosts needs Gloo: there is no ") + kLibrary +
                  " (looked at " + looked +
                  "); it belongs beside the binary, or name it in FSDP_TRAIN_GLOO");
}

std::string ToHex(const char* bytes, int count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    text += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return text;
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::strtol(text.substr(i, 2).c_str(), nullptr, 16));
  }
  return bytes;
}

// Gloo's messages begin with a file and a line of its source.
std::string Lost(int peer, const char* error) {
  std::string text = error;
  const size_t end = text.find("] ");
  if (text.starts_with("[/") && end != std::string::npos) text.erase(0, end + 2);
  return "lost the connection to rank " + std::to_string(peer) + ": " + text;
}

}  // namespace

const FsdpGlooApi& GlooLibrary() {
  static const FsdpGlooApi* const api = Load();  // Again after a failure.
  return *api;
}

GlooMesh::Message::Message(const FsdpGlooApi* api, FsdpGlooMessage* message, int peer)
    : api_(api), message_(message), peer_(peer) {}

GlooMesh::Message::~Message() {
  if (message_ != nullptr) api_->free(message_);
}

bool GlooMesh::Message::Wait() {
  char error[FSDP_GLOO_ERROR];
  switch (api_->wait(message_, error)) {
    case kFsdpGlooDone:
      return true;
    case kFsdpGlooAborted:
      return false;
    default:
      throw CommError(Lost(peer_, error));
  }
}

GlooMesh::GlooMesh(int rank, int size, const std::vector<int>& peers, const std::string& address,
                   double timeout_s)
    : api_(GlooLibrary()) {
  // Gloo writes to connections that peers have closed: an error, not the end of this process.
  struct sigaction pipe {};
  if (sigaction(SIGPIPE, nullptr, &pipe) == 0 && pipe.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
  char error[FSDP_GLOO_ERROR];
  mesh_ = api_.open(rank, size, peers.data(), static_cast<int>(peers.size()), address.c_str(),
                    timeout_s, error);
  if (mesh_ == nullptr) throw CommError("Gloo cannot listen at " + address + ": " + error);
}

GlooMesh::~GlooMesh() { api_.close(mesh_); }

std::string GlooMesh::AddressFor(int peer) const {
  char bytes[FSDP_GLOO_ADDRESS], error[FSDP_GLOO_ERROR];
  const int count = api_.address(mesh_, peer, bytes, error);
  if (count < 0) throw CommError(std::string("Gloo has no address: ") + error);
  return ToHex(bytes, count);
}

void GlooMesh::Connect(int peer, const std::string& address) {
  char error[FSDP_GLOO_ERROR];
  const std::string bytes = FromHex(address);
  if (api_.connect(mesh_, peer, bytes.data(), static_cast<int>(bytes.size()), error) == 0) {
    throw CommError("cannot connect to rank " + std::to_string(peer) + ": " + error);
  }
}

GlooMesh::Message GlooMesh::Send(int peer, uint64_t tag, const std::byte* data, int64_t bytes) {
  char error[FSDP_GLOO_ERROR];
  FsdpGlooMessage* message = api_.send(mesh_, peer, tag, data, static_cast<size_t>(bytes), error);
  if (message == nullptr) throw CommError(Lost(peer, error));
  return Message(&api_, message, peer);
}

GlooMesh::Message GlooMesh::Receive(int peer, uint64_t tag, std::byte* data, int64_t bytes) {
  char error[FSDP_GLOO_ERROR];
  FsdpGlooMessage* message =
      api_.receive(mesh_, peer, tag, data, static_cast<size_t>(bytes), error);
  if (message == nullptr) throw CommError(Lost(peer, error));
  return Message(&api_, message, peer);
}

void GlooMesh::Abort() { api_.abort(mesh_); }

}  // namespace fsdp
