#include "trainer/launch/rank_variables.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/terminal.h"
#include "trainer/launch/environment.h"
#include "trainer/launch/job_secret.h"

namespace fsdp {

std::vector<std::string> EnvironmentOf(int local, const LaunchOptions& options,
                                       const RankVariables& variables) {
  std::vector<std::pair<std::string, std::string>> ours = {
      {"RANK", std::to_string(options.FirstRank() + local)},
      {"WORLD_SIZE", std::to_string(options.nnodes * options.nproc_per_node)},
      {"LOCAL_RANK", std::to_string(local)},
      {"LOCAL_WORLD_SIZE", std::to_string(options.nproc_per_node)},
      {"GROUP_RANK", std::to_string(options.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(options.nnodes)},
      {"MASTER_ADDR", variables.endpoint.host},
      {"MASTER_PORT", std::to_string(variables.endpoint.port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(variables.restart)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
      {"TORCHELASTIC_RUN_ID", variables.run_id},
  };
  const bool shown = options.FirstRank() + local == 0;
  ours.emplace_back(kTerminalVariable, shown ? variables.terminal : "");
  ours.emplace_back(kLaunchVariable, variables.run_id);
  if (!variables.secret.empty()) ours.emplace_back(kSecretVariable, variables.secret);
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view name = std::string_view(*entry).substr(0, strcspn(*entry, "="));
    const bool set = std::any_of(ours.begin(), ours.end(),
                                 [&](const auto& variable) { return variable.first == name; });
    if (!set) environment.emplace_back(*entry);
  }
  for (const auto& [name, value] : ours) environment.push_back(name + "=" + value);
  return environment;
}

FreePort::FreePort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  const int on = 1;
  // SO_REUSEADDR after bind: before it, the port could be one that another reservation holds.
  if (!socket_.open() || bind(socket_.get(), any, length) != 0 ||
      getsockname(socket_.get(), any, &length) != 0 ||
      setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) {
    throw DeviceError(std::string("no free port on 127.0.0.1: ") + std::strerror(errno));
  }
  port_ = ntohs(address.sin_port);
}

}  // namespace fsdp
