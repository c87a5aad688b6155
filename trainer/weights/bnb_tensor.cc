#include "trainer/weights/bnb_tensor.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/ops/weight_codes.h"

namespace fsdp {
namespace {

constexpr std::string_view kState = ".quant_state.bitsandbytes__nf4", kAbsmax = ".absmax",
                           kMap = ".quant_map", kNestedAbsmax = ".nested_absmax",
                           kNestedMap = ".nested_quant_map",
                           kFp4State = ".quant_state.bitsandbytes__fp4";
constexpr int64_t kBatch = 16;  // Records that are read or written at a time.
constexpr int64_t kMostStateBytes = 1 << 16, kMostElements = int64_t{1} << 60;
constexpr uint8_t kZeroPair = 0x77;  // Two codes of 0.

constexpr JsonErrors kErrors{
    .raise = [](const std::string& message) { throw CheckpointError(message); },
    .shows_value = true};

int64_t Blocks(int64_t elements) { return (elements + kWeightBlock - 1) / kWeightBlock; }
int64_t Records(int64_t elements) { return (elements + kWeightRecord - 1) / kWeightRecord; }

// Bytes of each record that lie back to back in a tensor of a file.
struct Field {
  std::string_view end;   // The tensor's name has it.
  int64_t offset, bytes;  // In a record.
  int64_t total;          // The tensor's bytes.
};

constexpr int64_t kNestedAt = kWeightRecord / 2, kMeanAt = kNestedAt + offsetof(NestedScales, mean),
                  kMaximumAt = kNestedAt + offsetof(NestedScales, maximum);

std::vector<Field> FieldsOf(WeightCode code, int64_t elements) {
  const bool nested = code == WeightCode::kNf4Nested;
  const int64_t scale = nested ? 1 : sizeof(float), maximum = sizeof(float);
  std::vector<Field> fields = {
      {"", 0, kWeightRecord / 2, (elements + 1) / 2},
      {kAbsmax, kNestedAt, kRecordBlocks * scale, Blocks(elements) * scale}};
  if (nested) fields.push_back({kNestedAbsmax, kMaximumAt, maximum, Records(elements) * maximum});
  return fields;
}

template <typename T>
std::span<T> Slice(std::span<T> all, int64_t begin, int64_t count) {
  return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

// The values of codes and of scales in eight bits: what they decode to.
struct Maps {
  std::array<float, 16> values;
  std::array<float, 256> scales;
};

Maps MakeMaps() {
  Maps maps;
  std::vector<uint8_t> record(static_cast<size_t>(RecordBytes(WeightCode::kNf4)));
  for (int i = 0; i < 8; ++i) record[i] = static_cast<uint8_t>(0x20 * i + 2 * i + 1);
  const float one = 1;
  std::memcpy(&record[kNestedAt], &one, sizeof(one));
  DecodeRecords(WeightCode::kNf4, record.data(), maps.values);
  std::fill(record.begin(), record.end(), 0xff);  // All elements are 1.
  NestedScales nested{.maximum = 1};
  for (int i = 0; i < 256; ++i) nested.codes[i] = static_cast<uint8_t>(i);
  std::memcpy(&record[kNestedAt], &nested, sizeof(nested));
  std::vector<float> all(kWeightRecord);
  DecodeRecords(WeightCode::kNf4Nested, record.data(), all);
  for (int i = 0; i < 256; ++i) maps.scales[i] = all[i * kWeightBlock];
  return maps;
}

const Maps& KnownMaps() {
  static const Maps maps = MakeMaps();
  return maps;
}

std::string Describe(SafetensorsType type, const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t dim : shape) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return std::string(Name(type)) + " [" + text + "]";
}

// The parts of one weight, or why they cannot be read.
class Parts {
 public:
  Parts(std::string name, const BnbTensor::FindPart& find) : name_(std::move(name)), find_(find) {
    for (const std::string_view end :
         {kState, kFp4State, std::string_view(), kAbsmax, kMap, kNestedAbsmax, kNestedMap}) {
      if (const auto* part = find_(end); part != nullptr && path_.empty())
        path_ = part->file->path();
    }
    if (Has(kFp4State) && !Has(kState)) RefuseForm("is in bitsandbytes' fp4");
  }

  [[noreturn]] void Refuse(const std::string& words) const {
    throw CheckpointError(path_ + ": '" + name_ + "' " + words);
  }
  [[noreturn]] void RefuseForm(const std::string& words) const {
    Refuse(words +
           ", and this version reads bitsandbytes' nf4 with blocks of 64, stored as uint8: "
           "begin from the weights before they were quantised, or quantise those so");
  }

