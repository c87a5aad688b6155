#include "trainer/observe/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <system_error>

#include "trainer/core/errors.h"
#include "trainer/core/utf8.h"

namespace fsdp {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

// ---- Protocol buffers' wire format: a key of field number and wire type, then the value.

constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void PutVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <typename T>  // Little-endian, as this machine is.
void PutFixed(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}
static_assert(std::endian::native == std::endian::little);

void PutKey(std::string& out, int field, int wire) {
  PutVarint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}
void PutInteger(std::string& out, int field, int64_t value) {
  PutKey(out, field, kVarint);
  PutVarint(out, static_cast<uint64_t>(value));
}
void PutBytes(std::string& out, int field, std::string_view bytes) {
  PutKey(out, field, kBytes);
  PutVarint(out, bytes.size());
  out += bytes;
}

// Field numbers of event.proto, summary.proto, tensor.proto.
enum EventField { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
constexpr int kSummaryValue = 1;
enum ValueField { kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9 };
enum MetadataField { kPluginData = 1, kDataClass = 4 };
constexpr int kPluginName = 1;
enum TensorField { kDType = 1, kTensorShape = 2, kStringValue = 8 };
constexpr int kDTypeString = 7, kDataClassTensor = 2, kSessionStatus = 1, kSessionStart = 1;

std::string EventOf(int64_t step, int field, std::string_view value) {
  std::string event;
  PutKey(event, kWallTime, kFixed64);
  PutFixed(
      event,
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  PutInteger(event, kStep, step);
  PutBytes(event, field, value);
  return event;
}

class Summary {
 public:
  void Scalar(std::string_view tag, double value) {
    std::string body;
    PutBytes(body, kTag, tag);
    PutKey(body, kSimpleValue, kFixed32);
    PutFixed(body, static_cast<float>(value));
    PutBytes(values_, kSummaryValue, body);
  }
  void Text(std::string_view tag, std::string_view text) {
    std::string plugin, metadata, tensor, body;
    PutBytes(plugin, kPluginName, "text");
    PutBytes(metadata, kPluginData, plugin);
    PutInteger(metadata, kDataClass, kDataClassTensor);
    PutInteger(tensor, kDType, kDTypeString);
    PutBytes(tensor, kTensorShape, "");  // A scalar.
    PutBytes(tensor, kStringValue, text);
    PutBytes(body, kTag, tag);
    PutBytes(body, kMetadata, metadata);
    PutBytes(body, kTensor, tensor);
    PutBytes(values_, kSummaryValue, body);
  }
  const std::string& values() const { return values_; }

 private:
  std::string values_;
};

// TensorBoard shows text as Markdown: lines indented by four are code.
std::string Verbatim(std::string_view text) {
  std::string out = "    ";
  for (const char c : Printable(text)) {
    out += c;
    if (c == '\n') out += "    ";
  }
  return out;
}

// ---- TFRecord.

uint32_t Masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

std::string RecordOf(std::string_view payload) {
  std::string record;
  PutFixed(record, uint64_t{payload.size()});
  PutFixed(record, Masked(Crc32c(record)));
  record += payload;
  PutFixed(record, Masked(Crc32c(payload)));
  return record;
}

template <typename T>
T Fixed(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// The next record's payload; nothing at the end and where the file is broken.
std::optional<std::string> NextRecord(std::istream& file) {
  char head[12];
  if (!file.read(head, sizeof(head))) return std::nullopt;
  const auto size = Fixed<uint64_t>(head);
  // Ours are small; a length beyond this one is none.
  if (Fixed<uint32_t>(head + 8) != Masked(Crc32c({head, 8})) || size > uint64_t{1} << 30) {
    return std::nullopt;
  }
  std::string payload(size, '\0');
  char tail[4];
  if (!file.read(payload.data(), static_cast<std::streamsize>(size)) ||
      !file.read(tail, sizeof(tail)) || Fixed<uint32_t>(tail) != Masked(Crc32c(payload))) {
    return std::nullopt;
  }
  return payload;
}

std::optional<uint64_t> TakeVarint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[0]);
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

struct EventHead {
  int64_t step = 0;
  bool start = false;  // A SessionLog: we write no other than START.
  bool shows = false;  // Has a summary.
};

std::optional<EventHead> ParseEvent(std::string_view bytes) {
  EventHead head;
  while (!bytes.empty()) {
    const auto key = TakeVarint(bytes);
    if (!key) return std::nullopt;
    size_t skip = 0;
    switch (*key & 7) {
      case kVarint: {
        const auto value = TakeVarint(bytes);
        if (!value) return std::nullopt;
        if (*key >> 3 == kStep) head.step = static_cast<int64_t>(*value);
        break;
      }
      case kFixed64:
        skip = 8;
        break;
      case kBytes: {
        const auto size = TakeVarint(bytes);
        if (!size) return std::nullopt;
        skip = *size;
        head.start |= *key >> 3 == kSessionLog;
        head.shows |= *key >> 3 == kSummary;
        break;
      }
      case kFixed32:
        skip = 4;
        break;
      default:
        return std::nullopt;
    }
    if (skip > bytes.size()) return std::nullopt;
    bytes.remove_prefix(skip);
  }
  return head;
}

void Trim(const std::string& path, int64_t step) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw CheckpointError(path + ": cannot be read: " + std::strerror(errno));
  uintmax_t end = 0;
  bool shows = false;
  while (const auto payload = NextRecord(file)) {
    const auto event = ParseEvent(*payload);
    if (!event || event->step - (event->start ? 1 : 0) > step) break;
    shows |= event->shows;
    end += 16 + payload->size();
  }
  file.close();
  std::error_code error;
  if (!shows) {
    std::filesystem::remove(path, error);
  } else if (end != std::filesystem::file_size(path, error) && !error) {
    std::filesystem::resize_file(path, end, error);
  }
  if (error) throw CheckpointError(path + ": cannot be shortened: " + error.message());
}

// TensorBoard reads a directory's files in the order of their names, so the time is past that of
// any other, even if the run was restarted within a second or on a host whose clock is behind.
AppendFile NewFile(const std::string& directory) {
  int64_t time = std::time(nullptr);
  for (const std::string& path : TensorBoardFiles(directory)) {
    const std::string name = std::filesystem::path(path).filename();
    time = std::max<int64_t>(time, std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10) + 1);
  }
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  std::string name(host);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '.') c = '_';
  }
  for (int n = 0;; ++n) {
    auto file =
        AppendFile::Create(directory + "/" + std::string(kPrefix) + std::to_string(time) + "." +
                           name + "." + std::to_string(::getpid()) + "." + std::to_string(n));
    if (file) return std::move(*file);
  }
}

