// Token files of every format, and what is wrong with them. The .npy headers are those that NumPy
// 1.24 writes.
#include "trainer/data/tokens/token_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/philox.h"
#include "trainer/data/tokens/token_manifest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string Llmc(int32_t magic, int32_t version, int32_t tokens, const std::string& data) {
  std::vector<int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = tokens;
  return Bytes(header) + data;
}

std::string Npy(const std::string& header, const std::string& data, int major = 1) {
  std::string text = std::string("\x93NUMPY") + static_cast<char>(major) + '\0';
  const uint32_t n = static_cast<uint32_t>(header.size());
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) text += static_cast<char>(n >> 8 * i);
  return text + header + data;
}

std::string NpyHeader(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }    \n";
}

class TokenFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) /
           ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }

  std::string Write(const std::string& name, const std::string& contents) {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, std::ios::binary) << contents;
    return dir_ / name;
  }

  std::vector<int32_t> ReadAll(const std::string& contents,
                               std::optional<TokenDType> raw = std::nullopt) {
    const TokenFile file(FileContents(Write("f", contents)), raw);
    std::vector<int32_t> out(static_cast<size_t>(file.size()));
    file.Read(0, out);
    return out;
  }

  // Without the directory and "data: ".
  std::string ErrorOf(const std::function<void()>& call) {
    try {
      call();
    } catch (const DataError& error) {
      std::string what = error.what();
      for (size_t at; (at = what.find(dir_.string() + "/")) != std::string::npos;) {
        what.erase(at, dir_.string().size() + 1);
      }
      EXPECT_EQ(what.rfind("data: ", 0), 0u) << what;
      return what.substr(6);
    }
    return "no error";
  }
  std::string ErrorOf(const std::string& contents, std::optional<TokenDType> raw = std::nullopt) {
    return ErrorOf([&] { ReadAll(contents, raw); });
  }

  fs::path dir_;
};

const std::vector<uint16_t> kShort = {0, 1, 65535, 50256};
const std::vector<int32_t> kWant = {0, 1, 65535, 50256};

TEST_F(TokenFileTest, EveryFormatHoldsTheSameTokens) {
  const std::vector<uint32_t> wide(kWant.begin(), kWant.end());
  const std::vector<int64_t> long_ids(kWant.begin(), kWant.end());
  EXPECT_EQ(ReadAll(Llmc(20240520, 1, 4, Bytes(kShort))), kWant);
  EXPECT_EQ(ReadAll(Llmc(20240801, 7, 4, Bytes(wide))), kWant);
  EXPECT_EQ(ReadAll(Npy(NpyHeader("<u2", "(4,)"), Bytes(kShort))), kWant);
  EXPECT_EQ(ReadAll(Npy(NpyHeader("<u4", "(4,)"), Bytes(wide), 2)), kWant);
  EXPECT_EQ(ReadAll(Npy(NpyHeader("<i4", "(4,)"), Bytes(kWant), 3)), kWant);
  EXPECT_EQ(ReadAll(Npy(NpyHeader("<i8", "(4,)"), Bytes(long_ids))), kWant);
  // Whatever order, quotes and spaces: a dictionary is a dictionary, and odd lengths put tokens at
  // odd addresses.
  EXPECT_EQ(
      ReadAll(Npy("{\"shape\":( 4 ),\n 'fortran_order' :True,\"descr\":'<i8'}", Bytes(long_ids))),
      kWant);
  EXPECT_EQ(ReadAll(Bytes(kShort), TokenDType::kUint16), kWant);
  EXPECT_EQ(ReadAll(Bytes(wide), TokenDType::kUint32), kWant);
  EXPECT_EQ(LlmcHeader(TokenDType::kUint16, 4) + Bytes(kShort),
            Llmc(20240520, 1, 4, Bytes(kShort)));
  EXPECT_EQ(LlmcHeader(TokenDType::kUint32, 4) + Bytes(wide), Llmc(20240801, 7, 4, Bytes(wide)));
  EXPECT_THROW(LlmcHeader(TokenDType::kInt32, 4), std::invalid_argument);
  EXPECT_THROW(LlmcHeader(TokenDType::kUint32, int64_t{1} << 31), std::invalid_argument);
}

