#include "trainer/checkpoint/verify.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include "tests/trainer/checkpoint/rank_states.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/manifest_writer.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

std::string SaveOne(const std::string& name, const World& world) {
  const std::string dir = FreshDirectory(name);
  EXPECT_EQ(Save(world, dir, 1), Strings(world.world));
  return dir + "/step_1";
}

// Three files of several chunks each.
World SeveralChunks() {
  World world;
  world.world = world.shards = 3;
  world.model = {{"embedding", false, {{"wte", Shape{1000, 401}}, {"wpe", Shape{33, 401}}}},
                 {"h.0", true, {{"h.0.w", Shape{401, 900}}, {"h.0.b", Shape{900}}}}};
  return world;
}

void FlipByte(const std::string& path, int64_t at, uint8_t mask) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ mask);
  file.seekp(at);
  file.put(byte);
}

// The element at a byte of a rank's file, in the words of a report.
std::string WhatLiesAt(const Manifest& manifest, const ManifestFile& file, int64_t at) {
  for (const ManifestSlice& slice : file.slices) {
    if (at < slice.at || at >= slice.at + 4 * slice.count) continue;
    const int64_t element = slice.begin + (at - slice.at) / 4;
    for (const FlatParameter& flat : manifest.flat_parameters) {
      if (flat.name != slice.flat) continue;
      for (const Placement& p : flat.parameters) {
        if (element >= p.offset && element < p.offset + p.size()) {
          return slice.state + " of " + p.name;
        }
      }
    }
    return "";  // Padding: the chunk holds parameters as well.
  }
  return "the file's header";
}

