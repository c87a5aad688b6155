// Several hosts, as far as one machine can be several: see fake_hosts.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/e2e/fake_hosts.h"
#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

constexpr std::chrono::seconds kMinute{60};
constexpr int kPort = 29501;

class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoFakeHosts();
    if (!why.empty()) GTEST_SKIP() << "no hosts of namespaces here: " << why;
  }
};

// Three hosts of two ranks, whose numbers are neighbours, or not.
enum class Numbers { kHostByHost, kInTurns };
Variables RankOn(int host, int local, const std::string& master,
                 Numbers numbers = Numbers::kHostByHost) {
  const int rank = numbers == Numbers::kHostByHost ? 2 * host + local : 3 * local + host;
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "6"},
          {"LOCAL_RANK", std::to_string(local)},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", master},
          {"MASTER_PORT", std::to_string(kPort)}};
}
void StartAll(FakeHosts& hosts, const Job& job, const Strings& settings,
              const std::string& master = FakeHosts::Address(0),
              Numbers numbers = Numbers::kHostByHost) {
  for (int host = 0; host < 3; ++host) {
    for (const int local : {0, 1}) {
      hosts.Start(host, job.Flags(settings), RankOn(host, local, master, numbers));
    }
  }
}

const Strings kShort = {"train.global_batch_size=12", "run.timeout_s=30",
                        "checkpoint={every: 5, keep_last: 0}"};

// Every number of the steps, to the bit, and every byte of the checkpoints.
void ExpectSameRun(const std::string& got, const std::string& want) {
  const auto steps = OfKind(ReadMetrics(got), "step"), expected = OfKind(ReadMetrics(want), "step");
  ASSERT_EQ(steps.size(), 10u);
  ASSERT_EQ(expected.size(), 10u);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["loss"], expected[i]["loss"]) << "step " << i + 1;
    EXPECT_EQ(steps[i]["grad_norm"], expected[i]["grad_norm"]) << "step " << i + 1;
  }
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(want + "/checkpoints")) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string name = std::filesystem::relative(entry.path(), want);
    EXPECT_EQ(ReadFile(got + "/" + name), ReadFile(entry.path())) << name;
    ++files;
  }
  EXPECT_GE(files, 12);  // Two checkpoints of six ranks.
}

void ExpectAllDone(const std::vector<Outcome>& outcomes) {
  for (size_t r = 0; r < outcomes.size(); ++r) {
    EXPECT_EQ(outcomes[r].code, 0) << "rank " << r << ": " << outcomes[r].Text();
  }
}

TEST_F(Hosts, TrainWithTheBitsOfOneHost) {
  Job job;
  job.RunDir("one");
  const Outcome one = job.Launch(6, kShort);
  ASSERT_EQ(one.code, 0) << one.Text();
  const std::string want = job.run_dir();
  for (const bool ipv6 : {false, true}) {
    FakeHosts hosts(3);
    job.RunDir(ipv6 ? "ipv6" : "ipv4");
    StartAll(hosts, job, kShort, ipv6 ? FakeHosts::Address6(0) : FakeHosts::Address(0));
    ExpectAllDone(hosts.Wait(kPatience));
    ExpectSameRun(job.run_dir(), want);
  }
}

// Groups are the hosts as they are found. One host has to be told.
TEST_F(Hosts, HybridShardingHasTheBitsOfOneHostHoweverRanksAreNumbered) {
  Job job;
  Strings settings = kShort;
  settings.push_back("fsdp.sharding_strategy=hybrid_shard");
  const auto with = [&](const char* setting) {
    Strings all = settings;
    all.push_back(setting);
    return all;
  };
  job.RunDir("one");
  const Outcome one = job.Launch(6, with("fsdp.shard_size=2"));
  ASSERT_EQ(one.code, 0) << one.Text();
  const std::string want = job.run_dir();
  for (const Numbers numbers : {Numbers::kHostByHost, Numbers::kInTurns}) {
    // Five steps under one numbering and five under the other.
    FakeHosts hosts(3);
    job.RunDir(numbers == Numbers::kInTurns ? "in_turns" : "host_by_host");
    StartAll(hosts, job, settings, FakeHosts::Address(0), numbers);
    ExpectAllDone(hosts.Wait(kPatience));
    ExpectSameRun(job.run_dir(), want);
    std::filesystem::remove_all(job.run_dir() + "/checkpoints/step_10");
    std::ofstream(job.run_dir() + "/checkpoints/latest") << "step_5";
    StartAll(hosts, job, with("checkpoint={every: 5, keep_last: 0, resume: auto}"),
             FakeHosts::Address(0),
             numbers == Numbers::kInTurns ? Numbers::kHostByHost : Numbers::kInTurns);
    ExpectAllDone(hosts.Wait(kPatience));
    ExpectSameRun(job.run_dir(), want);
  }
}

