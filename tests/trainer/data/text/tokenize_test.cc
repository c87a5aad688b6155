#include "trainer/data/text/tokenize.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/hard_text.h"
#include "trainer/core/errors.h"
#include "trainer/data/atomic_output.h"
#include "trainer/data/data_files.h"
#include "trainer/data/text/token_cache.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/data/tokens/token_file.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

const std::string kFolder = "tests/fixtures/tokenizers/";

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class TokenizeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) /
           ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    // A long document of words and hard stretches, some short ones, and lines.
    const std::string hard = testing::HardText(3, 60'000);
    std::string text;
    for (size_t at = 0; at < 60'000; at += 300) {
      text += hard.substr(at, 300) + " and some plain words between them ";
    }
    std::replace(text.begin(), text.end(), '\0', '\1');  // Files with zero bytes are no text.
    Write("a.txt", text);
    Write("b.txt", "a short one");
    std::string lines;
    for (int i = 0; i < 300; ++i) {
      const std::string body =
          i % 7 == 0 ? "" : "line " + std::to_string(i * i) + " of\ntext \u00e9";
      lines += nlohmann::json{{"id", i}, {"text", body}, {"other", "x"}}.dump() + "\n";
    }
    lines_ = lines;
    Write("c.jsonl",
          lines + "\n" + lines.substr(0, lines.find('\n')));  // A blank line, no last end.
  }

  std::string Write(const std::string& name, const std::string& contents) {
    std::ofstream(dir_ / name, std::ios::binary) << contents;
    return dir_ / name;
  }

  TokenizeOptions Options(const std::string& out) {
    TokenizeOptions options;
    options.files = {dir_ / "a.txt", dir_ / "b.txt", dir_ / "c.jsonl"};
    options.directory = dir_ / out;
    options.shard_tokens = 7000;
    options.chunk_bytes = 2000;
    options.threads = 2;
    options.allow_invalid_text = true;  // Hard stretches.
    return options;
  }

  // The shards' bytes, by name; tokens.json too.
  std::map<std::string, std::string> Contents(const std::string& out) {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::directory_iterator(dir_ / out)) {
      all[entry.path().filename()] = ReadFile(entry.path());
    }
    return all;
  }

  std::string ErrorOf(const std::function<void()>& call) {
    try {
      call();
    } catch (const DataError& error) {
      std::string what = error.what();
      for (size_t at; (at = what.find(dir_.string() + "/")) != std::string::npos;) {
        what.erase(at, dir_.string().size() + 1);
      }
      return what;
    }
    return "no error";
  }

  fs::path dir_;
  std::string lines_;
};

TEST_F(TokenizeTest, ShardsAreTheDocumentsEndToEnd) {
  for (const char* name : {"gpt2.json", "llama3.json", "llama2.json", "sp_bpe.model", "bytes"}) {
    const auto tokenizer =
        OpenTokenizer(std::string(name) == "bytes" ? name : kFolder + std::string(name));
    std::vector<int32_t> want;
    int64_t documents = 0;
    const auto add = [&](const std::string& text) {
      if (text.empty()) return;
      if (tokenizer->bos()) want.push_back(*tokenizer->bos());
      const std::vector<int32_t> ids = tokenizer->Encode(text);
      want.insert(want.end(), ids.begin(), ids.end());
      if (tokenizer->eot()) want.push_back(*tokenizer->eot());
      ++documents;
    };
    add(ReadFile(dir_ / "a.txt"));
    add(ReadFile(dir_ / "b.txt"));
    std::istringstream lines(lines_);
    for (std::string line; std::getline(lines, line);) add(nlohmann::json::parse(line)["text"]);

    const TokenizeOptions options = Options(name);
    const TokenManifest manifest = Tokenize(*tokenizer, name, options);
    EXPECT_EQ(manifest.tokens, std::ssize(want));
    EXPECT_EQ(manifest.documents, documents);
    EXPECT_EQ(manifest.eot, tokenizer->eot());
    EXPECT_EQ(manifest.vocab_size, tokenizer->vocab_size());
    EXPECT_EQ(ReadTokenManifest(options.directory), manifest);
    ASSERT_EQ(manifest.shards.size(), static_cast<size_t>((want.size() - 1) / 7000 + 1));
    const TokenFileSource source(std::vector<std::string>{options.directory});
    std::vector<int32_t> got(static_cast<size_t>(source.size()));
    source.Read(0, got);
    EXPECT_EQ(got, want) << name;
    EXPECT_EQ(source.eot(), tokenizer->eot());
  }
}