TEST_F(TokenFileTest, EveryFlawNamesTheFileAndACure) {
  const std::string data = Bytes(kShort);
  EXPECT_EQ(ErrorOf(Llmc(20240520, 1, 5, data)),
            "f: its header says 5 tokens of uint16, but 8 bytes follow, which is too few: cut off, "
            "copy or write it again");
  EXPECT_EQ(ErrorOf(Llmc(20240520, 1, 4, data.substr(1))),
            "f: its header says 4 tokens of uint16, but 7 bytes follow, which is too few: cut off, "
            "copy or write it again");
  EXPECT_EQ(ErrorOf(Llmc(20240520, 1, 4, data + "x")),
            "f: its header says 4 tokens of uint16, but 9 bytes follow, which is too many: the "
            "file is damaged, write it again");
  EXPECT_EQ(ErrorOf(Llmc(20240801, 1, 2, data)), "f: llm.c version 1 of magic 20240801, want 7");
  EXPECT_EQ(ErrorOf(Llmc(20240520, 1, 4, data).substr(0, 1000)),
            "f: ends inside its llm.c header of 1024 bytes: cut off, copy or write it again");
  EXPECT_EQ(ErrorOf(Llmc(20240520, 1, -4, data)), "f: its llm.c header says -4 tokens");
  EXPECT_EQ(ErrorOf(Llmc(20240520, 1, 0, "")), "f: holds no tokens: take it out of data.*.paths");
  EXPECT_EQ(ErrorOf(data),
            "f: has neither an llm.c nor a NumPy header: say what raw tokens are with data.*.dtype "
            "(uint16 or uint32)");
  EXPECT_EQ(
      ErrorOf(data.substr(1), TokenDType::kUint16),
      "f: its size of 7 bytes is no whole number of uint16: cut off, or data.*.dtype is wrong");
  EXPECT_EQ(ErrorOf(Llmc(20240520, 1, 4, data), TokenDType::kUint16),
            "f: has a header of llm.c, so it is not raw: leave data.*.dtype out");
  EXPECT_EQ(ErrorOf(Npy(NpyHeader("<u2", "(4,)"), data), TokenDType::kUint16),
            "f: has a header of NumPy, so it is not raw: leave data.*.dtype out");
  EXPECT_EQ(ErrorOf(Npy(NpyHeader(">u2", "(4,)"), data)),
            "f: dtype >u2, want <u2, <u4, <i4 or <i8 (uint16, uint32, int32, int64, "
            "little-endian)");
  EXPECT_EQ(ErrorOf(Npy(NpyHeader("<u2", "(2, 2)"), data)),
            "f: 2 dimensions, want one: write it with array.reshape(-1)");
  EXPECT_EQ(ErrorOf(Npy(NpyHeader("<u2", "(9223372036854775807,)"), data)),
            "f: its header says 9223372036854775807 tokens of uint16, but 8 bytes follow, which is "
            "too few: cut off, copy or write it again");
  EXPECT_EQ(ErrorOf(Npy(NpyHeader("<u2", "(4,)"), data, 4)),
            "f: NumPy format version 4, want 1 to 3");
  EXPECT_EQ(ErrorOf(Npy(NpyHeader("<u2", "(4,)"), data).substr(0, 20)),
            "f: ends inside its NumPy header: cut off, copy or write it again");
  for (const char* header :
       {"", "{}", "{'descr': '<u2', 'fortran_order': False}", "{'descr': '<u2'",
        "{'descr': <u2, 'fortran_order': False, 'shape': (4,)}",
        "{'descr': '<u2', 'fortran_order': 0, 'shape': (4,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (-4,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (4,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (4,)} x"}) {
    EXPECT_EQ(ErrorOf(Npy(header, data)),
              "f: its NumPy header is not one: write it again with numpy.save")
        << header;
  }
  EXPECT_EQ(ErrorOf(Bytes(std::vector<uint32_t>{1, 1u << 31}), TokenDType::kUint32),
            "f, token 1: token 2147483648 is outside any vocabulary: is data.*.dtype right?");
  EXPECT_EQ(ErrorOf(Npy(NpyHeader("<i8", "(1,)"), Bytes(std::vector<int64_t>{-1ll << 40}))),
            "f, token 0: token -1099511627776 is outside any vocabulary: is data.*.dtype right?");
}

