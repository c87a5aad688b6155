#include "trainer/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>

#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/json_tree.h"
#include "trainer/core/read_file.h"
#include "trainer/ops/cpu/convert.h"

namespace fsdp {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr size_t kMaxTransfer = size_t{1} << 30;  // Linux moves at most 2^31 - 4096 bytes a call.
constexpr int64_t kLengthBytes = 8;

struct TypeEntry {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<TypeEntry, 15> kTypes = {{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"I64", 8},
    {"U64", 8},
    {"F64", 8},
}};
static_assert(kTypes.size() == static_cast<size_t>(SafetensorsType::kF64) + 1);

std::string ToString(const std::vector<int64_t>& shape) {
  constexpr size_t kShown = 8;
  std::string out = "[";
  for (size_t i = 0; i < std::min(shape.size(), kShown); ++i) {
    out += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return out + (shape.size() > kShown ? ", ...]" : "]");
}

std::optional<int64_t> CheckedBytes(SafetensorsType type, const std::vector<int64_t>& shape) {
  int64_t bytes = SizeOf(type);
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  }
  return bytes;
}

[[noreturn]] void Refuse(const std::string& path, const std::string& reason) {
  throw CheckpointError(path + ": " + reason);
}

[[noreturn]] void RefuseErrno(const std::string& path, const char* what) {
  const int error = errno;
  Refuse(path, std::string("cannot ") + what + ": " + std::strerror(error));
}

void ReadAt(const std::string& path, int fd, int64_t offset, void* out, size_t bytes) {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = pread(fd, to, std::min(bytes, kMaxTransfer), offset);
    if (n < 0) {
      if (errno == EINTR) continue;
      RefuseErrno(path, "read");
    }
    if (n == 0) {
      Refuse(path, "ends at byte " + std::to_string(offset) + ", " + std::to_string(bytes) +
                       " bytes early: it was cut short after it was opened");
    }
    to += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
}

// Accepts the format's JSON and nothing else. A document would keep the last of two equal keys
// without a word.
class HeaderParser final : public JsonEvents {
 public:
  struct Tensor {
    std::string name;
    SafetensorsInfo info;  // begin and end as the header has them, from the start of the data.
  };
  std::vector<Tensor> tensors;
  std::map<std::string, std::string> metadata;
  std::string reason;  // Why it was refused, if it was.

  bool Null() override { return Value("null"); }
  bool Boolean() override { return Value("a boolean"); }
  bool Negative() override { return Value("a negative number"); }
  bool Real() override { return Value("a number that is not an integer of 64 bits"); }

  bool Unsigned(uint64_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return Value("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return No(Where() + " holds " + std::to_string(value) + ", which is too large");
    }
    auto& list = place_ == Place::kShape ? tensors.back().info.shape : offsets_;
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool Text(const std::string& value) override {
    if (place_ == Place::kMetadata) {
      metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return Value("a string");
    for (size_t i = 0; i < kTypes.size(); ++i) {
      if (kTypes[i].name == value) {
        tensors.back().info.type = static_cast<SafetensorsType>(i);
        return true;
      }
    }
    return No(Where() + " is " + Quote(value) + ", which is not a known dtype");
  }

  bool BeginObject() override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return Value("an object");
    if (key_ == "__metadata__") {
      place_ = Place::kMetadata;
      return true;
    }
    place_ = Place::kTensor;
    tensors.push_back({key_, {}});
    fields_.clear();
    offsets_.clear();
    return true;
  }

  bool Key(const std::string& key) override {
    key_ = key;
    if (place_ == Place::kTop) {
      if (!seen_.emplace(key, true).second) return No(Quote(key) + " appears twice");
    } else if (place_ == Place::kMetadata) {
      if (metadata.count(key)) return No("metadata " + Quote(key) + " appears twice");
    } else {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        return No("tensor " + Quote(tensors.back().name) + " has an unknown field " + Quote(key));
      }
      if (std::find(fields_.begin(), fields_.end(), key) != fields_.end()) {
        return No(Where() + " appears twice");
      }
      fields_.push_back(key);
    }
    return true;
  }