VerifyReport Verify(const std::string& path) {
  return VerifyCheckpoint(CheckpointHold(path), nullptr);
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(VerifyTest, AWholeCheckpointIsWhole) {
  const std::string path = SaveOne("whole", SeveralChunks());
  int64_t last = 0, of = 0;
  const VerifyReport report =
      VerifyCheckpoint(CheckpointHold(path), [&](int64_t done, int64_t total) {
        EXPECT_LT(last, done);
        last = done;
        of = total;
      });
  EXPECT_TRUE(report.damages.empty());
  EXPECT_EQ(report.files, 3);
  EXPECT_EQ(last, of);
  EXPECT_EQ(report.bytes, of);
  EXPECT_EQ(report.bytes, ReadManifest(path).DataBytes());
  EXPECT_GT(report.chunks, 6);
}

// A copy that is called as one of another step would be.
TEST(VerifyTest, HoldsTheStepAgainstTheName) {
  const std::string path = SaveOne("named", SeveralChunks());
  const std::string beside = path.substr(0, path.rfind('/') + 1);
  const int64_t step = ReadManifest(path).meta.step;
  for (const char* other : {"step_123456", "best"}) {
    const std::string copy = beside + other;
    std::filesystem::remove_all(copy);
    std::filesystem::copy(path, copy);
    for (const char* slash : {"", "/"}) {
      const VerifyReport report = Verify(copy + slash);
      if (other == std::string("best")) {
        EXPECT_TRUE(report.damages.empty());
        continue;
      }
      ASSERT_EQ(report.damages.size(), 1u);
      EXPECT_EQ(ToString(report.damages[0]), copy + slash + "/manifest.json: is of step " +
                                                 std::to_string(step) +
                                                 ", and the directory's name of step 123456");
    }
  }
}

TEST(VerifyTest, FindsEveryFlippedByteOfAThousand) {
  const std::string path = SaveOne("flips", SeveralChunks());
  const Manifest manifest = ReadManifest(path);
  std::mt19937_64 random(20260711);
  const Strings names = ListSorted(path);
  int in_manifest = 0, in_header = 0;
  for (int i = 0; i < 1000; ++i) {
    const size_t which = random() % names.size();
    const std::string file = path + "/" + names[which];
    const bool header = random() % 10 == 0;  // A thousandth of the file's bytes.
    const auto size = static_cast<int64_t>(fs::file_size(file));
    const auto at = static_cast<int64_t>(random() % static_cast<uint64_t>(header ? 200 : size));
    const auto mask = static_cast<uint8_t>(1 + random() % 255);
    const std::string what = "byte " + std::to_string(at) + " of " + file;
    FlipByte(file, at, mask);
    if (names[which] == kManifestName) {
      ++in_manifest;
      EXPECT_THROW(Verify(path), CheckpointError) << what;
    } else {
      const VerifyReport report = Verify(path);
      ASSERT_EQ(report.damages.size(), 1u) << what;
      const Damage& damage = report.damages[0];
      EXPECT_EQ(damage.file, file);
      EXPECT_TRUE(damage.begin <= at && at < damage.end) << what << ": " << ToString(damage);
      EXPECT_LE(damage.end - damage.begin, 1 << 20);
      const int rank = static_cast<int>(which) - 1;  // Behind manifest.json.
      const std::string want = WhatLiesAt(manifest, manifest.files[rank], at);
      in_header += want == "the file's header";
      EXPECT_TRUE(want.empty() || std::find(damage.touches.begin(), damage.touches.end(), want) !=
                                      damage.touches.end())
          << what << ", want " << want << ": " << ToString(damage);
    }
    FlipByte(file, at, mask);
  }
  EXPECT_GT(in_manifest, 100);
  EXPECT_GT(in_header, 30);
  EXPECT_TRUE(Verify(path).damages.empty());
}

TEST(VerifyTest, NamesAllDamagesAtOnce) {
  const std::string path = SaveOne("several", SeveralChunks());
  const int64_t size = static_cast<int64_t>(fs::file_size(path + "/rank_0.safetensors"));
  FlipByte(path + "/rank_0.safetensors", 10, 1);
  FlipByte(path + "/rank_0.safetensors", size - 1, 1);
  fs::resize_file(path + "/rank_1.safetensors", size - 100);
  fs::remove(path + "/rank_2.safetensors");
  Strings texts;
  for (const Damage& damage : Verify(path).damages) texts.push_back(ToString(damage));
  ASSERT_EQ(texts.size(), 5u) << ::testing::PrintToString(texts);
  const auto has = [&](size_t i, const std::string& part) {
    EXPECT_NE(texts[i].find(part), std::string::npos) << texts[i] << "\nwant " << part;
  };
  has(0,
      "rank_0.safetensors: bytes 0 to 1048576 do not have their checksum: the file's header, "
      "master of wte");
  has(1, "rank_0.safetensors: bytes 2097152 to " + std::to_string(size));
  has(1, "v of h.0.w");
  has(2, "rank_1.safetensors: has " + std::to_string(size - 100) + " bytes, want ");
  has(3, "are missing: the file is cut short");
  has(4, "rank_2.safetensors: cannot be opened: No such file");
}

TEST(VerifyTest, ReportsAFileThatIsNone) {
  const std::string path = SaveOne("directory", World());
  fs::remove(path + "/rank_0.safetensors");
  fs::create_directory(path + "/rank_0.safetensors");
  const VerifyReport report = Verify(path);
  ASSERT_EQ(report.damages.size(), 1u);
  EXPECT_NE(ToString(report.damages[0]).find("is not a regular file"), std::string::npos);
}

// A manifest that says of itself that all is well.
void Forge(const std::string& path, const std::function<void(Manifest&)>& change) {
  Manifest manifest = ReadManifest(path);
  change(manifest);
  WriteAtomicFile(path + "/" + kManifestName, ManifestToText(manifest));
  ReadManifest(path);
}

// Every file has one damage, and it names `part`.
void ExpectInEveryFile(const std::string& path, const std::string& part) {
  const VerifyReport report = Verify(path);
  ASSERT_EQ(report.damages.size(), static_cast<size_t>(report.files));
  for (int rank = 0; rank < report.files; ++rank) {
    const Damage& damage = report.damages[rank];
    EXPECT_EQ(damage.file, path + "/" + RankFileName(rank));
    EXPECT_TRUE(Has(ToString(damage), part)) << ToString(damage) << "\nwant " << part;
  }
}

TEST(VerifyTest, FindsStatesThatAManifestHasExchanged) {
  const World world = SeveralChunks();
  const std::string path = SaveOne("exchanged", world);
  Forge(path, [](Manifest& manifest) {
    for (ManifestFile& file : manifest.files) {
      for (ManifestSlice& slice : file.slices) {
        if (slice.state != "master") slice.state = slice.state == "m" ? "v" : "m";
      }
    }
  });
  const std::string load = LoadAndCompare(world, path, 1);
  EXPECT_TRUE(Has(load, "rank_0.safetensors: the header has '")) << load;
  ExpectInEveryFile(path, ".safetensors: the header has 'v/");
  ASSERT_FALSE(HasFatalFailure());
  const std::string text = ToString(Verify(path).damages[0]);
  EXPECT_TRUE(Has(text, "' at bytes ") && Has(text, ", the manifest at bytes ")) << text;
  EXPECT_TRUE(Has(text, "more such")) << text;
}

// The header's bytes changed, and the manifest's checksums with them.
void ForgeHeaders(const std::string& path, const std::string& from, const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  Forge(path, [&](Manifest& manifest) {
    for (ManifestFile& file : manifest.files) {
      const std::string name = path + "/" + file.name;
      std::ostringstream read;
      read << std::ifstream(name, std::ios::binary).rdbuf();
      std::string bytes = read.str();
      const size_t at = bytes.find(from);
      ASSERT_NE(at, std::string::npos);
      bytes.replace(at, from.size(), to);
      std::ofstream(name, std::ios::binary) << bytes;
      file.chunks[0] = Checksum(std::string_view(bytes).substr(0, file.chunk_bytes));
    }
  });
}

TEST(VerifyTest, HoldsHeadersAgainstTheManifest) {
  const struct {
    const char *from, *to, *want;
  } forged[] = {
      {"\"m/", "\"n/", "the header has no 'm/"},
      {"\"F32\"", "\"U32\"", "/fp32' as U32, the manifest as F32"},
      {"\"F32\"", "\"F33\"", ": header: tensor '"},  // It is no header at all.
  };
  for (const auto& [from, to, want] : forged) {
    const std::string path = SaveOne("headers", SeveralChunks());
    ForgeHeaders(path, from, to);
    ExpectInEveryFile(path, want);
  }
  const std::string path = SaveOne("added", SeveralChunks());
  Forge(path, [](Manifest& manifest) {  // A state that the files still have.
    manifest.states.pop_back();
    for (ManifestFile& file : manifest.files) {
      std::erase_if(file.slices, [](const ManifestSlice& slice) { return slice.state == "v"; });
    }
  });
  ExpectInEveryFile(path, "the manifest has no 'v/");
}

// By its run, say, that goes back to an earlier step; another of its step may be there by then.
TEST(VerifyTest, OneThatIsMovedMeanwhileIsNotDamaged) {
  const std::string path = SaveOne("moved", SeveralChunks()), aside = path + ".aside";
  const CheckpointHold hold(path);
  EXPECT_FALSE(VerifyCheckpoint(hold, nullptr).moved);
  fs::rename(path, aside);
  for (const bool replaced : {false, true}) {
    if (replaced) fs::create_directory(path);
    const VerifyReport report = VerifyCheckpoint(hold, nullptr);
    EXPECT_TRUE(report.damages.empty());
    EXPECT_TRUE(report.moved && !report.gone);
    EXPECT_EQ(report.bytes, ReadManifest(aside).DataBytes());
  }
  FlipByte(aside + "/rank_1.safetensors", 9, 1);
  EXPECT_EQ(VerifyCheckpoint(hold, nullptr).damages.size(), 1u);
}

TEST(VerifyTest, OneThatIsRemovedMeanwhileIsNotDamaged) {
  for (const char* first : {"/rank_1.safetensors", "/manifest.json"}) {
    const std::string path = SaveOne("removed", SeveralChunks());
    const CheckpointHold hold(path);
    fs::remove(path + first);
    EXPECT_FALSE(hold.Moved());
    fs::rename(path, path + ".elsewhere");
    const VerifyReport report = VerifyCheckpoint(hold, nullptr);
    EXPECT_TRUE(report.damages.empty());
    EXPECT_TRUE(report.moved && report.gone);
  }
}

TEST(VerifyTest, NeedsAManifest) {
  EXPECT_THROW(Verify(FreshDirectory("empty")), CheckpointError);
  EXPECT_THROW(Verify(::testing::TempDir() + "/not_there"), CheckpointError);
}

}  // namespace
}  // namespace fsdp
