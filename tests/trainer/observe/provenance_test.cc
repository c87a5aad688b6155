#include "trainer/observe/provenance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/json.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

TEST(Provenance, TextIsJsonThatPeopleRead) {
  const Provenance p{
      .command_line = {"fsdp-train", "--config", "a b.yaml", "\xff"},
      .directory = "/home/a",
      .started = "2026-01-02T03:04:05Z",
      .version = "0.1.0",
      .git = "unknown",
      .compiler = "gcc 12.2.0",
      .device = "cpu",
      .gpu_memory = Provenance::GpuMemory{2048, 1024},
      .libraries = {{"glibc", "2.36"}, {"kernels", "avx2"}},
      .refused_products = {"8x8x8 nn: why"},
      .world_size = 2,
      .threads = 1,
      .seed = 18446744073709551615u,
      .host = {.name = "h", .kernel = "Linux 6", .processor = "P", .cores = 2, .memory = 1024},
      .data = {{"a.txt", 3, 0xabc}, {"b.txt", 4, 0x123456789abcdef0}}};
  EXPECT_EQ(ToJson(p), R"({
  "command_line": ["fsdp-train", "--config", "a b.yaml", ")"
                       "\uFFFD"
                       R"("],
  "directory": "/home/a",
  "started": "2026-01-02T03:04:05Z",
  "version": "0.1.0",
  "git": "unknown",
  "compiler": "gcc 12.2.0",
  "device": "cpu",
  "gpu_memory": {"outside": 2048, "taken": 1024},
  "refused_products": [
    "8x8x8 nn: why"
  ],
  "libraries": {
    "glibc": "2.36",
    "kernels": "avx2"
  },
  "world_size": 2,
  "threads": 1,
  "seed": 18446744073709551615,
  "host": {"name": "h", "kernel": "Linux 6", "processor": "P", "cores": 2, "memory": 1024},
  "data": [
    {"path": "a.txt", "bytes": 3, "hash": "0000000000000abc"},
    {"path": "b.txt", "bytes": 4, "hash": "123456789abcdef0"}
  ]
}
)");
  const std::string path = ::testing::TempDir() + "/provenance.json";
  WriteProvenance(path, p);
  EXPECT_EQ(testing::Json::parse(ReadWholeFile(path))["seed"], 18446744073709551615u);
  const auto empty = testing::Json::parse(ToJson(Provenance{}));
  EXPECT_TRUE(empty["libraries"].is_object() && empty["data"].is_array());
  EXPECT_THROW(WriteProvenance(::testing::TempDir() + "/none/p.json", p), CheckpointError);
}

TEST(Provenance, HostIsThisOne) {
  const HostInfo host = DescribeHost();
  EXPECT_FALSE(host.name.empty());
  EXPECT_EQ(host.kernel.find("Linux "), 0u);
  EXPECT_FALSE(host.processor.empty());
  EXPECT_GE(host.cores, 1);
  EXPECT_LE(host.cores, std::thread::hardware_concurrency());
  EXPECT_GT(host.memory, int64_t{64} << 20);
  EXPECT_EQ(CLibrary().first, "glibc");
  EXPECT_THAT(CLibrary().second, ::testing::MatchesRegex(R"(2\.[0-9]+)"));
  EXPECT_THAT(UtcNow(), ::testing::MatchesRegex("20[0-9-]{8}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"));
}

}  // namespace
}  // namespace fsdp