TEST_F(TokenizeTest, ThreadsAndChunksChangeNothing) {
  const auto tokenizer = OpenTokenizer(kFolder + "qwen2.json");
  TokenizeOptions options = Options("one");
  options.threads = 1;
  Tokenize(*tokenizer, "t", options);
  const auto want = Contents("one");
  for (const int threads : {2, 3, 8}) {
    for (const int64_t chunk : {int64_t{1}, int64_t{333}, int64_t{2000}, int64_t{1} << 30}) {
      const std::string out = std::to_string(threads) + "_" + std::to_string(chunk);
      options = Options(out);
      options.threads = threads;
      options.chunk_bytes = chunk;
      Tokenize(*tokenizer, "t", options);
      EXPECT_EQ(Contents(out), want) << out;
    }
  }
}

TEST_F(TokenizeTest, GoesOnWhereItStopped) {
  const auto tokenizer = OpenTokenizer(kFolder + "gpt2.json");
  Tokenize(*tokenizer, "t", Options("whole"));
  const auto want = Contents("whole");
  int resumed = 0, kept = 0;
  for (int every = 1; every <= 40; every += 3) {
    const std::string out = "every_" + std::to_string(every);
    TokenizeOptions options = Options(out);
    bool done = false;
    for (int call = 0; call < 1000 && !done; ++call) {
      int left = every + call;  // At least as far as the next shard, some time.
      options.stop = [&] { return --left == 0; };
      options.progress = [&](const TokenizeProgress& p) { resumed += p.resumed; };
      try {
        Tokenize(*tokenizer, "t", options);
        done = true;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kStopped) << error.what();
        EXPECT_FALSE(ReadTokenManifest(options.directory));
        for (const auto& [name, bytes] : Contents(out)) {
          EXPECT_FALSE(name.ends_with("-tmp")) << name;
          if (!name.ends_with(".bin")) continue;
          EXPECT_EQ(bytes, want.at(name));
          ++kept;
        }
      }
    }
    ASSERT_TRUE(done);
    EXPECT_EQ(Contents(out), want);
  }
  EXPECT_GT(resumed, 10);
  EXPECT_GT(kept, 10);
}