  bool EndObject() override {
    if (place_ == Place::kTensor) {
      Tensor& tensor = tensors.back();
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (std::find(fields_.begin(), fields_.end(), field) == fields_.end()) {
          return No("tensor " + Quote(tensor.name) + " has no " + field);
        }
      }
      if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
        return No("tensor " + Quote(tensor.name) + ": data_offsets " + ToString(offsets_) +
                  " are not [begin, end]");
      }
      tensor.info.begin = offsets_[0];
      tensor.info.end = offsets_[1];
    }
    place_ = place_ == Place::kTop ? Place::kStart : Place::kTop;
    return true;
  }

  bool BeginList() override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      return Value("a list");
    }
    return true;
  }

  bool EndList() override {
    place_ = Place::kTensor;
    return true;
  }

  void NoJson(size_t read) override {
    No("is not JSON at byte " + std::to_string(kLengthBytes + read - 1));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };

  std::string Where() const {
    switch (place_) {
      case Place::kStart:
        return "it";
      case Place::kTop:
        return Quote(key_);
      case Place::kMetadata:
        return "metadata " + Quote(key_);
      default:
        return "tensor " + Quote(tensors.back().name) + ": " + key_;
    }
  }
  bool No(const std::string& why) {
    reason = "header: " + why;
    return false;
  }
  bool Value(const char* what) {
    const bool in_list = place_ == Place::kShape || place_ == Place::kOffsets;
    return No(Where() + (in_list ? " holds " : " is ") + what);
  }

  Place place_ = Place::kStart;
  std::string key_;
  std::unordered_map<std::string, bool> seen_;
  std::vector<std::string> fields_;
  std::vector<int64_t> offsets_;
};

const SafetensorsInfo* Find(const std::unordered_map<std::string, SafetensorsInfo>& infos,
                            std::string_view name) {
  const auto found = infos.find(std::string(name));
  return found == infos.end() ? nullptr : &found->second;
}

void CheckRange(const char* function, std::string_view name, const char* unit, int64_t begin,
                size_t count, int64_t size) {
  if (begin < 0 || begin > size || count > static_cast<uint64_t>(size - begin)) {
    throw std::invalid_argument(std::string("[") + function + "] " + Quote(name) + " has " +
                                std::to_string(size) + " " + unit + ", want " +
                                std::to_string(count) + " from " + std::to_string(begin));
  }
}

// `in` is aligned to its elements.
template <typename In>
void ConvertToFloat(const std::byte* in, std::span<float> out) {
  const In* from = reinterpret_cast<const In*>(in);
  if constexpr (std::is_arithmetic_v<In>) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(from[i]);
  } else {
    Convert(from, static_cast<int64_t>(out.size()), out.data());
  }
}

}  // namespace

int64_t SizeOf(SafetensorsType type) { return kTypes.at(static_cast<size_t>(type)).bytes; }

std::string_view Name(SafetensorsType type) { return kTypes.at(static_cast<size_t>(type)).name; }

SafetensorsType ToSafetensorsType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return SafetensorsType::kF32;
    case DType::kBFloat16:
      return SafetensorsType::kBF16;
    case DType::kFloat16:
      return SafetensorsType::kF16;
    case DType::kInt32:
      return SafetensorsType::kI32;
    case DType::kInt64:
      return SafetensorsType::kI64;
    case DType::kUInt8:
      return SafetensorsType::kU8;
  }
  FSDP_CHECK(false) << "dtype " << static_cast<int>(dtype);
}

// O_NONBLOCK: a FIFO without a writer would hold us here. Regular files ignore it.
SafetensorsReader::SafetensorsReader(const std::string& path)
    : SafetensorsReader(path, UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))) {}