TEST_F(TokenFileTest, CountsWhatReadingFinds) {
  const RandomStream random(3, "tokens");
  std::vector<uint16_t> ids(20000);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<uint16_t>(random.Below(i, 3) + 65533);
  const TokenFile narrow(FileContents(Write("narrow", Bytes(ids))), TokenDType::kUint16);
  const std::vector<int64_t> wide_ids(ids.begin(), ids.end());
  const TokenFile wide(
      FileContents(Write("wide", Npy(NpyHeader("<i8", "(20000,)"), Bytes(wide_ids)))),
      std::nullopt);
  for (const int64_t begin : {0, 1, 4095, 12000}) {
    for (const int64_t count : {0, 1, 4096, 4097, 8000}) {
      for (const int32_t token : {65533, 65535, 3, -1, 65536}) {
        const int64_t want = std::count(ids.begin() + begin, ids.begin() + begin + count, token);
        EXPECT_EQ(narrow.Count(begin, count, token), want);
        EXPECT_EQ(wide.Count(begin, count, token), want);
      }
    }
  }
  // Every element of a run, so that a counter too narrow for a run would wrap.
  const TokenFile same(FileContents(Write("same", std::string(1 << 18, '\1'))),
                       TokenDType::kUint16);
  EXPECT_EQ(same.Count(0, 1 << 17, 257), 1 << 17);
}

TEST_F(TokenFileTest, SourceJoinsFilesAndGlobs) {
  const std::vector<std::string> paths = {
      Write("z.npy", Npy(NpyHeader("<i8", "(2,)"), Bytes(std::vector<int64_t>{70000, 5}))),
      dir_.string() + "/b_*.bin"};
  Write("b_2.bin", Llmc(20240520, 1, 1, Bytes(std::vector<uint16_t>{9})));
  Write("b_1.bin", Llmc(20240520, 1, 3, Bytes(std::vector<uint16_t>{6, 7, 5})));
  const TokenFileSource source(paths);
  const std::vector<int32_t> want = {70000, 5, 6, 7, 5, 9};
  ASSERT_EQ(source.size(), 6);
  for (int64_t begin = 0; begin <= 6; ++begin) {
    for (int64_t count = 0; begin + count <= 6; ++count) {
      std::vector<int32_t> got(static_cast<size_t>(count));
      source.Read(begin, got);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + begin));
      EXPECT_EQ(source.Count(begin, count, 5),
                std::count(want.begin() + begin, want.begin() + begin + count, 5));
    }
  }
  EXPECT_EQ(source.Where(4), dir_.string() + "/b_1.bin, token 2");
  EXPECT_EQ(source.Describe(), paths[0] + " and 2 more files");
  EXPECT_EQ(source.eot(), std::nullopt);
  EXPECT_EQ(source.Files().size(), 3u);
  EXPECT_EQ(source.Files()[2].hash, DescribeFile(FileContents(dir_.string() + "/b_2.bin")).hash);
  EXPECT_EQ(ErrorOf([&] { CheckTokens(source, 50257); }),
            "z.npy, token 0: token 70000 is outside the vocabulary of 50257 tokens: this data "
            "needs a larger model.vocab_size, at most 2147483647, or is another tokenizer's");
  CheckTokens(source, 70001);
}

