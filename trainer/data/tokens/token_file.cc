#include "trainer/data/tokens/token_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "trainer/core/errors.h"
#include "trainer/core/units.h"
#include "trainer/data/text/file_format.h"
#include "trainer/data/tokens/token_manifest.h"

namespace fsdp {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are read as they lie");

constexpr int32_t kGpt2Magic = 20240520, kGpt2Version = 1;
constexpr int32_t kLlama3Magic = 20240801, kLlama3Version = 7;
constexpr std::string_view kNpyMagic = "\x93NUMPY";

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw DataError("data: " + path + ": " + what);
}

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename Visit>
auto WithType(TokenDType dtype, const Visit& visit) {
  switch (dtype) {
    case TokenDType::kUint16:
      return visit(uint16_t{});
    case TokenDType::kUint32:
      return visit(uint32_t{});
    case TokenDType::kInt32:
      return visit(int32_t{});
    case TokenDType::kInt64:
      break;
  }
  return visit(int64_t{});
}

// The dictionary of a .npy header: a Python literal with these three keys (NEP 1).
class NpyHeader {
 public:
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;

  // False where the text is anything else.
  bool Read(std::string_view text) {
    text_ = text;
    if (!Take('{')) return false;
    bool seen[3] = {};
    while (!Take('}')) {
      std::string key;
      if (!String(key) || !Take(':')) return false;
      const int which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : 3;
      if (which == 3 || std::exchange(seen[which], true)) return false;
      if (which == 0 ? !String(descr) : which == 1 ? !Bool() : !Tuple()) return false;
      if (!Take(',') && Peek() != '}') return false;
    }
    return Peek() == '\0' && seen[0] && seen[1] && seen[2];
  }