void Add(Summary& summary, const StepRecord& r) {
  summary.Scalar("train/loss", r.loss);
  summary.Scalar("train/loss_mean", r.loss_mean);
  summary.Scalar("train/grad_norm", r.grad_norm);
  summary.Scalar("train/lr", r.lr);
  summary.Scalar("speed/step_time_s", r.step_time_s);
  if (!IsOfSamples(r)) {
    summary.Scalar("speed/tokens_per_s", r.tokens_per_s);
    summary.Scalar("speed/targets_per_s", r.targets_per_s);
  }
  summary.Scalar("speed/samples_per_s", r.samples_per_s);
  summary.Scalar("speed/tflops_per_device", r.tflops_per_device);
  if (r.mfu) summary.Scalar("speed/mfu", *r.mfu);
  for (const auto& [name, seconds] : kTimeParts) {
    summary.Scalar("time/" + std::string(name), r.time.*seconds);
  }
  summary.Scalar("memory/allocated_peak", static_cast<double>(r.memory.allocated));
  summary.Scalar("memory/active_peak", static_cast<double>(r.memory.active));
  summary.Scalar("memory/reserved_peak", static_cast<double>(r.memory.reserved));
  summary.Scalar("memory/host", static_cast<double>(r.memory.host));
  summary.Scalar("memory/disk", static_cast<double>(r.memory.disk));
  const CommunicationBytes& sent = r.communication;
  summary.Scalar("communication/all_gather_bytes", static_cast<double>(sent.all_gather));
  summary.Scalar("communication/reduce_scatter_bytes", static_cast<double>(sent.reduce_scatter));
  summary.Scalar("communication/all_reduce_bytes", static_cast<double>(sent.all_reduce));
  summary.Scalar("communication/all_to_all_bytes", static_cast<double>(sent.all_to_all));
  summary.Scalar("communication/network_bytes", static_cast<double>(sent.network));
  if (!r.experts) return;
  summary.Scalar("experts/max_load", r.experts->max_load);
  summary.Scalar("experts/unused", static_cast<double>(r.experts->unused));
  summary.Scalar("experts/entropy", r.experts->entropy);
  if (std::isfinite(r.experts->aux_loss)) summary.Scalar("experts/aux_loss", r.experts->aux_loss);
  if (std::isfinite(r.experts->z_loss)) summary.Scalar("experts/z_loss", r.experts->z_loss);
}
void Add(Summary& summary, const EvalRecord& r) {
  const std::string set = r.name.empty() ? "eval/" : "eval/" + r.name + "/";
  summary.Scalar(set + "loss", r.loss);
  const std::optional<double> value = r.Value();
  // A scalar is a float: a perplexity above 3.4e38, from 89 nats on, would be shown as infinite.
  if (value && *value <= std::numeric_limits<float>::max()) {
    summary.Scalar(set + r.metric->name, *value);
  }
}
void Add(Summary& summary, const SampleRecord& r) {
  summary.Text("sample", Verbatim(r.prompt + r.text));
}
template <typename Record>
void Add(Summary&, const Record&) {}

template <typename Record>
int64_t StepOf(const Record& record) {
  if constexpr (requires { record.step; }) return record.step;
  return 0;
}

}  // namespace

std::vector<std::string> TensorBoardFiles(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(directory, none)) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    if (entry.is_regular_file(none)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void TrimTensorBoard(const std::string& directory, int64_t step) {
  for (const std::string& path : TensorBoardFiles(directory)) Trim(path, step);
}

TensorBoardWriter::TensorBoardWriter(const std::string& directory, int64_t step)
    : file_(NewFile(directory)) {
  std::string session;
  PutInteger(session, kSessionStatus, kSessionStart);
  // In one write: no reader sees the one without the other.
  file_.Write(RecordOf(EventOf(0, kFileVersion, "brain.Event:2")) +
              RecordOf(EventOf(step + 1, kSessionLog, session)));
}

void TensorBoardWriter::Write(const MetricsRecord& record) {
  Summary summary;
  std::visit([&](const auto& r) { Add(summary, r); }, record);
  if (summary.values().empty()) return;
  const int64_t step = std::visit([](const auto& r) { return StepOf(r); }, record);
  file_.Write(RecordOf(EventOf(step, kSummary, summary.values())));
}

void TensorBoardWriter::Text(std::string_view tag, int64_t step, std::string_view text) {
  Summary summary;
  summary.Text(tag, Verbatim(text));
  file_.Write(RecordOf(EventOf(step, kSummary, summary.values())));
}

namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

}  // namespace fsdp