// Elements of a GPT-2 unit's flat parameter: its matrices and vectors are multiples of 64 long, so
// they lie end to end.
constexpr int64_t kHidden = 128, kLayers = 3, kVocab = 4096, kPositions = 16;
int64_t Padded(int64_t elements, int shards) {
  const int64_t grid = 256 * shards;
  return (elements + grid - 1) / grid * grid;
}
int64_t RootElements(int shards) { return Padded((kVocab + kPositions + 2) * kHidden, shards); }
int64_t BlockElements(int shards) { return Padded((12 * kHidden + 13) * kHidden, shards); }

// Bytes that rank 0 puts into sockets in a step of three hosts of two ranks.
int64_t NetworkBytesOfHybrid() {  // F = 2: only sums over the three replicas leave a host.
  const auto sums = [](int64_t elements) {  // Two slices for others, and its own sum for both.
    const int64_t shard = elements / 2, slice = shard / 3;
    return (shard - slice) + 2 * slice;
  };
  return 4 * (sums(RootElements(2)) + kLayers * sums(BlockElements(2)));
}
int64_t
NetworkBytesOfFullShard() {  // F = 6: a shard to each other host, a slice to each rank there.
  const int64_t root = RootElements(6) / 6, block = BlockElements(6) / 6;
  return 4 * (2 * (root + 2 * kLayers * block) + 4 * (root + kLayers * block));
}
// Ranks 1, 3 and 5 get one of the three scalars each; two of these ranks are on other hosts.
constexpr int64_t kScalarBytes = 2 * 4;

// Counts tell whether groups are hosts, where bits do not. The kernel's counts have headers,
// messages about calls and the start in them as well.
TEST_F(Hosts, NetworkBytesAreThoseOfTheFormulaAndTheKernel) {
  Job job;
  Strings settings = kShort;
  settings.insert(settings.end(),
                  {"model.hidden_size=" + std::to_string(kHidden),
                   "model.num_hidden_layers=" + std::to_string(kLayers),
                   "model.vocab_size=" + std::to_string(kVocab), "checkpoint.every=null"});
  const auto run = [&](const std::string& strategy, Numbers numbers, int64_t want) {
    SCOPED_TRACE(strategy);
    FakeHosts hosts(3);
    Strings all = settings;
    all.push_back("fsdp.sharding_strategy=" + strategy);
    job.RunDir(strategy + (numbers == Numbers::kInTurns ? "_in_turns" : ""));
    const int64_t before = hosts.BytesFrom(0);
    StartAll(hosts, job, all, FakeHosts::Address(0), numbers);
    ExpectAllDone(hosts.Wait(kPatience));
    const auto sent = static_cast<double>(hosts.BytesFrom(0) - before);
    const auto steps = OfKind(ReadMetrics(job.run_dir()), "step");
    ASSERT_EQ(steps.size(), 10u);
    int64_t counted = 0;
    for (const Json& step : steps) {
      const int64_t bytes = step["communication"]["network_bytes"];
      EXPECT_EQ(bytes, want + kScalarBytes) << step;
      counted += 2 * bytes;  // The host's other rank sends as much, but for a scalar.
    }
    EXPECT_GT(sent, static_cast<double>(counted));
    EXPECT_LT(sent, 1.05 * static_cast<double>(counted));
  };
  run("full_shard", Numbers::kHostByHost, NetworkBytesOfFullShard());
  run("hybrid_shard", Numbers::kHostByHost, NetworkBytesOfHybrid());
  run("hybrid_shard", Numbers::kInTurns, NetworkBytesOfHybrid());
}

