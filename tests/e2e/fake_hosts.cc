#include "tests/e2e/fake_hosts.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>

namespace fsdp::e2e {
namespace {

constexpr int kNamespaces = CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC;

void Must(bool fine, const std::string& what) {
  if (!fine) throw std::runtime_error(what + ": " + std::strerror(errno));
}

void Run(const std::string& command) {
  const int status = system(("{ " + command + "; } >/dev/null").c_str());
  if (status != 0) throw std::runtime_error("failed: " + command);
}

std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// In a child of one thread. Its own child is the process 1 of the new host and tells `ready` its
// number as its parent sees it; then it reads commands and runs each in the background. It dies
// with this process, and with it the host.
[[noreturn]] void BecomeHost(int ready, int commands) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (unshare(kNamespaces) != 0) _exit(1);
  const pid_t init = fork();
  if (init == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("proc", "/proc", "proc", 0, nullptr) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, nullptr) != 0) {
      _exit(1);
    }
    dup2(commands, 0);
    execl("/bin/sh", "sh", nullptr);
    _exit(1);
  }
  if (write(ready, &init, sizeof(init)) != sizeof(init)) _exit(1);
  close(commands);
  waitpid(init, nullptr, 0);
  pause();  // Keeps the network, so that those who were killed say goodbye as on a real host.
  _exit(0);
}

}  // namespace

std::string WhyNoFakeHosts() {
  if (system("ip link help >/dev/null 2>&1; test $? -ne 127") != 0) return "there is no ip command";
  const pid_t child = fork();
  if (child == 0) _exit(unshare(kNamespaces) == 0 ? 0 : errno);
  int status = 0;
  waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 0) return "";
  return std::string("unshare: ") + std::strerror(WEXITSTATUS(status));
}

// Frames between TAP devices, from a thread of this process.
class FakeHosts::Switch {
 public:
  explicit Switch(const Wire& wire) : wire_(wire) {}
  ~Switch() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    for (const int tap : taps_) close(tap);
  }

  void AddPort(const std::string& name) {
    const int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    Must(tap >= 0, "/dev/net/tun");
    taps_.push_back(tap);
    ifreq request{};
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
    Must(ioctl(tap, TUNSETIFF, &request) == 0, "TUNSETIFF");
  }
  void Start() {
    thread_ = std::thread([this] { Forward(); });
  }
  int64_t lost() const { return lost_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Frame {
    Clock::time_point due;
    size_t from;
    std::string bytes;
  };

  // To all ports but its own: hosts drop what is not for them.
  void Forward() {
    std::mt19937 random(1);
    std::bernoulli_distribution loses(wire_.loss);
    std::deque<Frame> under_way;
    std::vector<char> buffer(1 << 16);
    while (!stop_) {
      std::vector<pollfd> waits;
      for (const int tap : taps_) waits.push_back({tap, POLLIN, 0});
      poll(waits.data(), waits.size(), 1);
      const auto now = Clock::now();
      for (size_t port = 0; port < taps_.size(); ++port) {
        for (;;) {
          const ssize_t n = read(taps_[port], buffer.data(), buffer.size());
          if (n <= 0) break;
          if (loses(random)) {
            ++lost_;
            continue;
          }
          under_way.push_back({now + wire_.delay, port, {buffer.data(), static_cast<size_t>(n)}});
        }
      }
      while (!under_way.empty() && under_way.front().due <= Clock::now()) {
        const Frame& frame = under_way.front();
        for (size_t port = 0; port < taps_.size(); ++port) {
          if (port == frame.from) continue;
          [[maybe_unused]] const ssize_t n =
              write(taps_[port], frame.bytes.data(), frame.bytes.size());
        }
        under_way.pop_front();
      }
    }
  }

  const Wire wire_;
  std::vector<int> taps_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> lost_{0};
  std::thread thread_;
};

FakeHosts::FakeHosts(int count) { Make(count, /*bridge=*/true); }

FakeHosts::FakeHosts(int count, const Wire& wire) {
  switch_ = std::make_unique<Switch>(wire);
  Make(count, /*bridge=*/false);
  switch_->Start();
}