SafetensorsReader::SafetensorsReader(const std::string& path, UniqueFd file)
    : path_(path), file_(std::move(file)) {
  if (file_.get() < 0) RefuseErrno(path, "open");
  struct stat status;
  if (fstat(file_.get(), &status) != 0) RefuseErrno(path, "read");
  if (!S_ISREG(status.st_mode)) Refuse(path, "is not a regular file");
  file_bytes_ = status.st_size;

  if (file_bytes_ < kLengthBytes) {
    Refuse(path, "has " + std::to_string(file_bytes_) + " bytes, too few for a safetensors file");
  }
  uint64_t length = 0;
  ReadAt(path, file_.get(), 0, &length, kLengthBytes);
  if (length == 0) {
    Refuse(path, "has no header: not a safetensors file, or one whose writer was stopped");
  }
  if (length > uint64_t{kMaxHeaderBytes}) {
    std::string begin(static_cast<size_t>(std::min<int64_t>(file_bytes_, 64)), '\0');
    ReadAt(path, file_.get(), 0, begin.data(), begin.size());
    if (IsLfsPointer(begin)) Refuse(path, kLfsPointer);
    Refuse(path, "header of " + std::to_string(length) + " bytes, the most is " +
                     std::to_string(kMaxHeaderBytes) + ": not a safetensors file");
  }
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(length);
  if (data_begin > file_bytes_) {
    Refuse(path, "header of " + std::to_string(length) + " bytes in a file of " +
                     std::to_string(file_bytes_));
  }
  const int64_t data_bytes = file_bytes_ - data_begin;

  std::string header(length, '\0');
  ReadAt(path, file_.get(), kLengthBytes, header.data(), length);
  // The parser would skip a byte order mark and take a zero byte for the end.
  if (header[0] != '{') Refuse(path, "header does not begin with '{'");
  if (header.find('\0') != std::string::npos) Refuse(path, "header holds a zero byte");
  HeaderParser parser;
  if (!ReadJson(header, parser)) Refuse(path, parser.reason);

  std::stable_sort(parser.tensors.begin(), parser.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.info.begin, a.info.end) < std::pair(b.info.begin, b.info.end);
  });
  int64_t reached = 0;
  for (auto& [name, info] : parser.tensors) {
    const std::string tensor = "tensor " + Quote(name);
    const std::optional<int64_t> bytes = CheckedBytes(info.type, info.shape);
    if (!bytes || *bytes != info.bytes()) {
      Refuse(path, tensor + ": " + std::string(Name(info.type)) + " " + ToString(info.shape) +
                       " does not fill data_offsets " + ToString({info.begin, info.end}));
    }
    if (info.end > data_bytes) {
      Refuse(path, tensor + " ends at byte " + std::to_string(info.end) + " of " +
                       std::to_string(data_bytes) + ": the file is cut short");
    }
    if (info.begin != reached) {
      Refuse(path, tensor + " begins at byte " + std::to_string(info.begin) + ", " +
                       (info.begin < reached ? "inside the tensor before it" : "after a gap"));
    }
    reached = info.end;
    info.begin += data_begin;
    info.end += data_begin;
    names_.push_back(name);
    infos_.emplace(std::move(name), std::move(info));
  }
  if (reached != data_bytes) {
    Refuse(path, std::to_string(data_bytes - reached) + " bytes at the end belong to no tensor");
  }
  metadata_ = std::move(parser.metadata);
}

bool SafetensorsReader::Contains(std::string_view name) const {
  return Find(infos_, name) != nullptr;
}

const SafetensorsInfo& SafetensorsReader::Info(std::string_view name) const {
  const SafetensorsInfo* info = Find(infos_, name);
  if (info == nullptr) Refuse(path_, "has no tensor " + Quote(name));
  return *info;
}