TEST_F(TokenFileTest, LooksThroughManyTokensHereAndThere) {
  // 2^26 + 1 tokens: more than CheckTokens reads whole. A sparse file: zeros cost nothing.
  constexpr int64_t kTokens = (int64_t{1} << 26) + 1;
  const std::string path = Write("big", "");
  fs::resize_file(path, 2 * kTokens);
  const auto set = [&](int64_t token, uint16_t value) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(2 * token);
    file.write(reinterpret_cast<const char*>(&value), 2);
  };
  const auto error = [&] {
    return ErrorOf(
        [&] { CheckTokens(TokenFileSource(std::vector{path}, TokenDType::kUint16), 1000); });
  };
  EXPECT_EQ(error(), "no error");
  for (const int64_t at : {int64_t{0}, kTokens - 1}) {
    set(at, 1000);
    EXPECT_EQ(error().rfind("big, token " + std::to_string(at) + ": token 1000 ", 0), 0u);
    set(at, 0);
  }
  // Between two stretches: not seen here; the loader will.
  set((1 << 16) - 1, 1000);
  EXPECT_EQ(error(), "no error");
  // Another tokenizer's: wrong ids here and there are enough.
  for (int64_t at = 5; at < kTokens; at += 40000) set(at, 1000);
  EXPECT_EQ(error().rfind("big, token 5: token 1000 ", 0), 0u);
}

TEST_F(TokenFileTest, AShardIsHeldAgainstItsHash) {
  const std::string shard = Llmc(20240520, 1, 2, Bytes(std::vector<uint16_t>{4, 5}));
  const std::string path = Write("set/0.bin", shard), folder = dir_.string() + "/set";
  TokenManifest m;
  m.vocab_size = 10;
  m.tokens = 2;
  m.shards = {{"0.bin", 2, DescribeFile(FileContents(path)).hash}};
  Write("set/tokens.json", ToJson(m));
  EXPECT_EQ(ReadTokenManifest(folder), m);
  const auto open = [&](const std::string& what) {
    return ErrorOf([&] { TokenFileSource source(std::vector{what}); });
  };
  EXPECT_EQ(open(folder), "no error");
  for (size_t bit = 0; bit < 8 * shard.size(); bit += 37) {
    std::string damaged = shard;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    Write("set/0.bin", damaged);
    EXPECT_NE(open(folder), "no error") << bit;
  }
  std::string token = shard;
  token[1024] = 5;  // One as good as another.
  Write("set/0.bin", token);
  for (const std::string& what : {folder, path}) {
    EXPECT_EQ(open(what),
              "set/0.bin: is damaged: its hash is not the one in set/tokens.json: copy it again, "
              "or tokenize again");
  }
}

TEST_F(TokenFileTest, AShortenedFileIsAnErrorOfWhatIsRead) {
  const std::string path = Write("f", Bytes(std::vector<uint16_t>(20000, 7)));
  const TokenFileSource source(std::vector{path}, TokenDType::kUint16);
  std::vector<int32_t> out(5);
  source.Read(19990, out);
  EXPECT_EQ(source.Count(0, 20000, 7), 20000);
  fs::resize_file(path, 39999);
  const std::string want =
      "f: has become shorter while it was read, from 40000 to 39999 bytes: put it back as it was; "
      "a run then goes on from its last checkpoint";
  EXPECT_EQ(ErrorOf([&] { source.Read(19995, out); }), want);
  EXPECT_EQ(ErrorOf([&] { source.Count(0, 20000, 7); }), want);
  EXPECT_EQ(ErrorOf([&] { source.Files(); }), want);
}