  bool Has(std::string_view end) const { return find_(end) != nullptr; }
  const BnbTensor::Part& At(std::string_view end) const {
    const BnbTensor::Part* const part = find_(end);
    if (part == nullptr) {
      Refuse("is in bitsandbytes' four bits and lacks '" + name_ + std::string(end) +
             "': the directory is incomplete");
    }
    return *part;
  }
  const BnbTensor::Part& At(std::string_view end, SafetensorsType type,
                            const std::vector<int64_t>& shape) const {
    const BnbTensor::Part& part = At(end);
    const SafetensorsInfo& info = part.file->Info(part.name);
    if (info.type == type && info.shape == shape) return part;
    Refuse("is in bitsandbytes' four bits, and '" + part.name + "' is " +
           Describe(info.type, info.shape) + ", want " + Describe(type, shape));
  }
  void RequireMap(std::string_view end, std::span<const float> want, const char* whose) const {
    const BnbTensor::Part& part = At(end, SafetensorsType::kF32, {std::ssize(want)});
    std::vector<float> map(want.size());
    part.file->ReadFloat(part.name, 0, map);
    for (size_t i = 0; i < map.size(); ++i) {
      if (std::abs(map[i] - want[i]) <= 1e-6f * std::abs(want[i])) continue;
      RefuseForm("has a " + std::string(end.substr(1)) + " that is not " + whose);
    }
  }
  JsonValue State() const {
    const BnbTensor::Part& part = At(kState);
    const SafetensorsInfo& info = part.file->Info(part.name);
    if (info.type != SafetensorsType::kU8 || info.bytes() > kMostStateBytes) {
      Refuse("has a quant_state of " + Describe(info.type, info.shape) + ", want bytes of JSON");
    }
    std::string text(static_cast<size_t>(info.bytes()), '\0');
    part.file->ReadBytes(part.name, 0, std::as_writable_bytes(std::span(text)));
    return ParseJson(text, part.file->path() + ": '" + part.name + "'", kErrors);
  }