void SafetensorsReader::ReadBytes(std::string_view name, int64_t byte_begin,
                                  std::span<std::byte> out) const {
  const SafetensorsInfo& info = Info(name);
  CheckRange("SafetensorsReader::ReadBytes", name, "bytes", byte_begin, out.size(), info.bytes());
  ReadAt(path_, file_.get(), info.begin + byte_begin, out.data(), out.size());
}

void SafetensorsReader::ReadFloat(std::string_view name, int64_t element_begin,
                                  std::span<float> out) const {
  const SafetensorsInfo& info = Info(name);
  CheckRange("SafetensorsReader::ReadFloat", name, "elements", element_begin, out.size(),
             info.NumElements());
  void (*convert)(const std::byte*, std::span<float>) = nullptr;
  switch (info.type) {
    case SafetensorsType::kF32:
      break;
    case SafetensorsType::kF64:
      convert = &ConvertToFloat<double>;
      break;
    case SafetensorsType::kBF16:
      convert = &ConvertToFloat<BFloat16>;
      break;
    case SafetensorsType::kF16:
      convert = &ConvertToFloat<Float16>;
      break;
    default:
      Refuse(path_, "tensor " + Quote(name) + " is " + std::string(Name(info.type)) +
                        ", want F32, F64, BF16 or F16");
  }
  const auto size = static_cast<size_t>(SizeOf(info.type));
  int64_t offset = info.begin + element_begin * static_cast<int64_t>(size);
  if (!convert) return ReadAt(path_, file_.get(), offset, out.data(), out.size_bytes());
  constexpr size_t kChunk = size_t{1} << 15;  // Elements: 256 KiB at most, which stay in the cache.
  const auto chunk =
      std::make_unique_for_overwrite<std::byte[]>(std::min(out.size(), kChunk) * size);
  while (!out.empty()) {
    const size_t count = std::min(out.size(), kChunk);
    ReadAt(path_, file_.get(), offset, chunk.get(), count * size);
    convert(chunk.get(), out.first(count));
    out = out.subspan(count);
    offset += static_cast<int64_t>(count * size);
  }
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     std::span<const SafetensorsEntry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path) {
  const auto wrong = [](const std::string& why) {
    throw std::invalid_argument("[SafetensorsWriter] " + why);
  };
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& entry : entries) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return SizeOf(a->type) > SizeOf(b->type); });

  std::string json = "{";
  int64_t data_bytes = 0;
  try {
    if (!metadata.empty()) json += "\"__metadata__\":" + JsonTree(metadata).Dump();
    for (const SafetensorsEntry* entry : order) {
      const std::optional<int64_t> bytes = CheckedBytes(entry->type, entry->shape);
      const int64_t begin = data_bytes;
      if (!bytes || __builtin_add_overflow(data_bytes, *bytes, &data_bytes)) {
        wrong("tensor " + Quote(entry->name) + " has shape " + ToString(entry->shape));
      }
      if (entry->name == "__metadata__") wrong("'__metadata__' is not a tensor's name");
      const SafetensorsInfo info = {entry->type, entry->shape, begin, data_bytes};
      if (!infos_.emplace(entry->name, info).second) {
        wrong("two tensors are called " + Quote(entry->name));
      }
      if (json.size() > 1) json += ',';
      json += JsonTree(entry->name).Dump();
      json += ":{\"dtype\":\"";
      json += Name(entry->type);
      json += "\",\"shape\":";
      json += JsonTree(entry->shape).Dump();
      json +=
          ",\"data_offsets\":[" + std::to_string(begin) + ',' + std::to_string(data_bytes) + "]}";
    }
  } catch (const NotUtf8&) {
    wrong("a name or a text of the metadata is not UTF-8");
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > static_cast<size_t>(SafetensorsReader::kMaxHeaderBytes)) {
    wrong("the header would have " + std::to_string(json.size()) + " bytes, the most is " +
          std::to_string(SafetensorsReader::kMaxHeaderBytes));
  }
  const uint64_t length = json.size();
  header_.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  header_ += json;
  const auto data_begin = static_cast<int64_t>(header_.size());
  if (__builtin_add_overflow(data_begin, data_bytes, &file_bytes_)) wrong("too many bytes");
  for (auto& [name, info] : infos_) {
    info.begin += data_begin;
    info.end += data_begin;
  }

  file_ = UniqueFd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file_.get() < 0) Fail("create");
  WriteAt(kLengthBytes, json.data(), json.size());
  // A full disk is better found now than after minutes of writing.
  if (fallocate(file_.get(), 0, 0, file_bytes_) != 0) {
    if (errno != EOPNOTSUPP && errno != ENOSYS) Fail("take the space for");
    if (ftruncate(file_.get(), file_bytes_) != 0) Fail("extend");
  }
}