TEST_F(TokenizeTest, DoneIsDoneAndOthersAreRefused) {
  const auto tokenizer = OpenTokenizer(kFolder + "gpt2.json");
  const TokenManifest manifest = Tokenize(*tokenizer, "gpt2", Options("out"));
  const auto before = Contents("out");
  TokenizeOptions again = Options("out");
  int calls = 0;
  again.progress = [&](const TokenizeProgress&) { ++calls; };
  EXPECT_EQ(Tokenize(*tokenizer, "gpt2", again), manifest);
  EXPECT_EQ(calls, 0);
  const std::string cure =
      "tokenize: out: holds the tokens of another tokenizer (gpt2) or of other files, or with "
      "other options, or of an older build: name another directory, or remove this one";
  EXPECT_EQ(ErrorOf([&] { Tokenize(*OpenTokenizer(kFolder + "qwen2.json"), "q", again); }), cure);
  TokenizeOptions fewer = again;
  fewer.files.pop_back();
  EXPECT_EQ(ErrorOf([&] { Tokenize(*tokenizer, "gpt2", fewer); }), cure);
  TokenizeOptions column = again;
  column.column = "other";
  EXPECT_EQ(ErrorOf([&] { Tokenize(*tokenizer, "gpt2", column); }), cure);
  TokenizeOptions eot = again;
  eot.eot = 7;
  EXPECT_EQ(ErrorOf([&] { Tokenize(*tokenizer, "gpt2", eot); }), cure);
  EXPECT_EQ(Contents("out"), before);
  std::string damaged = before.at("tokens_00001.bin");
  damaged[2000] = static_cast<char>(damaged[2000] ^ 1);
  Write("out/tokens_00001.bin", damaged);
  EXPECT_EQ(ErrorOf([&] { Tokenize(*tokenizer, "gpt2", again); }),
            "tokenize: out/tokens_00001.bin: is not as it was written: remove the directory and "
            "start again");
  fs::resize_file(dir_ / "out" / "tokens_00001.bin", 3);
  EXPECT_EQ(ErrorOf([&] { Tokenize(*tokenizer, "gpt2", again); }),
            "tokenize: out/tokens_00001.bin: is not as it was written: remove the directory and "
            "start again");
  {
    FileLock lock((dir_ / "out" / ".lock").string());
    ASSERT_TRUE(lock.Try());
    EXPECT_EQ(ErrorOf([&] { Tokenize(*tokenizer, "gpt2", again); }),
              "tokenize: out: another process writes tokens there");
  }

  TokenizeOptions begun = Options("begun");
  begun.stop = [this] { return fs::exists(dir_ / "begun" / "progress.json"); };
  EXPECT_THROW(Tokenize(*tokenizer, "gpt2", begun), Error);
  begun.shard_tokens = 6999;
  EXPECT_EQ(ErrorOf([&] { Tokenize(*tokenizer, "gpt2", begun); }),
            "tokenize: begun: has begun to hold other tokens (other tokenizer, files or options): "
            "name another directory, or remove this one");
  Write("begun/progress.json", "{\"key\": 1");
  EXPECT_EQ(ErrorOf([&] { Tokenize(*tokenizer, "gpt2", Options("begun")); }),
            "tokenize: begun/progress.json: is damaged: remove the directory and start again");
}

TEST_F(TokenizeTest, BadInputNamesItsPlace) {
  const auto tokenizer = OpenTokenizer(kFolder + "gpt2.json");
  const auto error_of = [&](const std::string& name, const std::string& contents) {
    static int n = 0;
    TokenizeOptions options = Options("bad_" + std::to_string(n++));
    options.files = {Write(name, contents)};
    return ErrorOf([&] { Tokenize(*tokenizer, "t", options); });
  };
  EXPECT_EQ(error_of("x.jsonl", lines_ + "{\"text\": \n"),
            "tokenize: x.jsonl, line 301: column 10: want a value, got the end of the text");
  EXPECT_EQ(error_of("x.jsonl", "{\"text\": \"a\"}\n\n[1]\n"),
            "tokenize: x.jsonl, line 3: is no JSON object");
  EXPECT_EQ(error_of("x.jsonl", "{\"text\": \"a\", \"x\": NaN}\n{\"text\": NaN}\n"),
            "tokenize: x.jsonl, line 2: column 10: NaN is no number of JSON, and `text` is read");
  EXPECT_EQ(error_of("x.jsonl", "{\"txt\": \"a\"}\n"),
            "tokenize: x.jsonl, line 1: has no field `text`: name it with --column");
  EXPECT_EQ(error_of("x.jsonl", "{\"text\": 5}\n"),
            "tokenize: x.jsonl, line 1: its field `text` is no text");
  EXPECT_EQ(error_of("x.jsonl", "{\"text\": \"\"}\n"), "tokenize: x.jsonl: no text, so no tokens");
  EXPECT_EQ(error_of("x.txt", "").rfind("data: x.txt: is empty", 0), 0u);
  TokenizeOptions options = Options("bad");
  options.eot = 5000;
  EXPECT_EQ(ErrorOf([&] { Tokenize(*tokenizer, "t", options); }),
            "tokenize: end-of-text token 5000 is none of the 1001 tokens of t");
}

