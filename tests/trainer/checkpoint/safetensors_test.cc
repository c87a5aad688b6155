#include "trainer/checkpoint/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <thread>

#include "tests/testing/error_of.h"
#include "trainer/core/dtype.h"
#include "trainer/core/errors.h"
#include "trainer/core/philox.h"

namespace fsdp {
namespace {

std::string TempPath(const std::string& name) { return ::testing::TempDir() + "/" + name; }

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The file as a string: the length word, `header`, then `data`.
std::string FileOf(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

void Spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

template <typename T>
std::span<const std::byte> Bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// The text of the Error that the call throws, or "" if it does not throw.
template <typename Call>
std::string CheckpointErrorOf(Call call) {
  return testing::ErrorOf(call);
}

std::vector<std::byte> ReadAll(const SafetensorsReader& reader, const std::string& name) {
  std::vector<std::byte> bytes(reader.Info(name).bytes());
  reader.ReadBytes(name, 0, bytes);
  return bytes;
}

TEST(SafetensorsTest, RoundTripInRangesOfAnyOrder) {
  const std::string path = TempPath("round_trip.safetensors");
  std::vector<float> weights(7 * 11);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.25f * static_cast<float>(i) - 3;
  const std::vector<int64_t> steps = {-1, int64_t{1} << 60};
  const std::vector<uint8_t> flags = {1, 2, 3};
  const std::vector<SafetensorsEntry> entries = {
      {"flags", SafetensorsType::kU8, {3}},
      {"h.0/weight \"quoted\" \u00e9", SafetensorsType::kF32, {7, 11}},
      {"empty", SafetensorsType::kBF16, {4, 0, 2}},
      {"steps", SafetensorsType::kI64, {2, 1}},
      {"scalar", SafetensorsType::kI16, {}},
  };
  {
    SafetensorsWriter writer(path, entries, {{"format", "pt"}, {"line\n", "\t"}});
    writer.WriteBytes("scalar", 0, Bytes(std::vector<int16_t>{-7}));
    const auto bytes = Bytes(weights);
    writer.WriteBytes(entries[1].name, 200, bytes.subspan(200));
    writer.WriteBytes(entries[1].name, 0, bytes.first(101));
    writer.WriteBytes(entries[1].name, 101, bytes.subspan(101, 99));
    writer.WriteBytes("empty", 0, {});
    writer.WriteBytes("steps", 0, Bytes(steps));
    writer.WriteBytes("flags", 0, Bytes(flags));
    writer.Finish();
    EXPECT_EQ(writer.header(), Slurp(path).substr(0, writer.header().size()));
    EXPECT_EQ(writer.header().size() % 8, 0u);
    EXPECT_EQ(writer.file_bytes(), static_cast<int64_t>(Slurp(path).size()));
    EXPECT_EQ(writer.Info("flags").end, writer.file_bytes());
  }
  const SafetensorsReader reader(path);
  EXPECT_EQ(reader.Names(),
            (std::vector<std::string>{"steps", entries[1].name, "empty", "scalar", "flags"}));
  EXPECT_EQ(reader.Metadata(),
            (std::map<std::string, std::string>{{"format", "pt"}, {"line\n", "\t"}}));
  for (const SafetensorsEntry& entry : entries) {
    const SafetensorsInfo& info = reader.Info(entry.name);
    EXPECT_EQ(info.type, entry.type);
    EXPECT_EQ(info.shape, entry.shape);
    EXPECT_EQ(info.begin % SizeOf(entry.type), 0) << entry.name;
  }
  EXPECT_EQ(reader.Info("empty").NumElements(), 0);
  EXPECT_EQ(reader.Info("scalar").NumElements(), 1);
  const auto read = ReadAll(reader, entries[1].name);
  EXPECT_EQ(std::memcmp(read.data(), weights.data(), read.size()), 0);

  std::vector<std::byte> part(10);
  reader.ReadBytes(entries[1].name, 95, part);
  EXPECT_EQ(std::memcmp(part.data(), Bytes(weights).data() + 95, part.size()), 0);
  std::vector<float> floats(3);
  reader.ReadFloat(entries[1].name, 74, floats);
  EXPECT_EQ(floats, std::vector<float>(weights.end() - 3, weights.end()));
}

TEST(SafetensorsTest, NoTensorsAtAll) {
  const std::string path = TempPath("none.safetensors");
  SafetensorsWriter(path, {}).Finish();
  EXPECT_TRUE(SafetensorsReader(path).Names().empty());
}

template <typename T>
void ExpectFloats(SafetensorsType type, const std::vector<T>& stored) {
  const std::string path = TempPath("floats.safetensors");
  const std::vector<SafetensorsEntry> entries = {
      {"pad", SafetensorsType::kU8, {5}},  // Lies behind x.
      {"x", type, {static_cast<int64_t>(stored.size())}}};
  SafetensorsWriter writer(path, entries);
  writer.WriteBytes("x", 0, Bytes(stored));
  writer.WriteBytes("pad", 0, Bytes(std::vector<uint8_t>(5)));
  writer.Finish();
  const SafetensorsReader reader(path);
  // Not from the start, and longer than one chunk of the conversion.
  const size_t skip = 3;
  std::vector<float> floats(stored.size() - skip);
  reader.ReadFloat("x", skip, floats);
  for (size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(floats[i], static_cast<float>(stored[i + skip])) << Name(type) << " at " << i;
  }
}

TEST(SafetensorsTest, ReadsEveryFloatingPointType) {
  const RandomStream random(7, "floats");
  std::vector<float> f32(20001);
  for (size_t i = 0; i < f32.size(); ++i) f32[i] = random.Normal(i) * std::exp2(int(i % 40) - 20);
  f32[5] = std::numeric_limits<float>::infinity();
  ExpectFloats(SafetensorsType::kF32, f32);
  // A third is not a float: it is rounded.
  std::vector<double> f64(f32.begin(), f32.end());
  for (double& x : f64) x /= 3;
  ExpectFloats(SafetensorsType::kF64, f64);
  std::vector<BFloat16> bf16;
  std::vector<Float16> f16;
  for (const float x : f32) bf16.emplace_back(x), f16.emplace_back(x);
  ExpectFloats(SafetensorsType::kBF16, bf16);
  ExpectFloats(SafetensorsType::kF16, f16);
}

TEST(SafetensorsTest, ReadsWhatPythonWrote) {
  const std::string folder = "tests/fixtures/gpt2/odd_heads/";
  const SafetensorsReader model(folder + "model.safetensors");
  EXPECT_EQ(model.Metadata().at("format"), "pt");
  EXPECT_EQ(model.Names().size(), 2u + 3 * 12 + 2);
  EXPECT_EQ(model.Info("transformer.h.2.mlp.c_fc.weight").shape, (std::vector<int64_t>{30, 77}));

  // The norm of all gradients is the root of their squares: every byte is where it belongs.
  const SafetensorsReader reference(folder + "reference.safetensors");
  double squares = 0;
  for (const std::string& name : model.Names()) {
    const SafetensorsInfo& info = reference.Info("grad/" + name);
    EXPECT_EQ(info.type, SafetensorsType::kF64);
    EXPECT_EQ(info.shape, model.Info(name).shape);
    std::vector<double> gradient(info.NumElements());
    reference.ReadBytes("grad/" + name, 0, std::as_writable_bytes(std::span(gradient)));
    for (const double g : gradient) squares += g * g;
  }
  double norm = 0;
  reference.ReadBytes("batch/grad_norm", 0, std::as_writable_bytes(std::span(&norm, 1)));
  EXPECT_NEAR(std::sqrt(squares), norm, 1e-12);
}

struct BadHeader {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* reason;  // Part of the message.
};

std::vector<BadHeader> BadHeaders() {
  const auto entry = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  const std::string dtype = R"("dtype":"F32",)", shape = R"("shape":[2],)",
                    offsets = R"("data_offsets":[0,8])";
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  return {
      {"NotJson", "{\"a\":", 8, "not JSON at byte"},
      {"NotAnObject", "[1,2,3]", 8, "does not begin with '{'"},
      {"SpaceFirst", " {}", 0, "does not begin with '{'"},
      {"ByteOrderMark", "\xef\xbb\xbf{}", 0, "does not begin with '{'"},
      {"TextBehind", "{}{}", 0, "not JSON"},
      {"ZeroByte", std::string("{}\0 ", 4), 0, "zero byte"},
      {"NotUtf8", "{\"\xff\":1}", 0, "not JSON"},
      {"TensorIsANumber", R"({"a":5})", 0, "'a' is a number"},
      {"TensorIsNull", R"({"a":null})", 0, "'a' is null"},
      {"MetadataIsAList", R"({"__metadata__":[]})", 0, "'__metadata__' is a list"},
      {"MetadataNotText", R"({"__metadata__":{"k":1}})", 0, "metadata 'k' is a number"},
      {"MetadataTwice", R"({"__metadata__":{"k":"1","k":"2"}})", 0, "metadata 'k' appears twice"},
      {"NoDtype", entry(shape + offsets), 8, "'a' has no dtype"},
      {"NoShape", entry(dtype + offsets), 8, "'a' has no shape"},
      {"NoOffsets", entry(dtype + R"("shape":[2])"), 8, "'a' has no data_offsets"},
      {"UnknownField", entry(dtype + shape + R"("stride":[1],)" + offsets), 8,
       "unknown field 'stride'"},
      {"UnknownDtype", entry(R"("dtype":"F31",)" + shape + offsets), 8, "'F31'"},
      {"DtypeIsANumber", entry(R"("dtype":32,)" + shape + offsets), 8, "dtype is a number"},
      {"FieldTwice", entry(dtype + dtype + shape + offsets), 8, "dtype appears twice"},
      {"NegativeDimension", entry(dtype + R"("shape":[-2],)" + offsets), 8, "a negative number"},
      {"FractionalDimension", entry(dtype + R"("shape":[2.0],)" + offsets), 8, "not an integer"},
      {"NestedShape", entry(dtype + R"("shape":[[2]],)" + offsets), 8, "shape holds a list"},
      {"DimensionBeyondInt64", entry(dtype + R"("shape":[18446744073709551615],)" + offsets), 8,
       "too large"},
      {"DimensionBeyondUint64", entry(dtype + R"("shape":[18446744073709551616],)" + offsets), 8,
       "not an integer of 64 bits"},
      {"ProductOverflows", entry(dtype + R"("shape":[4294967296,4294967296],)" + offsets), 8,
       "does not fill"},
      {"ShapeTooSmall", entry(dtype + R"("shape":[1],)" + offsets), 8, "does not fill"},
      {"ShapeTooLarge", entry(dtype + R"("shape":[3],)" + offsets), 8, "does not fill"},
      {"OneOffset", entry(dtype + shape + R"("data_offsets":[8])"), 8, "not [begin, end]"},
      {"ThreeOffsets", entry(dtype + shape + R"("data_offsets":[0,8,8])"), 8, "not [begin, end]"},
      {"OffsetsReversed", entry(dtype + shape + R"("data_offsets":[8,0])"), 8, "not [begin, end]"},
      {"DataCutShort", entry(dtype + shape + offsets), 7, "the file is cut short"},
      {"OffsetsFarOutside",
       entry(dtype + shape + R"("data_offsets":[9223372036854775799,9223372036854775807])"), 8,
       "the file is cut short"},
      {"BytesBehind", entry(dtype + shape + offsets), 9, "1 bytes at the end"},
      {"DataButNoTensor", "{}", 4, "4 bytes at the end"},
      {"Gap", two("[0,4]", "[5,9]"), 9, "after a gap"},
      {"GapAtTheStart", two("[1,5]", "[5,9]"), 9, "after a gap"},
      {"Overlap", two("[0,4]", "[3,7]"), 7, "inside the tensor before it"},
      {"SameBytes", two("[0,4]", "[0,4]"), 4, "inside the tensor before it"},
      {"NameTwice",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
       R"("\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "'a' appears twice"},
  };
}

class SafetensorsBadHeaderTest : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsBadHeaderTest, IsRefusedWithItsReason) {
  const std::string path = TempPath(std::string("bad_") + GetParam().name);
  Spill(path, FileOf(GetParam().header, std::string(GetParam().data_bytes, 'x')));
  const std::string error = CheckpointErrorOf([&] { SafetensorsReader reader(path); });
  EXPECT_EQ(error.find(path + ": "), 0u) << error;
  EXPECT_NE(error.find(GetParam().reason), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(Table, SafetensorsBadHeaderTest, ::testing::ValuesIn(BadHeaders()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SafetensorsTest, RefusesWhatIsNoSafetensorsFile) {
  const std::string path = TempPath("not_one");
  const auto error = [&](const std::string& bytes) {
    Spill(path, bytes);
    return CheckpointErrorOf([&] { SafetensorsReader reader(path); });
  };
  EXPECT_NE(error("").find("0 bytes, too few"), std::string::npos);
  EXPECT_NE(error("seven b").find("7 bytes, too few"), std::string::npos);
  EXPECT_NE(error(std::string(64, '\0')).find("no header"), std::string::npos);
  EXPECT_NE(error("%PDF-1.7 and so on").find("the most is 100000000"), std::string::npos);
  const auto with_length = [](uint64_t length) {
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + "{}";
  };
  EXPECT_NE(error(with_length(3)).find("header of 3 bytes in a file of 10"), std::string::npos);
  EXPECT_NE(error(with_length(100'000'000)).find("in a file of 10"), std::string::npos);
  EXPECT_NE(error(with_length(100'000'001)).find("the most is"), std::string::npos);
  EXPECT_NE(error(with_length(~uint64_t{0})).find("the most is"), std::string::npos);

  const auto open_error = [](const std::string& p) {
    return CheckpointErrorOf([&] { SafetensorsReader reader(p); });
  };
  EXPECT_EQ(open_error("no/such/file"), "no/such/file: cannot open: No such file or directory");
  EXPECT_NE(open_error(::testing::TempDir()).find("not a regular file"), std::string::npos);
  const std::string fifo = TempPath("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0666), 0);
  EXPECT_NE(open_error(fifo).find("not a regular file"), std::string::npos);
  unlink(fifo.c_str());
}

// A name from a hostile file must not fill or garble the terminal.
TEST(SafetensorsTest, MessagesShowNamesShortAndPrintable) {
  const std::string path = TempPath("long_name");
  Spill(path, FileOf("{\"\\u001b[2J" + std::string(100'000, 'n') + "\":5}", ""));
  const std::string error = CheckpointErrorOf([&] { SafetensorsReader reader(path); });
  EXPECT_LT(error.size(), path.size() + 200);
  EXPECT_NE(error.find("'?[2Jnnn"), std::string::npos) << error;
}

TEST(SafetensorsTest, ReaderChecksItsCaller) {
  const std::string path = TempPath("small.safetensors");
  Spill(path, FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                     R"("n":{"dtype":"I32","shape":[1],"data_offsets":[8,12]}}   )",
                     std::string(12, '\0')));
  const SafetensorsReader reader(path);
  EXPECT_TRUE(reader.Contains("a"));
  EXPECT_FALSE(reader.Contains("b"));
  std::vector<std::byte> bytes(8);
  std::vector<float> floats(2);
  EXPECT_EQ(CheckpointErrorOf([&] { reader.Info("b"); }), path + ": has no tensor 'b'");
  EXPECT_NE(CheckpointErrorOf([&] {
              reader.ReadFloat("n", 0, {floats.data(), 1});
            }).find("'n' is I32, want F32"),
            std::string::npos);
  EXPECT_THROW(reader.ReadBytes("a", 1, bytes), std::invalid_argument);
  EXPECT_THROW(reader.ReadBytes("a", -1, {}), std::invalid_argument);
  EXPECT_THROW(reader.ReadBytes("a", 9, {}), std::invalid_argument);
  EXPECT_THROW(reader.ReadBytes("a", std::numeric_limits<int64_t>::max(), bytes),
               std::invalid_argument);
  EXPECT_THROW(reader.ReadFloat("a", 1, floats), std::invalid_argument);
  EXPECT_NO_THROW(reader.ReadBytes("a", 8, {}));

  ASSERT_EQ(truncate(path.c_str(), reader.Info("a").begin + 5), 0);
  EXPECT_NE(CheckpointErrorOf([&] { reader.ReadBytes("a", 0, bytes); }).find("3 bytes early"),
            std::string::npos);
}

TEST(SafetensorsTest, WriterChecksItsCaller) {
  const std::string path = TempPath("refused.safetensors");
  const auto make = [&](std::vector<SafetensorsEntry> entries) {
    SafetensorsWriter writer(path, entries);
  };
  const auto f32 = SafetensorsType::kF32;
  EXPECT_THROW(make({{"a", f32, {1}}, {"a", f32, {2}}}), std::invalid_argument);
  EXPECT_THROW(make({{"a", f32, {-1}}}), std::invalid_argument);
  EXPECT_THROW(make({{"a", f32, {int64_t{1} << 32, int64_t{1} << 32}}}), std::invalid_argument);
  EXPECT_THROW(make({{"a", f32, {int64_t{1} << 60}}, {"b", f32, {int64_t{1} << 60}}}),
               std::invalid_argument);
  EXPECT_THROW(make({{"__metadata__", f32, {1}}}), std::invalid_argument);
  EXPECT_THROW(make({{"\xff", f32, {1}}}), std::invalid_argument);
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "a refused call leaves no file";

  const std::vector<SafetensorsEntry> entries = {{"a", f32, {4}}, {"b", f32, {4}}};
  SafetensorsWriter writer(path, entries);
  const std::vector<float> values(5);
  EXPECT_THROW(writer.WriteBytes("c", 0, Bytes(values)), std::invalid_argument);
  EXPECT_THROW(writer.WriteBytes("a", 0, Bytes(values)), std::invalid_argument);
  const auto part = Bytes(values).first(8);
  writer.WriteBytes("a", 4, part);
  for (const int64_t begin : {0, 4, 8}) {
    const std::span<const std::byte> six = Bytes(values).first(6);
    EXPECT_THROW(writer.WriteBytes("a", begin, six), std::invalid_argument) << begin;
  }
  writer.WriteBytes("b", 0, Bytes(values).first(16));
  EXPECT_THROW(writer.Finish(), std::invalid_argument);  // 8 bytes of `a` are missing.
  EXPECT_NE(CheckpointErrorOf([&] { SafetensorsReader reader(path); }).find("no header"),
            std::string::npos);
  writer.WriteBytes("a", 0, part.first(4));
  writer.WriteBytes("a", 12, part.first(4));
  writer.Finish();
  EXPECT_NO_THROW(SafetensorsReader reader(path));
  EXPECT_THROW(writer.Finish(), std::invalid_argument);
  EXPECT_THROW(writer.WriteBytes("a", 0, part), std::invalid_argument);
}

TEST(SafetensorsTest, ThreadsWriteTheirOwnRanges) {
  const std::string path = TempPath("threads.safetensors");
  constexpr int kThreads = 4;
  constexpr int64_t kPieces = 64, kPiece = 1000;
  const std::vector<SafetensorsEntry> entries = {
      {"x", SafetensorsType::kI32, {kThreads * kPieces * kPiece}}};
  SafetensorsWriter writer(path, entries);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&writer, t] {
      for (int64_t p = t; p < kThreads * kPieces; p += kThreads) {
        std::vector<int32_t> piece(kPiece);
        for (int64_t i = 0; i < kPiece; ++i) piece[i] = static_cast<int32_t>(p * kPiece + i);
        writer.WriteBytes("x", p * kPiece * 4, Bytes(piece));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  writer.Finish();
  const auto bytes = ReadAll(SafetensorsReader(path), "x");
  for (int32_t i = 0; i < kThreads * kPieces * kPiece; ++i) {
    int32_t value;
    std::memcpy(&value, bytes.data() + size_t{4} * i, 4);
    ASSERT_EQ(value, i);
  }
}

TEST(SafetensorsTest, WriterNamesWhatTheMachineRefused) {
  const std::vector<SafetensorsEntry> entries = {{"a", SafetensorsType::kU8, {1 << 20}}};
  const auto error = [&](const std::string& path) {
    return CheckpointErrorOf([&] { SafetensorsWriter writer(path, entries); });
  };
  EXPECT_EQ(error("no/such/folder/file"),
            "no/such/folder/file: cannot create: No such file or directory");
  EXPECT_EQ(error("/dev/full"), "/dev/full: cannot write: No space left on device");

  // A limit on file sizes fails like a full disk: space refused, or a short write, then an error.
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1 << 16, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string path = TempPath("limited.safetensors");
  const std::string space = error(path);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(space, path + ": cannot take the space for: File too large");

  SafetensorsWriter writer(path, entries);
  const std::vector<uint8_t> values(1 << 20);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string short_write =
      CheckpointErrorOf([&] { writer.WriteBytes("a", 0, Bytes(values)); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(short_write, path + ": cannot write: File too large");
  EXPECT_EQ(CheckpointErrorOf([&] { writer.Finish(); }), path + ": an earlier write failed");
}

// Changes a valid file a few bytes at a time, mostly in the header. Every result is refused with a
// CheckpointError or reads as tensors that tile the file.
TEST(SafetensorsTest, SurvivesMutatedFiles) {
  const std::string valid = TempPath("valid.safetensors");
  const std::vector<SafetensorsEntry> entries = {{"wte", SafetensorsType::kF32, {3, 2}},
                                                 {"h.0.b", SafetensorsType::kF16, {4}},
                                                 {"h.1.b", SafetensorsType::kBF16, {0, 4}},
                                                 {"n", SafetensorsType::kI64, {}}};
  {
    SafetensorsWriter writer(valid, entries, {{"format", "pt"}});
    for (const SafetensorsEntry& entry : entries) {
      writer.WriteBytes(entry.name, 0,
                        Bytes(std::vector<uint8_t>(writer.Info(entry.name).bytes(), 0x41)));
    }
    writer.Finish();
  }
  const std::string original = Slurp(valid);
  const size_t header_end = SafetensorsReader(valid).Info("n").begin;
  const std::vector<std::string> tokens = {"{",
                                           "}",
                                           "[",
                                           "]",
                                           ",",
                                           ":",
                                           "\"",
                                           "null",
                                           "true",
                                           "-1",
                                           "1e9",
                                           "0.5",
                                           "[]",
                                           "{}",
                                           "\\",
                                           "\\u00",
                                           " ",
                                           "9223372036854775807",
                                           "18446744073709551616",
                                           "0",
                                           "\"F64\"",
                                           "\"dtype\"",
                                           "\"shape\":[1]",
                                           "\"wte\":",
                                           std::string(1, '\0'),
                                           "\xff"};
  constexpr uint64_t kSeed = 20231;
  constexpr int kFiles = 4000;
  // A file in memory: thousands on a disk would take most of the time.
  const UniqueFd memory(memfd_create("mutated", MFD_CLOEXEC));
  const std::string path = "/proc/self/fd/" + std::to_string(memory.get());
  int refused = 0, accepted = 0;
  for (int file = 0; file < kFiles; ++file) {
    const RandomStream random(kSeed, "mutations", file);
    uint64_t draw = 0;
    const auto below = [&](uint64_t n) { return random.Below(draw++, n); };
    std::string bytes = original;
    for (uint64_t changes = 1 + below(3); changes > 0; --changes) {
      // In the header 7 times of 8, else anywhere, length word and data included.
      const size_t at =
          below(8) ? 8 + below(std::min(header_end, bytes.size()) - 8) : below(bytes.size());
      switch (below(6)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 1:
          bytes[at] = static_cast<char>('0' + below(10));
          break;
        case 2:
          bytes.insert(at, tokens[below(tokens.size())]);
          break;
        case 3:
          bytes.erase(at, 1 + below(4));
          break;
        case 4:
          bytes.replace(at, 1, tokens[below(tokens.size())]);
          break;
        case 5:
          bytes.insert(at, bytes.substr(8 + below(bytes.size() - 8), below(40)));
          break;
      }
      bytes.resize(std::max<size_t>(bytes.size(), 16));
    }
    // Half of the files get a length word that fits, so that the parser sees the rest.
    const size_t header = bytes.size() - std::min(bytes.size() - 8, original.size() - header_end);
    const uint64_t length = header - 8;
    if (below(2)) std::memcpy(bytes.data(), &length, sizeof(length));
    ASSERT_EQ(ftruncate(memory.get(), 0), 0);
    ASSERT_EQ(pwrite(memory.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    try {
      const SafetensorsReader reader(path);
      ++accepted;
      int64_t total = 0;
      for (const std::string& name : reader.Names()) {
        ASSERT_LE(reader.Info(name).end, reader.file_bytes());
        total += static_cast<int64_t>(ReadAll(reader, name).size());
      }
      uint64_t kept = 0;
      std::memcpy(&kept, bytes.data(), sizeof(kept));
      ASSERT_EQ(total, static_cast<int64_t>(bytes.size() - 8 - kept)) << "file " << file;
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  // Neither the mutations nor the reader are trivial.
  EXPECT_GT(accepted, kFiles / 100) << "of " << kFiles;
  EXPECT_GT(refused, kFiles / 2) << "of " << kFiles;
  std::printf("%d accepted, %d refused\n", accepted, refused);
}

}  // namespace
}  // namespace fsdp