 private:
  char Peek() {
    while (!text_.empty() && std::isspace(static_cast<unsigned char>(text_[0]))) {
      text_.remove_prefix(1);
    }
    return text_.empty() ? '\0' : text_[0];
  }
  bool Take(char c) {
    if (Peek() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool String(std::string& out) {
    const char quote = Peek();
    if (quote != '\'' && quote != '"') return false;
    const size_t end = text_.find(quote, 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return true;
  }
  bool Bool() {
    Peek();
    for (const std::string_view word : {"False", "True"}) {
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      fortran_order = word == "True";
      return true;
    }
    return false;
  }
  bool Tuple() {
    if (!Take('(')) return false;
    while (!Take(')')) {
      Peek();
      int64_t value = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
      if (error != std::errc() || value < 0) return false;
      text_.remove_prefix(static_cast<size_t>(end - text_.data()));
      shape.push_back(value);
      if (!Take(',') && Peek() != ')') return false;
    }
    return true;
  }

  std::string_view text_;
};

}  // namespace

std::string LlmcHeader(TokenDType dtype, int64_t tokens) {
  const bool wide = dtype == TokenDType::kUint32;
  if ((!wide && dtype != TokenDType::kUint16) || tokens < 0 ||
      tokens > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument("[LlmcHeader] " + std::to_string(tokens) + " tokens of " +
                                std::string(Name(dtype)) +
                                ", want less than 2^31 of uint16 or uint32");
  }
  const int32_t words[] = {wide ? kLlama3Magic : kGpt2Magic, wide ? kLlama3Version : kGpt2Version,
                           static_cast<int32_t>(tokens)};
  std::string header(kLlmcHeaderBytes, '\0');
  std::memcpy(header.data(), words, sizeof(words));
  return header;
}

TokenFile::TokenFile(FileContents contents, std::optional<TokenDType> raw)
    : contents_(std::move(contents)) {
  const std::string_view bytes = contents_.bytes();
  const int32_t magic = bytes.size() < 8 ? 0 : Load<int32_t>(bytes.data());
  const bool llmc = magic == kGpt2Magic || magic == kLlama3Magic;
  const bool npy = bytes.starts_with(kNpyMagic);
  if (raw && (llmc || npy)) {
    Fail(path(), std::string("has a header of ") + (npy ? "NumPy" : "llm.c") +
                     ", so it is not raw: leave data.*.dtype out");
  }
  if (llmc) {
    ReadLlmc(magic == kGpt2Magic ? TokenDType::kUint16 : TokenDType::kUint32,
             Load<int32_t>(bytes.data() + 4));
  } else if (npy) {
    ReadNpy();
  } else if (raw) {
    dtype_ = *raw;
    data_ = bytes.data();
    size_ = std::ssize(bytes) / SizeOf(dtype_);
    if (std::ssize(bytes) % SizeOf(dtype_) != 0) {
      Fail(path(), "its size of " + Counted(std::ssize(bytes), "byte") + " is no whole number of " +
                       std::string(Name(dtype_)) + ": cut off, or data.*.dtype is wrong");
    }
  } else {
    const std::string other = FindOtherFormat(path(), bytes, "token ids");
    if (!other.empty()) Fail(path(), other);
    Fail(path(),
         "has neither an llm.c nor a NumPy header: say what raw tokens are with data.*.dtype "
         "(uint16 or uint32)");
  }
}

void TokenFile::CheckSize(int64_t bytes, int64_t tokens) {
  if (tokens == 0) Fail(path(), "holds no tokens: take it out of data.*.paths");
  // Compared without a product, which a header of nonsense could make overflow.
  const int64_t held = bytes / SizeOf(dtype_), left = bytes % SizeOf(dtype_);
  if (held == tokens && left == 0) return;
  Fail(path(), "its header says " + Counted(tokens, "token") + " of " + std::string(Name(dtype_)) +
                   ", but " + Counted(bytes, "byte") + (bytes == 1 ? " follows" : " follow") +
                   ", which is " +
                   (held < tokens ? "too few: cut off, copy or write it again"
                                  : "too many: the file is damaged, write it again"));
}

void TokenFile::ReadLlmc(TokenDType dtype, int32_t version) {
  const std::string_view bytes = contents_.bytes();
  dtype_ = dtype;
  const int32_t want = dtype == TokenDType::kUint16 ? kGpt2Version : kLlama3Version;
  if (version != want) {
    Fail(path(), "llm.c version " + std::to_string(version) + " of magic " +
                     std::to_string(Load<int32_t>(bytes.data())) + ", want " +
                     std::to_string(want));
  }
  if (std::ssize(bytes) < kLlmcHeaderBytes) {
    Fail(path(), "ends inside its llm.c header of " + std::to_string(kLlmcHeaderBytes) +
                     " bytes: cut off, copy or write it again");
  }
  size_ = Load<int32_t>(bytes.data() + 8);
  if (size_ < 0) Fail(path(), "its llm.c header says " + std::to_string(size_) + " tokens");
  data_ = bytes.data() + kLlmcHeaderBytes;
  CheckSize(std::ssize(bytes) - kLlmcHeaderBytes, size_);
}

void TokenFile::ReadNpy() {
  const std::string_view bytes = contents_.bytes();
  const int major = bytes.size() < 8 ? 0 : bytes[6];
  if (major < 1 || major > 3) {
    Fail(path(), "NumPy format version " + std::to_string(major) + ", want 1 to 3");
  }
  const size_t begin = major == 1 ? 10 : 12;
  size_t length = std::numeric_limits<uint32_t>::max();
  if (bytes.size() >= begin) {
    length = major == 1 ? Load<uint16_t>(bytes.data() + 8) : Load<uint32_t>(bytes.data() + 8);
  }
  if (begin + length > bytes.size()) {
    Fail(path(), "ends inside its NumPy header: cut off, copy or write it again");
  }
  NpyHeader header;
  if (!header.Read(bytes.substr(begin, length))) {
    Fail(path(), "its NumPy header is not one: write it again with numpy.save");
  }
  const auto& types = {TokenDType::kUint16, TokenDType::kUint32, TokenDType::kInt32,
                       TokenDType::kInt64};
  const auto descr = [](TokenDType t) {
    return "<" + std::string(t < TokenDType::kInt32 ? "u" : "i") + std::to_string(SizeOf(t));
  };
  const auto type = std::find_if(types.begin(), types.end(),
                                 [&](TokenDType t) { return descr(t) == header.descr; });
  if (type == types.end()) {
    Fail(path(), "dtype " + header.descr.substr(0, 40) +
                     ", want <u2, <u4, <i4 or <i8 (uint16, uint32, int32, int64, little-endian)");
  }
  dtype_ = *type;
  if (header.shape.size() != 1) {
    Fail(path(), std::to_string(header.shape.size()) +
                     " dimensions, want one: write it with array.reshape(-1)");
  }
  size_ = header.shape[0];
  data_ = bytes.data() + begin + length;
  CheckSize(std::ssize(bytes) - static_cast<int64_t>(begin + length), size_);
}

void TokenFile::Read(int64_t offset, std::span<int32_t> out) const {
  WithType(dtype_, [&](auto type) {
    using T = decltype(type);
    const char* at = data_ + offset * static_cast<int64_t>(sizeof(T));
    bool fits = true;
    for (size_t i = 0; i < out.size(); ++i) {
      const T value = Load<T>(at + i * sizeof(T));
      out[i] = static_cast<int32_t>(value);
      if constexpr (sizeof(T) >= 4) fits &= std::in_range<int32_t>(value);
    }
    contents_.CheckIntact();
    if (fits) return;
    for (size_t i = 0; i < out.size(); ++i) {
      const T value = Load<T>(at + i * sizeof(T));
      if (std::in_range<int32_t>(value)) continue;
      throw DataError("data: " + Where(offset + static_cast<int64_t>(i)) + ": token " +
                      std::to_string(value) + " is outside any vocabulary: is data.*.dtype right?");
    }
  });
}

int64_t TokenFile::Count(int64_t offset, int64_t count, int32_t token) const {
  return WithType(dtype_, [&](auto type) {
    using T = decltype(type);
    if (!std::in_range<T>(token)) return int64_t{0};
    const T wanted = static_cast<T>(token);
    const char* at = data_ + offset * static_cast<int64_t>(sizeof(T));
    int64_t found = 0;
    // Short runs whose count fits the element's own width: so that the compiler keeps its lanes.
    constexpr int64_t kRun = 1 << 12;
    for (int64_t begin = 0; begin < count; begin += kRun) {
      const int64_t n = std::min(kRun, count - begin);
      std::make_unsigned_t<T> here = 0;
      for (int64_t i = 0; i < n; ++i) {
        here += Load<T>(at + (begin + i) * static_cast<int64_t>(sizeof(T))) == wanted ? 1 : 0;
      }
      found += static_cast<int64_t>(here);
    }
    contents_.CheckIntact();
    return found;
  });
}

std::string TokenFile::Where(int64_t offset) const {
  return path() + ", token " + std::to_string(offset);
}

namespace {

bool IsDirectory(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::string FolderOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// The manifests of the folders that files lie in, each read once.
class Manifests {
 public:
  const std::optional<TokenManifest>& In(const std::string& folder) {
    const auto found = read_.find(folder);
    if (found != read_.end()) return found->second;
    return read_.emplace(folder, ReadTokenManifest(folder)).first->second;
  }

 private:
  std::map<std::string, std::optional<TokenManifest>> read_;
};

int32_t BoundOf(TokenDType dtype) {
  return dtype == TokenDType::kUint16 ? 1 << 16 : std::numeric_limits<int32_t>::max();
}

}  // namespace

TokenFileSource::TokenFileSource(std::span<const std::string> paths,
                                 std::optional<TokenDType> dtype, std::optional<int32_t> eot) {
  Manifests manifests;
  std::vector<std::string> expanded;
  for (std::string& path : ExpandPaths(paths)) {
    const TokenManifest* whole = nullptr;
    if (IsDirectory(path) && manifests.In(path)) whole = &*manifests.In(path);
    if (whole == nullptr) {
      expanded.push_back(std::move(path));
      continue;
    }
    for (const TokenManifest::Shard& shard : whole->shards) {
      expanded.push_back(path + "/" + shard.file);
    }
  }
  starts_.push_back(0);
  const TokenManifest* first = nullptr;
  bool all_listed = true;
  for (std::string& path : expanded) {
    files_.emplace_back(FileContents(std::move(path)), dtype);
    const TokenFile& file = files_.back();
    starts_.push_back(starts_.back() + file.size());
    described_.emplace_back();

    const std::string folder = FolderOf(file.path());
    const std::optional<TokenManifest>& manifest = manifests.In(folder);
    const std::string name = std::filesystem::path(file.path()).filename().string();
    const TokenManifest::Shard* listed = nullptr;
    if (manifest) {
      for (const TokenManifest::Shard& shard : manifest->shards) {
        if (shard.file == name) listed = &shard;
      }
    }
    if (listed == nullptr) {
      all_listed = false;
      vocab_size_ = std::max(vocab_size_, BoundOf(file.dtype()));
      continue;
    }
    if (listed->tokens != file.size()) {
      throw DataError("data: " + file.path() + ": holds " + std::to_string(file.size()) +
                      " tokens, but " + folder + "/" + kTokenManifest + " says " +
                      std::to_string(listed->tokens) + ": tokenize again");
    }
    described_.back() = DescribeFile(file.contents());
    if (described_.back()->hash != listed->hash) {
      throw DataError("data: " + file.path() + ": is damaged: its hash is not the one in " +
                      folder + "/" + kTokenManifest + ": copy it again, or tokenize again");
    }
    vocab_size_ = std::max(vocab_size_, manifest->vocab_size);
    if (first == nullptr) first = &*manifest;
    if (first->tokenizer_hash != manifest->tokenizer_hash || first->eot != manifest->eot) {
      throw DataError("data: " + file.path() + ": made by another tokenizer (" +
                      manifest->tokenizer + ") than the files before it (" + first->tokenizer +
                      "): one source holds tokens of one tokenizer");
    }
  }
  eot_ = eot ? eot : first != nullptr && all_listed ? first->eot : std::nullopt;
}

size_t TokenFileSource::FileOf(int64_t offset) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) -
                             starts_.begin() - 1);
}