// Exit code of `body` in a process of its own.
int InChild(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(TokenizeTest, AFullDiskLeavesWholeShardsAlone) {
  const auto tokenizer = OpenTokenizer(kFolder + "gpt2.json");
  Tokenize(*tokenizer, "t", Options("whole"));
  TokenizeOptions options = Options("full");
  const int code = InChild([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{2000, 2000};  // Bytes: less than a shard.
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      Tokenize(*tokenizer, "t", options);
    } catch (const DataError& error) {
      const std::string what = error.what();
      return what.find("full/tokens_00000.bin: cannot be written: File too large") !=
                     std::string::npos
                 ? 4
                 : 5;
    }
    return 0;
  });
  EXPECT_EQ(code, 4);
  for (const auto& [name, bytes] : Contents("full")) {
    EXPECT_TRUE(name == ".lock") << name;
  }
  Tokenize(*tokenizer, "t", options);
  EXPECT_EQ(Contents("full"), Contents("whole"));
}

TEST_F(TokenizeTest, KilledProcessesLoseNoWholeShard) {
  const auto tokenizer = OpenTokenizer(kFolder + "gpt2.json");
  Tokenize(*tokenizer, "t", Options("whole"));
  const auto want = Contents("whole");
  for (int chunks = 1; chunks <= 41; chunks += 5) {
    const std::string out = "killed_" + std::to_string(chunks);
    EXPECT_EQ(InChild([&] {
                TokenizeOptions options = Options(out);
                int left = chunks;
                options.progress = [&](const TokenizeProgress&) {
                  if (--left == 0) ::raise(SIGKILL);
                };
                Tokenize(*tokenizer, "t", options);
                return 0;
              }),
              128 + SIGKILL);
    Tokenize(*tokenizer, "t", Options(out));
    EXPECT_EQ(Contents(out), want) << chunks;
  }
}

// As many threads: each has an open file of its own to lock, as processes have.
TEST_F(TokenizeTest, ManyAskOfOneCacheAndOneWrites) {
  const auto tokenizer = OpenTokenizer(kFolder + "gpt2.json");
  const std::string cache = dir_ / "cache";
  std::atomic<int> wrote = 0, good = 0;
  {
    std::vector<std::jthread> askers;
    for (int i = 0; i < 6; ++i) {
      askers.emplace_back([&] {
        const auto source = OpenTextTokens(
            cache, tokenizer, "t", Options(""),
            [&](const std::string& line) { wrote += line.rfind("tokenising", 0) == 0; });
        good += source->size() > 0 && source->eot() == 1000;
      });
    }
  }
  EXPECT_EQ(wrote, 1);
  EXPECT_EQ(good, 6);
  const auto source = OpenTextTokens(cache, tokenizer, "t", Options(""), nullptr);
  EXPECT_EQ(source->Files().size(), 3u);
  EXPECT_EQ(source->Files()[0].path, dir_ / "a.txt");
  EXPECT_EQ(source->Describe(), (dir_ / "a.txt").string() + " and 2 more files");
  // Another text, and the same text under another name, are told apart by what they hold.
  TokenizeOptions other = Options("");
  other.files = {dir_ / "b.txt"};
  EXPECT_LT(OpenTextTokens(cache, tokenizer, "t", other, nullptr)->size(), 20);
  const auto sets_now = [&] {
    return std::distance(fs::directory_iterator(cache), fs::directory_iterator());
  };
  const auto sets = sets_now();
  fs::copy_file(dir_ / "b.txt", dir_ / "copy.txt");
  other.files = {dir_ / "copy.txt"};
  OpenTextTokens(cache, tokenizer, "t", other, nullptr);
  EXPECT_EQ(sets_now(), sets);
}

