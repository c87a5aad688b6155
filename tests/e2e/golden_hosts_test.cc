// The bits of one host, from ranks that share memory with some of the others only.
#include <gtest/gtest.h>

#include "tests/e2e/fake_hosts.h"
#include "tests/e2e/golden.h"

namespace fsdp::e2e {
namespace {

class GoldenHosts : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenHosts, GiveTheBitsOfOne) {
  const std::string why = WhyNoFakeHosts();
  if (!why.empty()) GTEST_SKIP() << "no hosts of namespaces here: " << why;
  const GoldenRun run = GoldenRunOf(GetParam());
  const TempDir directory;
  Strings flags = {"--config", PutInputs(directory), "--set", "run.dir=" + directory / "run"};
  for (const std::string& setting : Settings(run.settings, directory.path())) {
    flags.insert(flags.end(), {"--set", setting});
  }
  FakeHosts hosts(2);
  const int first = run.world / 2;  // Ranks of the first host.
  for (int rank = 0; rank < run.world; ++rank) {
    const int host = rank < first ? 0 : 1;
    Variables environment = Torchrun(rank, run.world, 29501);
    environment["LOCAL_RANK"] = std::to_string(rank - host * first);
    environment["LOCAL_WORLD_SIZE"] = std::to_string(host == 0 ? first : run.world - first);
    environment["MASTER_ADDR"] = FakeHosts::Address(0);
    environment.merge(run.Environment());
    hosts.Start(host, flags, environment);
  }
  for (const Outcome& outcome : hosts.Wait(kPatience)) ASSERT_EQ(outcome.code, 0) << outcome.Text();
  ExpectGolden(run, directory / "run");
}

INSTANTIATE_TEST_SUITE_P(All, GoldenHosts,
                         ::testing::Values("many_gpt2", "many_llama", "many_replicas"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fsdp::e2e
