#include "trainer/launch/launch_options.h"

#include <charconv>
#include <cstdint>

#include "trainer/core/errors.h"
#include "trainer/launch/environment.h"

namespace fsdp {
namespace {

constexpr int kMaxRanks = 4096;  // A host's.
constexpr int kMaxNodes = 4096;

}  // namespace

std::optional<Endpoint> ParseEndpoint(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of("[]:") != std::string_view::npos) {
    return std::nullopt;  // Where an address ends and the port begins is anybody's guess.
  }
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (host.empty() || error != std::errc() || end != digits.data() + digits.size() || port < 1 ||
      port > 65535) {
    return std::nullopt;
  }
  return Endpoint{std::string(host), port};
}

void CheckLaunchOptions(const LaunchOptions& options) {
  std::string mistakes;
  const auto refuse = [&](const std::string& mistake) {
    mistakes += (mistakes.empty() ? "" : "\n") + mistake;
  };
  if (options.nnodes < 1) {
    refuse("--nnodes " + std::to_string(options.nnodes) + ": want at least 1");
  } else if (options.nnodes > kMaxNodes) {
    refuse("--nnodes " + std::to_string(options.nnodes) + ": want at most " +
           std::to_string(kMaxNodes));
  } else if (options.node_rank < 0 || options.node_rank >= options.nnodes) {
    refuse("--node-rank " + std::to_string(options.node_rank) + ": want " +
           (options.nnodes == 1 ? "0 with one node"
                                : "0 to " + std::to_string(options.nnodes - 1) + " with --nnodes " +
                                      std::to_string(options.nnodes)));
  }
  if (options.nnodes > 1 && options.rdzv_endpoint.empty()) {
    refuse("--rdzv-endpoint: --nnodes " + std::to_string(options.nnodes) +
           " needs it, on every host the same: HOST:PORT of the host of node rank 0");
  }
  if (options.nproc_per_node < 1 || options.nproc_per_node > kMaxRanks) {
    refuse("--nproc-per-node " + std::to_string(options.nproc_per_node) + ": want 1 to " +
           std::to_string(kMaxRanks));
  }
  const int64_t ranks = int64_t{options.nnodes} * options.nproc_per_node;
  if (mistakes.empty() && ranks > kMostRanks) {
    refuse("--nnodes " + std::to_string(options.nnodes) + " of --nproc-per-node " +
           std::to_string(options.nproc_per_node) + " are " + std::to_string(ranks) +
           " ranks: want at most " + std::to_string(kMostRanks));
  }
  if (options.max_restarts < 0) {
    refuse("--max-restarts " + std::to_string(options.max_restarts) + ": want 0 or more");
  }
  if (!options.rdzv_endpoint.empty() && !ParseEndpoint(options.rdzv_endpoint)) {
    refuse("--rdzv-endpoint " + options.rdzv_endpoint +
           ": want HOST:PORT with a port of 1 to 65535, such as node-1:29500 or [::1]:29500");
  }
  if (!mistakes.empty()) throw ConfigError(mistakes);
}

}  // namespace fsdp