const SafetensorsInfo& SafetensorsWriter::Info(std::string_view name) const {
  const SafetensorsInfo* info = Find(infos_, name);
  if (info == nullptr) {
    throw std::invalid_argument("[SafetensorsWriter] no tensor is called " + Quote(name));
  }
  return *info;
}

void SafetensorsWriter::WriteBytes(std::string_view name, int64_t byte_begin,
                                   std::span<const std::byte> bytes) {
  const SafetensorsInfo& info = Info(name);
  CheckRange("SafetensorsWriter::WriteBytes", name, "bytes", byte_begin, bytes.size(),
             info.bytes());
  if (bytes.empty()) return;
  const int64_t begin = info.begin + byte_begin;
  const int64_t end = begin + static_cast<int64_t>(bytes.size());
  {
    const std::lock_guard lock(mutex_);
    if (file_.get() < 0) {
      throw std::invalid_argument("[SafetensorsWriter::WriteBytes] after Finish");
    }
    auto next = written_.lower_bound(begin);
    auto before = next == written_.begin() ? written_.end() : std::prev(next);
    if ((next != written_.end() && next->first < end) ||
        (before != written_.end() && before->second > begin)) {
      throw std::invalid_argument("[SafetensorsWriter::WriteBytes] bytes " +
                                  std::to_string(byte_begin) + " to " +
                                  std::to_string(byte_begin + (end - begin)) + " of " +
                                  Quote(name) + " were written before, at least in part");
    }
    int64_t joined = end;
    if (next != written_.end() && next->first == end) {
      joined = next->second;
      written_.erase(next);
    }
    if (before != written_.end() && before->second == begin) {
      before->second = joined;
    } else {
      written_.emplace(begin, joined);
    }
  }
  try {
    WriteAt(begin, bytes.data(), bytes.size());
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    throw;
  }
}

void SafetensorsWriter::Finish() {
  const std::lock_guard lock(mutex_);
  if (file_.get() < 0) throw std::invalid_argument("[SafetensorsWriter::Finish] called twice");
  if (failed_) Refuse(path_, "an earlier write failed");
  int64_t missing = file_bytes_ - static_cast<int64_t>(header_.size());
  for (const auto& [begin, end] : written_) missing -= end - begin;
  if (missing != 0) {
    throw std::invalid_argument("[SafetensorsWriter::Finish] " + std::to_string(missing) +
                                " bytes of " + path_ + " were never written");
  }
  WriteAt(0, header_.data(), kLengthBytes);
  if (fsync(file_.get()) != 0) Fail("sync");
  if (close(file_.Release()) != 0) Fail("close");
}

void SafetensorsWriter::WriteAt(int64_t offset, const void* data, size_t bytes) const {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = pwrite(file_.get(), from, std::min(bytes, kMaxTransfer), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;  // Else a file system that accepts nothing would hold us here.
    if (n <= 0) Fail("write");
    from += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
}

void SafetensorsWriter::Fail(const char* what) const { RefuseErrno(path_, what); }

}  // namespace fsdp