 private:
  const std::string name_;
  const BnbTensor::FindPart& find_;
  std::string path_;
};

// The shape of the weight before it was coded.
std::vector<int64_t> ShapeOf(const JsonValue& state, int64_t& elements) {
  std::vector<int64_t> shape;
  elements = 1;
  const JsonValue dims = state.At("shape");
  if (!dims.IsList()) dims.Refuse("is not a list");
  for (const JsonValue& dim : dims.Elements()) {
    shape.push_back(dim.Integer(1, kMostElements / elements));
    elements *= shape.back();
  }
  return shape;
}

}  // namespace

std::optional<std::string> BnbWeightOf(const std::string& tensor) {
  for (const std::string_view end : {kAbsmax, kMap, kNestedAbsmax, kNestedMap, kState, kFp4State}) {
    if (tensor.ends_with(end)) return tensor.substr(0, tensor.size() - end.size());
  }
  return std::nullopt;
}

BnbTensor::BnbTensor(const std::string& name, const FindPart& find) {
  const Parts parts(name, find);
  const JsonValue state = parts.State();
  const auto require_blocks = [&](const char* key, int64_t want) {
    const int64_t size = state.At(key).Integer();
    if (size != want) parts.RefuseForm("has a " + std::string(key) + " of " + std::to_string(size));
  };
  if (const JsonValue type = state.At("quant_type"); !type.IsText("nf4")) {
    parts.RefuseForm("has the quant_type " + type.Show());
  }
  require_blocks("blocksize", kWeightBlock);
  shape_ = ShapeOf(state, elements_);
  if (const SafetensorsType type = parts.At("").file->Info(parts.At("").name).type;
      type != SafetensorsType::kU8) {
    parts.RefuseForm("has its codes as " + std::string(Name(type)));
  }
  parts_.push_back(parts.At("", SafetensorsType::kU8, {(elements_ + 1) / 2, 1}));
  parts.RequireMap(kMap, KnownMaps().values, "nf4's");
  const bool nested = state.Has("nested_offset") || parts.Has(kNestedAbsmax);
  const auto scale = nested ? SafetensorsType::kU8 : SafetensorsType::kF32;
  parts_.push_back(parts.At(kAbsmax, scale, {Blocks(elements_)}));
  if (!nested) return;
  code_ = WeightCode::kNf4Nested;
  require_blocks("nested_blocksize", kRecordBlocks);
  if (!state.At("nested_dtype").IsText("float32")) {
    state.Refuse("nested_dtype", state.At("nested_dtype").Show() + " is not \"float32\"");
  }
  const double mean = state.At("nested_offset").Number();
  if (std::abs(mean) > std::numeric_limits<float>::max()) {
    state.Refuse("nested_offset", "is too large for fp32");
  }
  mean_ = static_cast<float>(mean);
  parts.RequireMap(kNestedMap, KnownMaps().scales, "bitsandbytes' dynamic map");
  parts_.push_back(parts.At(kNestedAbsmax, SafetensorsType::kF32, {Records(elements_)}));
}

void BnbTensor::ReadRecords(int64_t first_record, std::span<uint8_t> records) const {
  const int64_t record_bytes = RecordBytes(code_), count = std::ssize(records) / record_bytes;
  if (first_record < 0 || std::ssize(records) % record_bytes != 0 ||
      count > Records(elements_) - first_record) {
    throw std::invalid_argument("records outside '" + parts_[0].name + "'");
  }
  for (int64_t done = 0; done < count; done += kBatch) {
    const int64_t batch = std::min(kBatch, count - done);
    ReadBatch(first_record + done, Slice(records, done * record_bytes, batch * record_bytes));
  }
}

void BnbTensor::ReadBatch(int64_t first_record, std::span<uint8_t> records) const {
  const int64_t record_bytes = RecordBytes(code_), count = std::ssize(records) / record_bytes;
  std::fill(records.begin(), records.end(), 0);
  for (int64_t r = 0; r < count; ++r) {
    uint8_t* const record = &records[r * record_bytes];
    std::fill_n(record, RecordCodeBytes(code_), kZeroPair);
    if (code_ == WeightCode::kNf4Nested) std::memcpy(record + kMeanAt, &mean_, sizeof(mean_));
  }
  std::vector<uint8_t> bytes;
  const std::vector<Field> fields = FieldsOf(code_, elements_);
  for (size_t f = 0; f < fields.size(); ++f) {
    const Field& field = fields[f];
    const int64_t begin = first_record * field.bytes;
    bytes.resize(static_cast<size_t>(std::min(count * field.bytes, field.total - begin)));
    parts_[f].file->ReadBytes(parts_[f].name, begin, std::as_writable_bytes(std::span(bytes)));
    for (int64_t r = 0, at = 0; r < count; ++r, at += field.bytes) {
      const int64_t own = std::min(field.bytes, std::ssize(bytes) - at);
      std::copy_n(bytes.begin() + at, own, &records[r * record_bytes + field.offset]);
    }
  }
}

void BnbTensor::ReadFloat(int64_t begin, std::span<float> out) const {
  if (begin < 0 || std::ssize(out) > elements_ - begin) {
    throw std::invalid_argument("elements outside '" + parts_[0].name + "'");
  }
  std::vector<uint8_t> records;
  std::vector<float> whole;  // From the record's first element on.
  while (!out.empty()) {
    const int64_t first = begin / kWeightRecord, skip = begin % kWeightRecord;
    const int64_t most = skip > 0 ? kWeightRecord - skip : kBatch * kWeightRecord;
    const auto part = out.first(static_cast<size_t>(std::min(most, std::ssize(out))));
    records.resize(static_cast<size_t>(CodedBytes(code_, skip + std::ssize(part))));
    ReadRecords(first, records);
    if (skip == 0) {
      DecodeRecords(code_, records.data(), part);
    } else {
      whole.resize(static_cast<size_t>(skip) + part.size());
      DecodeRecords(code_, records.data(), whole);
      std::copy(whole.begin() + skip, whole.end(), part.begin());
    }
    begin += std::ssize(part);
    out = out.subspan(part.size());
  }
}

namespace {

// As Python writes a float.
std::string PythonFloat(double value) {
  char text[64];
  const auto write = [&](std::chars_format format) {
    return std::string(text, std::to_chars(text, text + sizeof(text), value, format).ptr);
  };
  std::string scientific = write(std::chars_format::scientific);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  const std::string fixed = write(std::chars_format::fixed);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

// quant_state, byte for byte as Python's json writes it.
std::string StateText(const std::vector<int64_t>& shape, std::string_view dtype,
                      const float* mean) {
  std::string dims;
  for (const int64_t dim : shape) dims += (dims.empty() ? "" : ", ") + std::to_string(dim);
  std::string text = R"({"quant_type": "nf4", "blocksize": 64, "dtype": ")" + std::string(dtype) +
                     R"(", "shape": [)" + dims + "]";
  if (mean != nullptr) {
    text += R"(, "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": )" +
            PythonFloat(*mean);
  }
  return text + "}";
}

}  // namespace