TEST_F(Hosts, HybridShardingOverUnequalHostsWantsToBeTold) {
  Job job;
  const auto run = [&](const Strings& settings) {
    FakeHosts hosts(2);
    for (const int rank : {0, 1, 2}) {
      Variables environment = RankOn(rank / 2, rank % 2, FakeHosts::Address(0));
      environment["WORLD_SIZE"] = "3";
      if (rank == 2) environment["LOCAL_WORLD_SIZE"] = "1";
      hosts.Start(rank / 2, job.Flags(settings), environment);
    }
    return hosts.Wait(kPatience);
  };
  job.RunDir("unequal");
  std::string said;
  for (const Outcome& outcome : run({"fsdp.sharding_strategy=hybrid_shard"})) {
    EXPECT_EQ(outcome.code, 2) << outcome.Text();
    said += outcome.err;
  }
  EXPECT_NE(said.find("`hybrid_shard` shards over the ranks of each host, and hosts have 1 to 2 of "
                      "them: say how many ranks share a copy, one of 1 or 3"),
            std::string::npos)
      << said;
  EXPECT_FALSE(Exists(job.run_dir()));
  ExpectAllDone(run({"fsdp={sharding_strategy: hybrid_shard, shard_size: 3}",
                     "train.global_batch_size=12", "checkpoint.every=5"}));
}

TEST_F(Hosts, TrainOverASlowLineThatLosesFrames) {
  if (!Exists("/dev/net/tun")) GTEST_SKIP() << "no /dev/net/tun for a switch of our own";
  Job job;
  job.RunDir("one");
  const Outcome one = job.Launch(6, kShort);
  ASSERT_EQ(one.code, 0) << one.Text();
  const std::string want = job.run_dir();
  FakeHosts hosts(3, Wire{std::chrono::milliseconds(2), 0.01});
  job.RunDir("slow");
  StartAll(hosts, job, kShort);
  ExpectAllDone(hosts.Wait(kPatience));
  ExpectSameRun(job.run_dir(), want);
  EXPECT_GT(hosts.LostFrames(), 10);
}

// A run that goes on until something happens to it.
struct EndlessRun {
  explicit EndlessRun(double timeout_s) : hosts(3) {
    StartAll(hosts, job,
             {"train.global_batch_size=12", "train.steps=100000000", "log.every=5",
              "run.timeout_s=" + std::to_string(timeout_s)});
    EXPECT_TRUE(Eventually([&] { return LastStep(job.run_dir()) >= 10; }));
  }
  Job job;
  FakeHosts hosts;
};

// All ranks but those of `lost` end with 6 in time, and each names that host's ranks.
void ExpectSurvivorsToName(int lost, const std::vector<Outcome>& outcomes) {
  const std::string first = std::to_string(2 * lost), second = std::to_string(2 * lost + 1);
  for (int r = 0; r < 6; ++r) {
    if (r / 2 == lost) continue;
    EXPECT_EQ(outcomes[r].code, 6) << "rank " << r << ": " << outcomes[r].Text();
    const bool named = outcomes[r].err.find("rank " + first) != std::string::npos ||
                       outcomes[r].err.find("rank " + second) != std::string::npos ||
                       outcomes[r].err.find("ranks " + first + ", " + second) != std::string::npos;
    EXPECT_TRUE(named) << "rank " << r << ": " << outcomes[r].err;
  }
}

TEST_F(Hosts, SurvivorsOfAKilledHostNameItsRanksAtOnce) {
  for (const int lost : {2, 0}) {
    EndlessRun run(/*timeout_s=*/100);
    run.hosts.Kill(lost);
    ExpectSurvivorsToName(lost, run.hosts.Wait(kMinute));  // Not the timeout.
  }
}

TEST_F(Hosts, AHostThatIsCutOffIsNamedWithinTheTimeout) {
  EndlessRun run(/*timeout_s=*/3);
  run.hosts.CutOff(2);
  const std::vector<Outcome> outcomes = run.hosts.Wait(kMinute);
  ExpectSurvivorsToName(2, outcomes);
  for (const int r : {4, 5}) EXPECT_EQ(outcomes[r].code, 6) << outcomes[r].Text();
}

}  // namespace
}  // namespace fsdp::e2e