// In a network namespace of the test's own, which goes with it.
void FakeHosts::Make(int count, bool bridge) {
  static const bool apart = unshare(CLONE_NEWNET) == 0;
  Must(apart, "unshare");
  Run("ip link set lo up");
  if (bridge)
    Run("{ ip link show br0 2>&1 || ip link add br0 type bridge; } && ip link set br0 up");
  for (int i = 0; i < count; ++i) {
    int ready[2], commands[2];
    Must(pipe2(ready, O_CLOEXEC) == 0 && pipe2(commands, O_CLOEXEC) == 0, "pipe");
    const pid_t keeper = fork();
    Must(keeper >= 0, "fork");
    if (keeper == 0) BecomeHost(ready[1], commands[0]);
    close(ready[1]);
    close(commands[0]);
    Host host;
    host.commands = commands[1];
    const bool told = read(ready[0], &host.init, sizeof(host.init)) == sizeof(host.init);
    close(ready[0]);
    Must(told, "a host does not start");
    hosts_.push_back(host);
    const std::string here = "port" + std::to_string(i), there = std::to_string(host.init);
    if (bridge) {
      Run("ip link add " + here + " type veth peer name eth0 netns " + there);
      Run("ip link set " + here + " master br0 up");
    } else {
      switch_->AddPort("tap" + std::to_string(i));
      Run("ip link set tap" + std::to_string(i) + " netns " + there + " name eth0");
    }
    const std::string setup = "ip link set lo up && ip addr add " + Address(i) +
                              "/24 dev eth0 && ip addr add " + Address6(i) +
                              "/64 dev eth0 nodad && ip link set eth0 up && touch ";
    const std::string up = directory_ / ("up" + std::to_string(i));
    const std::string command = setup + up + "\n";
    Must(write(host.commands, command.data(), command.size()) ==
             static_cast<ssize_t>(command.size()),
         "write");
    if (!Eventually([&] { return Exists(up); }, std::chrono::seconds(20))) {
      throw std::runtime_error("a host has no network");
    }
  }
}

FakeHosts::~FakeHosts() {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    Kill(static_cast<int>(i));
    close(hosts_[i].commands);
    [[maybe_unused]] const int gone =
        system(("ip link del port" + std::to_string(i) + " 2>/dev/null").c_str());
  }
}

void FakeHosts::Start(int host, const Strings& flags, const Variables& environment) {
  const std::string files = directory_ / ("rank" + std::to_string(ranks_.size()));
  ranks_.push_back({host, files});
  std::string command = "(env";
  for (const auto& [name, value] : environment) command += " " + name + "=" + Quoted(value);
  command += " " + Quoted(std::filesystem::absolute("cmd/fsdp-train"));
  for (const std::string& flag : flags) command += " " + Quoted(flag);
  command += " </dev/null >" + files + ".out 2>" + files + ".err; echo $? >" + files +
             ".code.new; mv " + files + ".code.new " + files + ".code) &\n";
  Must(write(hosts_[host].commands, command.data(), command.size()) ==
           static_cast<ssize_t>(command.size()),
       "write");
}

std::vector<Outcome> FakeHosts::Wait(std::chrono::seconds patience) {
  const auto ended = [&](const Rank& rank) {
    return hosts_[rank.host].init < 0 || Exists(rank.files + ".code");
  };
  Eventually(
      [&] {
        for (const Rank& rank : ranks_) {
          if (!ended(rank)) return false;
        }
        return true;
      },
      patience);
  std::vector<Outcome> outcomes;
  for (const Rank& rank : ranks_) {
    Outcome outcome;
    outcome.timed_out = !ended(rank);
    const std::string code = ReadFile(rank.files + ".code");
    outcome.code = code.empty() ? 128 + SIGKILL : std::stoi(code);
    outcome.out = ReadFile(rank.files + ".out");
    outcome.err = ReadFile(rank.files + ".err");
    outcomes.push_back(outcome);
  }
  return outcomes;
}

int64_t FakeHosts::LostFrames() const { return switch_->lost(); }

int64_t FakeHosts::BytesFrom(int host) const {
  // Devices of this thread's network namespace: the switch's end of the wire receives what a host
  // sends.
  std::ifstream devices("/proc/thread-self/net/dev");
  const std::string port = "port" + std::to_string(host) + ":";
  for (std::string word; devices >> word;) {
    int64_t bytes = 0;
    if (word == port && devices >> bytes) return bytes;
  }
  throw std::runtime_error("no " + port);
}

void FakeHosts::CutOff(int host) { Run("ip link set port" + std::to_string(host) + " down"); }

void FakeHosts::Kill(int host) {
  if (hosts_[host].init > 0) kill(hosts_[host].init, SIGKILL);  // Process 1: all go with it.
  hosts_[host].init = -1;
}

}  // namespace fsdp::e2e