TEST_F(TokenFileTest, ManifestSaysWhatShardsCannot) {
  TokenManifest m;
  m.key = 12;
  m.tokenizer = "gpt2/tokenizer.json";
  m.tokenizer_hash = 0xfedcba9876543210;
  m.vocab_size = 50257;
  m.eot = 50256;
  m.documents = 2;
  m.tokens = 3;
  m.inputs = {{"a.txt", 12, 7}, {"b \"\n.txt", 1, 0xffffffffffffffff}};
  const std::string first = Llmc(20240520, 1, 2, Bytes(std::vector<uint16_t>{4, 50256}));
  const std::string last = Llmc(20240520, 1, 1, Bytes(std::vector<uint16_t>{50256}));
  const auto hash = [](const std::string& path) { return DescribeFile(FileContents(path)).hash; };
  m.shards = {{"0.bin", 2, hash(Write("set/0.bin", first))},
              {"1.bin", 1, hash(Write("set/1.bin", last))}};
  m.empty_documents = 4;
  m.invalid_utf8 = 2;
  m.first_invalid_utf8 = "a.txt, byte 1";
  const std::string text = ToJson(m);
  EXPECT_EQ(ParseTokenManifest("m", text), m);
  Write("set/tokens.json", text);
  const std::string folder = dir_.string() + "/set";
  for (const std::vector<std::string>& paths :
       {std::vector{folder}, {folder + "/*.bin"}, {folder + "/1.bin"}}) {
    const TokenFileSource source(paths);
    EXPECT_EQ(source.eot(), 50256);
    EXPECT_EQ(source.vocab_size(), 50257);
    EXPECT_EQ(source.size(), paths[0].ends_with("/1.bin") ? 1 : 3);
  }
  EXPECT_EQ(TokenFileSource(std::vector{folder}, std::nullopt, 4).eot(), 4);
  // A file that no manifest lists leaves open how documents end.
  const std::string other =
      Write("other.bin", Llmc(20240520, 1, 1, Bytes(std::vector<uint16_t>{1})));
  const TokenFileSource mixed(std::vector{folder, other});
  EXPECT_EQ(mixed.eot(), std::nullopt);
  EXPECT_EQ(mixed.vocab_size(), 65536);

  const auto open = [&] { TokenFileSource source(std::vector{folder}); };
  Write("set/1.bin", Llmc(20240520, 1, 2, Bytes(std::vector<uint16_t>{1, 2})));
  EXPECT_EQ(ErrorOf(open), "set/1.bin: holds 2 tokens, but set/tokens.json says 1: tokenize again");
  Write("set/1.bin", last);
  TokenManifest stranger = m;
  stranger.tokenizer = "llama";
  stranger.tokenizer_hash = 1;
  stranger.shards = {{"0.bin", 2, hash(Write("set2/0.bin", first))}};
  stranger.tokens = 2;
  Write("set2/tokens.json", ToJson(stranger));
  EXPECT_EQ(ErrorOf([&] {
              TokenFileSource source(std::vector{folder, dir_.string() + "/set2"});
            }),
            "set2/0.bin: made by another tokenizer (llama) than the files before it "
            "(gpt2/tokenizer.json): one source holds tokens of one tokenizer");

  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string broken = text;
    broken.replace(broken.find(from), from.size(), to);
    return ErrorOf([&] { ParseTokenManifest("m", broken); });
  };
  const std::string cure = ": tokenize again, or remove it to use the shards by themselves";
  EXPECT_EQ(changed("{", ""), "m: no JSON" + cure);
  EXPECT_EQ(changed("tokens 1", "tokens 2"), "m: `format` is not `fsdp-train tokens 1`" + cure);
  EXPECT_EQ(changed("\"eot\": 50256", "\"eot\": 50257"),
            "m: `eot` is no integer from 0 to 50256" + cure);
  EXPECT_EQ(changed("\"tokens\": 3", "\"tokens\": 4"), "m: its shards hold 3 tokens, not 4" + cure);
  EXPECT_EQ(changed("\"documents\": 2", "\"documents\": 18446744073709551615"),
            "m: `documents` is no integer from 0 to 4611686018427387904" + cure);
  EXPECT_EQ(changed("0.bin", "../0.bin"), "m: a shard's `file` is no plain name" + cure);
  EXPECT_EQ(changed("fedcba9876543210", "fedcba987654321x"),
            "m: `tokenizer_hash` is no hexadecimal number" + cure);
  EXPECT_EQ(changed("\"inputs\"", "\"input\""), "m: no `inputs`" + cure);
}

}  // namespace
}  // namespace fsdp