template <typename Visit>
void TokenFileSource::ForEachStretch(int64_t offset, int64_t count, const Visit& visit) const {
  for (int64_t done = 0, file = static_cast<int64_t>(FileOf(offset)); done < count; ++file) {
    const size_t f = static_cast<size_t>(file);
    const int64_t begin = offset + done - starts_[f];
    const int64_t n = std::min(count - done, files_[f].size() - begin);
    visit(files_[f], begin, n, done);
    done += n;
  }
}

void TokenFileSource::Read(int64_t offset, std::span<int32_t> out) const {
  internal::CheckRange(*this, offset, std::ssize(out));
  ForEachStretch(offset, std::ssize(out),
                 [&](const TokenFile& file, int64_t begin, int64_t n, int64_t done) {
                   file.Read(begin, out.subspan(static_cast<size_t>(done), static_cast<size_t>(n)));
                 });
}

int64_t TokenFileSource::Count(int64_t offset, int64_t count, int32_t token) const {
  internal::CheckRange(*this, offset, count);
  int64_t found = 0;
  ForEachStretch(offset, count, [&](const TokenFile& file, int64_t begin, int64_t n, int64_t) {
    found += file.Count(begin, n, token);
  });
  return found;
}

std::string TokenFileSource::Describe() const {
  return AndMoreFiles(files_[0].path(), files_.size());
}

std::string TokenFileSource::Where(int64_t offset) const {
  const size_t file = FileOf(offset);
  return files_.at(file).Where(offset - starts_[file]);
}

std::vector<DataFile> TokenFileSource::Files() const {
  std::vector<DataFile> out;
  for (size_t i = 0; i < files_.size(); ++i) {
    out.push_back(described_[i] ? *described_[i] : DescribeFile(files_[i].contents()));
  }
  return out;
}

}  // namespace fsdp