BnbParts::BnbParts(const std::string& name, const std::vector<int64_t>& shape,
                   std::string_view dtype, CodedTensor coded)
    : name_(name), elements_(1), coded_(std::move(coded)) {
  const bool nested = coded_.code == WeightCode::kNf4Nested;
  if (!nested && coded_.code != WeightCode::kNf4) {
    throw std::invalid_argument("'" + name + "' is not in nf4, which bitsandbytes reads");
  }
  for (const int64_t dim : shape) elements_ *= dim;
  if (nested) {
    std::vector<uint8_t> record(static_cast<size_t>(RecordBytes(coded_.code)));
    coded_.fill(0, record);
    std::memcpy(&mean_, &record[kMeanAt], sizeof(mean_));
    if (!std::isfinite(mean_)) {
      throw CheckpointError("'" + name + "': its scales are not finite: no file has these");
    }
  }
  state_ = StateText(shape, dtype, nested ? &mean_ : nullptr);
  const auto add = [&](std::string_view end, SafetensorsType type, std::vector<int64_t> dims) {
    entries_.push_back({name + std::string(end), type, std::move(dims)});
  };
  constexpr auto kF32 = SafetensorsType::kF32, kU8 = SafetensorsType::kU8;
  add("", kU8, {(elements_ + 1) / 2, 1});
  add(kAbsmax, nested ? kU8 : kF32, {Blocks(elements_)});
  add(kMap, kF32, {16});
  if (nested) add(kNestedAbsmax, kF32, {Records(elements_)});
  if (nested) add(kNestedMap, kF32, {256});
  add(kState, kU8, {std::ssize(state_)});
}

int64_t BnbParts::bytes() const {
  int64_t sum = 0;
  for (const SafetensorsEntry& entry : entries_) {
    int64_t bytes = SizeOf(entry.type);
    for (const int64_t dim : entry.shape) bytes *= dim;
    sum += bytes;
  }
  return sum;
}

void BnbParts::Write(SafetensorsWriter& writer,
                     const std::function<void(int64_t bytes)>& wrote) const {
  const auto write = [&](std::string_view end, std::span<const std::byte> bytes) {
    writer.WriteBytes(name_ + std::string(end), 0, bytes);
    wrote(std::ssize(bytes));
  };
  write(kState, std::as_bytes(std::span(state_)));
  write(kMap, std::as_bytes(std::span(KnownMaps().values)));
  if (coded_.code == WeightCode::kNf4Nested) {
    write(kNestedMap, std::as_bytes(std::span(KnownMaps().scales)));
  }
  std::vector<uint8_t> records;
  for (int64_t first = 0; first < Records(elements_); first += kBatch) {
    const int64_t count = std::min(kBatch, Records(elements_) - first);
    records.resize(static_cast<size_t>(count * RecordBytes(coded_.code)));
    coded_.fill(first, records);
    WriteRecords(writer, first, records, wrote);
  }
}

void BnbParts::WriteRecords(SafetensorsWriter& writer, int64_t first,
                            std::span<const uint8_t> records,
                            const std::function<void(int64_t bytes)>& wrote) const {
  const int64_t record_bytes = RecordBytes(coded_.code);
  for (int64_t at = 0; at < std::ssize(records); at += record_bytes) {
    if (coded_.code != WeightCode::kNf4Nested ||
        std::memcmp(&records[at + kMeanAt], &mean_, sizeof(mean_)) == 0) {
      continue;
    }
    throw CheckpointError("'" + name_ + "': record " + std::to_string(first + at / record_bytes) +
                          " has another mean of scales than the first");
  }
  std::vector<uint8_t> bytes;
  for (const Field& field : FieldsOf(coded_.code, elements_)) {
    bytes.clear();
    for (int64_t at = 0; at < std::ssize(records); at += record_bytes) {
      const auto from = Slice(records, at + field.offset, field.bytes);
      bytes.insert(bytes.end(), from.begin(), from.end());
    }
    const int64_t begin = first * field.bytes;
    bytes.resize(static_cast<size_t>(std::min(std::ssize(bytes), field.total - begin)));
    writer.WriteBytes(name_ + std::string(field.end), begin, std::as_bytes(std::span(bytes)));
    wrote(std::ssize(bytes));
  }
}

}  // namespace fsdp