TEST_F(TokenizeTest, AChangeToAnyFileNamesOtherTokens) {
  const auto tokenizer = OpenTokenizer("bytes");
  TokenizeOptions options = Options("");
  const auto key = [&] { return TokensKey(*tokenizer, options, DescribeInputs(options.files)); };
  const uint64_t before = key();
  fs::last_write_time(dir_ / "b.txt", fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(key(), before);
  Write("b.txt", "a short twO");
  EXPECT_NE(key(), before);
  // One that is hashed here and there is told apart by its time.
  options.files = {dir_ / "large.txt"};
  Write("large.txt", "x");
  fs::resize_file(dir_ / "large.txt", kHashedWhole + 1);
  const uint64_t large = key();
  EXPECT_EQ(key(), large);
  fs::last_write_time(dir_ / "large.txt", fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_NE(key(), large);
}

// Whatever the chunks and however often it is stopped.
TEST_F(TokenizeTest, CountsWhatItLeavesOutAndWhatIsNoUtf8) {
  for (const char* name : {"gpt2.json", "bytes"}) {
    const auto tokenizer = OpenTokenizer(name == std::string("bytes") ? name : kFolder + name);
    const std::string t = name;
    TokenizeOptions plain = Options("clean_" + t);
    plain.files = {dir_ / "b.txt", dir_ / "c.jsonl"};
    const TokenManifest clean = Tokenize(*tokenizer, t, plain);
    EXPECT_EQ(clean.empty_documents, 44);
    EXPECT_EQ(clean.invalid_utf8, 0);
    EXPECT_EQ(Remarks(clean), "44 empty documents left out");

    std::string text = ReadFile(dir_ / "b.txt");
    for (int i = 0; i < 3000; ++i) text += i % 100 == 7 ? "\xe2\x82 \xff" : " caf\u00e9";
    Write("broken.txt", text);
    Write("broken.jsonl", lines_ + "{\"text\": \"a\xc3\"}\n");
    TokenizeOptions options = Options("broken_" + t);
    options.files = {dir_ / "b.txt", dir_ / "broken.txt", dir_ / "broken.jsonl"};
    const TokenManifest want = Tokenize(*tokenizer, t, options);
    EXPECT_EQ(want.invalid_utf8, 61);
    EXPECT_EQ(want.first_invalid_utf8, (dir_ / "broken.txt").string() + ", byte 53");
    EXPECT_EQ(want.empty_documents, 43);
    EXPECT_EQ(want.documents, 2 + 300 - 43 + 1);
    EXPECT_EQ(Remarks(want),
              std::string("43 empty documents left out; 61 places that are no UTF-8, ") +
                  (t == "bytes" ? "kept as bytes" : "read as U+FFFD") + ": the first is " +
                  want.first_invalid_utf8);
    EXPECT_EQ(ReadTokenManifest(options.directory), want);
    const auto contents = Contents("broken_" + t);
    for (int64_t chunk = 200; chunk < 3000; chunk += 900) {
      options.directory = dir_ / (t + std::to_string(chunk));
      options.chunk_bytes = chunk;
      options.shard_tokens = 1000;
      int left = 0;
      options.stop = [&] { return --left < 0; };
      TokenManifest got;
      for (int round = 1; got.tokens == 0; ++round) {
        left = 10 * round;
        try {
          got = Tokenize(*tokenizer, t, options);
        } catch (const Error& error) {
          ASSERT_EQ(error.code(), ExitCode::kStopped) << error.what();
        }
      }
      got.shards = want.shards;
      EXPECT_EQ(got, want) << chunk;
    }
  }
}

// Whether it is tokenised now, has been in part, or is in the cache.
TEST_F(TokenizeTest, RefusesWhatIsNoTextAtAnyTime) {
  const auto tokenizer = OpenTokenizer("bytes");
  TokenizeOptions options = Options("out");
  options.files = {Write("good.txt", std::string(9000, 'a')), Write("latin.txt", "caf\xe9"),
                   Write("last.txt", std::string(20000, 'b'))};
  options.shard_tokens = 4000;
  const std::string cache = dir_ / "cache";
  const auto tokenize = [&](bool allow) {
    options.allow_invalid_text = allow;
    return ErrorOf([&] { Tokenize(*tokenizer, "t", options); });
  };
  const auto open = [&](bool allow) {
    options.allow_invalid_text = allow;
    return ErrorOf([&] { OpenTextTokens(cache, tokenizer, "t", options, nullptr); });
  };
  const std::string refusal = "data: latin.txt: 1 of 4 places is no UTF-8, the first at byte 3: ";
  EXPECT_EQ(tokenize(false).substr(0, refusal.size()), refusal);
  options.progress = [](const TokenizeProgress& p) {
    if (p.share > 0.6) throw DataError("enough");
  };
  EXPECT_EQ(tokenize(true), "enough");
  options.progress = nullptr;
  ASSERT_TRUE(fs::exists(dir_ / "out" / "progress.json"));
  EXPECT_EQ(tokenize(false).substr(0, refusal.size()), refusal);  // Not read a second time.
  EXPECT_EQ(tokenize(true), "no error");
  EXPECT_EQ(tokenize(false).substr(0, refusal.size()), refusal);
  EXPECT_EQ(tokenize(true), "no error");
  EXPECT_EQ(open(false).substr(0, refusal.size()), refusal);
  EXPECT_EQ(open(true), "no error");
  EXPECT_EQ(open(false).substr(0, refusal.size()), refusal);

  // Before anything is written, whatever is allowed.
  options.files.push_back(Write("zero.txt", std::string("a\0", 2)));
  options.directory = dir_ / "none";
  EXPECT_EQ(tokenize(true).find("data: zero.txt: is no text (byte 1 is zero)"), 0);
  EXPECT_FALSE(fs::exists(dir_ / "none" / "tokens_00000.bin"));
}

TEST_F(TokenizeTest, ADirectoryIsItsFiles) {
  const auto tokenizer = OpenTokenizer("bytes");
  fs::create_directory(dir_ / "texts");
  Write("texts/b.txt", "two");
  Write("texts/a.jsonl", "{\"text\": \"one\"}\n");
  Write("texts/c", "x");
  TokenizeOptions options = Options("out");
  options.files = {dir_ / "texts"};
  const TokenManifest manifest = Tokenize(*tokenizer, "bytes", options);
  ASSERT_EQ(manifest.inputs.size(), 3u);
  EXPECT_EQ(manifest.inputs[0].path, dir_ / "texts" / "a.jsonl");
  EXPECT_EQ(manifest.tokens, 7);
}

TEST_F(TokenizeTest, AFileThatChangesMeanwhileIsNamed) {
  const auto tokenizer = OpenTokenizer(kFolder + "gpt2.json");
  const auto error = [&](double from_share, const std::function<void()>& change) {
    SetUp();
    TokenizeOptions options = Options("out");
    bool changed = false;
    options.progress = [&](const TokenizeProgress& p) {
      if (p.share <= from_share || changed) return;
      changed = true;
      change();
    };
    const std::string what = ErrorOf([&] { Tokenize(*tokenizer, "t", options); });
    EXPECT_FALSE(ReadTokenManifest(dir_ / "out").has_value());
    return what;
  };
  const std::string shorter = ": has become shorter while it was read, from ";
  EXPECT_EQ(error(0, [&] { fs::resize_file(dir_ / "a.txt", 5000); }).find(shorter), 11u);
  SetUp();
  const double before_lines =
      1 - static_cast<double>(fs::file_size(dir_ / "c.jsonl")) /
              static_cast<double>(fs::file_size(dir_ / "a.txt") + fs::file_size(dir_ / "b.txt") +
                                  fs::file_size(dir_ / "c.jsonl"));
  // Met while it is read, or afterwards.
  EXPECT_NE(
      error(before_lines, [&] { fs::resize_file(dir_ / "c.jsonl", 100); }).find(": c.jsonl: has "),
      std::string::npos);
  // Not yet opened, and as long as before.
  EXPECT_EQ(error(0, [&] { Write("b.txt", "a short onE"); }),
            "tokenize: b.txt: has changed while it was read: remove out and start again");
}

// A byte a token. Calls `change` while it encodes its first part, of which it then has read
// nothing.
class ChangesMeanwhile : public Tokenizer {
 public:
  explicit ChangesMeanwhile(std::function<void()> change) : change_(std::move(change)) {}

  int32_t vocab_size() const override { return kByteVocabSize; }
  uint64_t hash() const override { return 1; }
  bool EncodePart(std::string_view text, size_t end, bool first,
                  std::vector<int32_t>& out) const override {
    const std::string before(text);
    if (!changed_.exchange(true)) change_();
    if (text != before) throw DataError("the text has changed under its tokenizer");
    return bytes_->EncodePart(text, end, first, out);
  }
  PlacedIds EncodePlaced(std::string_view text) const override {
    return bytes_->EncodePlaced(text);
  }
  size_t PartEnd(std::string_view text, size_t target) const override {
    return bytes_->PartEnd(text, target);
  }
  std::string_view Piece(int32_t id) const override { return bytes_->Piece(id); }

 private:
  std::function<void()> change_;
  mutable std::atomic<bool> changed_ = false;
  std::shared_ptr<const Tokenizer> bytes_ = ByteTokenizer();
};

TEST_F(TokenizeTest, ATextDoesNotChangeUnderItsTokenizer) {
  for (const std::string name : {"a.txt", "c.jsonl"}) {
    SetUp();
    TokenizeOptions options = Options("out");
    options.files = {dir_ / name};
    const ChangesMeanwhile tokenizer([&] { fs::resize_file(dir_ / name, 100); });
    const std::string error = ErrorOf([&] { Tokenize(tokenizer, "t", options); });
    EXPECT_TRUE(
        error.starts_with("data: " + name + ": has become shorter while it was read, from "))
        << error;
  }
}

TEST_F(TokenizeTest, ADamagedCacheSaysWhatToDelete) {
  const auto tokenizer = OpenTokenizer(kFolder + "gpt2.json");
  const std::string cache = dir_ / "cache";
  const auto open = [&] { OpenTextTokens(cache, tokenizer, "t", Options(""), nullptr); };
  open();
  std::string set;
  for (const auto& entry : fs::directory_iterator(cache)) {
    if (entry.is_directory()) set = entry.path().filename();
  }
  const std::string shard = cache + "/" + set + "/tokens_00001.bin", whole = ReadFile(shard);
  const std::string begin = "data: the tokens of a.txt and 2 more files that are kept in cache/" +
                            set +
                            " are damaged: delete that directory, and they are made again. What is "
                            "wrong: data: cache/" +
                            set + "/";
  const auto expect = [&](const std::string& what) {
    EXPECT_EQ(ErrorOf(open).substr(0, begin.size() + what.size()), begin + what);
  };
  std::mt19937_64 random(5);
  for (int i = 0; i < 50; ++i) {
    std::string damaged = whole;
    const size_t bit = random() % (8 * whole.size());
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    std::ofstream(shard, std::ios::binary) << damaged;
    expect("tokens_00001.bin: ");
  }
  std::ofstream(shard, std::ios::binary) << whole.substr(0, whole.size() / 2);
  expect("tokens_00001.bin: its header says");
  fs::remove(shard);
  expect("tokens_00001.bin: does not exist");
  std::ofstream(cache + "/" + set + "/tokens.json") << "{";
  expect("tokens.json: no JSON");
  fs::remove_all(cache + "/" + set);
  EXPECT_EQ(ErrorOf(open), "no error");
}

TEST_F(TokenizeTest, WaitingForAnotherCanBeStopped) {
  const auto tokenizer = OpenTokenizer(kFolder + "gpt2.json");
  TokenizeOptions options = Options("");
  const std::string cache = dir_ / "cache";
  fs::create_directories(cache);
  char key[17];
  std::snprintf(key, sizeof(key), "%016llx",
                static_cast<unsigned long long>(
                    TokensKey(*tokenizer, options, DescribeInputs(options.files))));
  FileLock lock(cache + "/" + key + ".lock");
  ASSERT_TRUE(lock.Try());
  int asked = 0;
  std::vector<std::string> said;
  options.stop = [&] { return ++asked == 3; };
  EXPECT_THROW(OpenTextTokens(cache, tokenizer, "t", options,
                              [&](const std::string& line) { said.push_back(line); }),
               Error);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].rfind("waiting for another process", 0), 0u);

  // One that has stopped to do anything is given up, but not before.
  asked = 0;
  options.stop = [&] {
    if (++asked <= 12) lock.Touch();  // Asked every 50 ms, so for longer than the silence.
    return false;
  };
  options.silence_s = 0.3;
  EXPECT_THROW(OpenTextTokens(cache, tokenizer, "t", options, nullptr), CommError);
  EXPECT_GT(asked, 12);
}

}  // namespace
}  // namespace fsdp
