#include "trainer/weights/hf_weights.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "models/family.h"
#include "models/shape.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/read_file.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/model.h"
#include "trainer/ops/weight_layout.h"
#include "trainer/weights/fused_experts.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_hints.h"
#include "trainer/weights/hf_tensors.h"
#include "trainer/weights/peft_adapter.h"

namespace fsdp {
namespace {

constexpr const char* kIndex = ".index.json";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEightBits = ".SCB";

// Changes where the file does.
std::string IdentityOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return path;
  std::string identity = path;
  for (const int64_t n : {int64_t(info.st_dev), int64_t(info.st_ino), int64_t(info.st_size),
                          int64_t(info.st_mtim.tv_sec), int64_t(info.st_mtim.tv_nsec)}) {
    identity += " " + std::to_string(n);
  }
  return identity;
}

std::string SingleFile(const std::string& directory) { return directory + "/model.safetensors"; }

// Equal for all names of a tensor: without the trunk's, and with HfNames::renamed.
std::string KeyOf(std::string name) {
  for (const ModelFamily* family : Families()) {
    const auto& renamed = family->hf_names().renamed;
    if (renamed.empty() || name.find(renamed[0].first) == std::string::npos) continue;
    for (const auto& [from, to] : renamed) {
      const size_t at = name.find(from);
      if (at != std::string::npos) name.replace(at, from.size(), to);
    }
  }
  for (const ModelFamily* family : Families()) {
    const std::string_view trunk = family->hf_names().trunk;
    if (!trunk.empty() && name.starts_with(trunk)) return name.substr(trunk.size());
  }
  return name;
}

std::string Show(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t dim : shape) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

std::vector<int64_t> DimsOf(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

// Tensors beside weights in older files, and a tied head.
bool IsOfNoUse(const std::string& name) {
  for (const ModelFamily* family : Families()) {
    for (const std::string_view end : family->hf_names().unused) {
      if (name.ends_with(end)) return true;
    }
  }
  return name == kHead;  // Asked for where it is not tied.
}

// The files of a model, and the one that holds each tensor where there are several.
std::map<std::string, std::string> ReadIndex(const std::string& path) {
  constexpr JsonErrors kErrors{
      .raise = [](const std::string& message) { throw CheckpointError(message); }};
  const JsonValue index = ParseJson(ReadWholeFile(path, kAnySize), path, kErrors);
  const auto map = index.Find("weight_map");
  if (!map || !map->IsObject()) index.Refuse("has no weight_map");
  std::map<std::string, std::string> file_of;
  for (const auto& [tensor, file] : map->Members()) {
    const std::string name = file.IsText() ? file.Text() : "";
    if (name.empty() || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      index.Refuse("weight_map names " + file.Dump() + ", which is not a file's name");
    }
    file_of[tensor] = name;
  }
  return file_of;
}

}  // namespace

bool HoldsHfWeights(const std::string& directory) {
  const std::string single = SingleFile(directory);
  return PathExists(single) || PathExists(single + kIndex);
}

bool HfWeights::Holds(const std::string& tensor) const { return tensors_.contains(KeyOf(tensor)); }

bool HfWeights::AreEqual(const std::string& a, const std::string& b) const {
  const Tensor &first = tensors_.at(KeyOf(a)), &second = tensors_.at(KeyOf(b));
  if (first.shape() != second.shape()) return false;
  std::string key;
  for (const Tensor& t : {first, second})
    key += t.name + " of " + IdentityOf(t.file->path()) + "\n";
  static std::mutex mutex;
  static std::map<std::string, bool> known;
  const std::lock_guard lock(mutex);
  if (const auto at = known.find(key); at != known.end()) return at->second;
  constexpr int64_t kBlock = 1 << 16;
  std::vector<float> x, y;
  bool equal = true;
  int64_t n = 1;
  for (const int64_t dim : first.shape()) n *= dim;
  for (int64_t i = 0; equal && i < n; i += kBlock) {
    x.resize(static_cast<size_t>(std::min(kBlock, n - i)));
    y.resize(x.size());
    first.Read(i, x);
    second.Read(i, y);
    equal = x == y;
  }
  return known[key] = equal;  // Only now: a read may have thrown.
}

const std::vector<int64_t>& HfWeights::Tensor::shape() const {
  return coded ? coded->shape() : part.empty() ? file->Info(name).shape : part;
}

void HfWeights::Tensor::Read(int64_t from, std::span<float> out) const {
  if (coded) return coded->ReadFloat(from, out);
  const auto last = from + static_cast<int64_t>(out.size());
  if (!part.empty() && (from < 0 || last > part[0] * part[1])) {
    throw std::invalid_argument("elements outside a part of " + name);
  }
  file->ReadFloat(name, begin + from, out);
}

void HfWeights::Add(const SafetensorsReader& file, const std::string& name) {
  const auto add = [&](auto& to, const std::string& key, const Tensor& tensor) {
    if (to.emplace(key, tensor).second) return;
    throw CheckpointError(file.path() + ": two tensors are called " + key +
                          ", but for what stands before it");
  };
  const std::string key = KeyOf(name);
  if (IsFused(key)) add(fused_, key, {{&file, name}});
  const std::vector<FusedPart> parts = FusedParts(key, file.Info(name).shape);
  if (parts.empty()) add(tensors_, key, {{&file, name}});
  for (const FusedPart& part : parts) {
    add(tensors_, part.name, {{&file, name}, nullptr, part.begin, part.shape});
  }
}

HfWeights::HfWeights(const std::string& directory) : directory_(directory) {
  const std::string single = SingleFile(directory), index = single + kIndex;
  if (PathExists(single)) {
    files_.push_back(std::make_unique<SafetensorsReader>(single));
    for (const std::string& name : files_[0]->Names()) Add(*files_[0], name);
    TakeCoded();
    return;
  }
  if (!PathExists(index)) {
    throw CheckpointError(directory +
                          ": holds neither model.safetensors nor model.safetensors.index.json" +
                          HowToGetWeights(directory));
  }
  std::map<std::string, const SafetensorsReader*> opened;
  for (const auto& [tensor, name] : ReadIndex(index)) {
    const SafetensorsReader*& file = opened[name];
    if (file == nullptr) {
      files_.push_back(std::make_unique<SafetensorsReader>(directory + "/" + name));
      file = files_.back().get();
    }
    file->Info(tensor);  // Throws where the file lacks it.
    Add(*file, tensor);
  }
  TakeCoded();
}

void HfWeights::TakeCoded() {
  std::map<std::string, std::string> coded;  // In the file, by name without the prefix.
  for (const auto& [name, tensor] : tensors_) {
    if (const auto weight = BnbWeightOf(name)) coded[*weight] = *BnbWeightOf(tensor.name);
    if (!name.ends_with(kEightBits)) continue;
    throw CheckpointError(tensor.file->path() + ": holds '" + tensor.name +
                          "', a scale of bitsandbytes' eight bits (load_in_8bit), which this "
                          "version does not read: begin from the weights before they were "
                          "quantised, or quantise those with nf4 (load_in_4bit)");
  }
  for (const auto& [weight, name] : coded) {
    const auto find = [&, &weight = weight](std::string_view end) -> const BnbTensor::Part* {
      const auto at = tensors_.find(weight + std::string(end));
      return at == tensors_.end() ? nullptr : &at->second;
    };
    auto read = std::make_shared<const BnbTensor>(name, find);
    tensors_.at(weight).coded = std::move(read);
  }
  std::erase_if(tensors_, [](const auto& entry) { return BnbWeightOf(entry.first).has_value(); });
}

const HfWeights::Tensor* HfWeights::Look(const std::string& tensor) const {
  const auto find = [&](std::string_view name) {
    const auto it = tensors_.find(std::string(name));
    return it == tensors_.end() ? nullptr : &it->second;
  };
  const std::string name = KeyOf(tensor);
  const Tensor* found = find(name);
  for (const ModelFamily* family : Families()) {
    const auto& names = family->hf_names().embedding;
    if (found != nullptr || names.empty() || names[0] != name) continue;
    for (const std::string_view copy : names) found = found != nullptr ? found : find(copy);
    if (found == nullptr) found = find(kHead);
  }
  return found;
}

void HfWeights::RefuseMissing(const std::string& tensor) const {
  std::string why = directory_ + ": has no parameter '" + tensor + "'";
  for (const ModelFamily* family : Families()) {
    if (!family->head().Has(tensor)) continue;
    why += ", so no head: training begins from such files (model.init_from) and draws one";
    break;
  }
  throw CheckpointError(why);
}

const HfWeights::Tensor& HfWeights::Find(const std::string& tensor, const Shape& shape) const {
  const Tensor* const found = Look(tensor);
  if (found == nullptr) RefuseMissing(tensor);
  const std::vector<int64_t>& dims = found->shape();
  if (dims != DimsOf(shape)) {
    throw CheckpointError(found->file->path() + ": parameter '" + tensor + "' has shape " +
                          Show(dims) + ", want " + shape.ToString());
  }
  return *found;
}

void HfWeights::RequireFused(const HfTensors& tensors) const {
  if (fused_.empty()) return;
  std::vector<std::pair<std::string, std::vector<int64_t>>> parts;
  for (const HfTensors::Tensor& tensor : tensors.tensors()) {
    parts.emplace_back(KeyOf(tensor.name()), DimsOf(tensor.shape()));
  }
  for (const auto& [key, want] : FuseShapes(parts)) {
    const auto found = fused_.find(key);
    if (found == fused_.end() || found->second.shape() == want) continue;
    const Tensor& tensor = found->second;
    throw CheckpointError(tensor.file->path() + ": '" + tensor.name + "' has shape " +
                          Show(tensor.shape()) + ", want " + Show(want));
  }
}

void HfWeights::RequireAll(const HfTensors& tensors, const ModelHead& head) const {
  RequireFused(tensors);
  std::set<std::string> wanted;
  const auto is_head = [](const HfTensors::Tensor& tensor) { return tensor.name() == kHead; };
  const bool own_head = std::any_of(tensors.tensors().begin(), tensors.tensors().end(), is_head);
  for (const HfTensors::Tensor& want : tensors.tensors()) {
    const Tensor* const there = Look(want.name());
    if (own_head && want.name() != kHead && there != nullptr && there->name == kHead) {
      RefuseMissing(want.name());
    }
    if (there != nullptr && there->coded && tensors.linear_layout() == WeightLayout::kInOut) {
      throw CheckpointError(there->file->path() + ": '" + there->name +
                            "' is in bitsandbytes' four bits, coded by transformers with rows and "
                            "columns exchanged, which this version does not read of this family "
                            "(GPT-2): begin from the weights before they were quantised");
    }
    if (head.Has(want.name())) {
      // It is drawn.
    } else if (want.buffer != nullptr) {
      FillBuffer(*want.buffer, 0, View(nullptr, want.buffer->dtype(), Shape{0}));
    } else {
      const Tensor& tensor = Find(want.name(), want.shape());
      tensor.Read(0, {});  // Refuses a dtype that cannot be read.
    }
    wanted.insert(KeyOf(want.name()));
  }
  std::string left;  // The first by name: the same one every time.
  for (const auto& [name, tensor] : tensors_) {
    if (wanted.count(name) > 0 || IsOfNoUse(name)) continue;
    if (left.empty() || tensor.name < left) left = tensor.name;
  }
  if (!left.empty()) {
    throw CheckpointError(directory_ + ": holds '" + left +
                          "', which the model of its config.json does not have");
  }
}

void HfWeights::Fill(const std::string& tensor, const Shape& shape, int64_t begin,
                     std::span<float> out) const {
  Find(tensor, shape).Read(begin, out);
}

bool HfWeights::HoldsCoded() const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [](const auto& tensor) { return tensor.second.coded != nullptr; });
}

WeightCode HfWeights::CodeOf(const std::string& tensor) const {
  const Tensor* const found = Look(tensor);
  if (found == nullptr) RefuseMissing(tensor);
  return found->coded ? found->coded->code() : WeightCode::kNone;
}

void HfWeights::ReadRecords(const std::string& tensor, int64_t first_record,
                            std::span<uint8_t> records) const {
  FSDP_CHECK(CodeOf(tensor) != WeightCode::kNone) << tensor << " is not coded";
  Look(tensor)->coded->ReadRecords(first_record, records);
}

void HfWeights::FillBuffer(const ModelBuffer& buffer, int64_t begin, const View& out) const {
  if (buffer.kind() == ModelBuffer::Kind::kTally) {  // No file has it.
    std::fill_n(out.As<float>(), out.NumElements(), 0.0f);
    return;
  }
  const Tensor& tensor = Find(buffer.name(), buffer.shape());
  const SafetensorsReader* const file = tensor.file;
  const std::string& name = tensor.name;
  if (buffer.dtype() == DType::kFloat32) {
    file->ReadFloat(name, begin, {out.As<float>(), static_cast<size_t>(out.NumElements())});
    return;
  }
  if (const SafetensorsType type = file->Info(name).type; type != SafetensorsType::kI64) {
    throw CheckpointError(file->path() + ": buffer '" + buffer.name() + "' is " +
                          std::string(Name(type)) + ", want I64");
  }
  file->ReadBytes(name, begin * SizeOf(buffer.dtype()),
                  {out.data, static_cast<size_t>(out.bytes())});
}

void HfWeights::FillParameter(const Parameter& parameter, int64_t begin,
                              std::span<float> out) const {
  for (const SlicePiece& piece : SlicePieces(parameter, begin, static_cast<int64_t>(out.size()))) {
    Fill(piece.slice->name, piece.slice->shape, piece.begin,
         out.subspan(static_cast<size_t>(piece.at), static_cast<size_t>(piece.count)));
  }
}

HfImported ImportHf(const std::string& directory, const std::string& out,
                    const ByteProgress& progress, bool allow_nonfinite) {
  RefuseWhatIsNoCheckpoint(directory);
  if (HoldsPeftAdapter(directory)) {
    throw CheckpointError(directory +
                          ": holds a PEFT adapter, which an import does not merge: a run begins "
                          "from it with model.init_from, or peft merges it (merge_and_unload())");
  }
  const HfConfig config = ReadHfConfig(directory);
  const std::shared_ptr<Model> model = MakeModel(config.shape);
  if (!model->tables().empty()) {
    throw CheckpointError(directory +
                          ": a model with embedding tables is not imported: a run begins from it "
                          "with model.init_from");
  }
  const HfTensors tensors(*model);
  const HfWeights weights(directory);
  weights.RequireAll(tensors);
  WholeCheckpoint checkpoint;
  checkpoint.meta.config = ShapeToJson(config.shape);
  checkpoint.meta.classes = ReadHfClasses(directory);
  for (const std::string& name : HfTextFilesIn(directory)) {
    checkpoint.beside[name] = ReadWholeFile(directory + "/" + name, kAnySize);
  }
  checkpoint.layout = MakeLayout(ShapesOf(*model), WrapPolicy(), /*shards=*/1);
  checkpoint.states = {"master"};
  std::map<std::string, const ModelBuffer*> buffers;
  for (const ModelBuffer* buffer : BuffersOf(*model)) {
    checkpoint.buffers.push_back({buffer->name(), "", buffer->dtype(), buffer->shape()});
    buffers[buffer->name()] = buffer;
  }
  const auto refuse = [&](const std::string& wrong) {
    if (wrong.empty() || allow_nonfinite) return;
    throw CheckpointError(directory + ": " + wrong +
                          ": not finite. --allow-nonfinite takes it as it is, to look at: nothing "
                          "can be trained from it");
  };
  const auto read = [&](const std::string&, const Placement& placement, int64_t begin,
                        std::span<float> values) {
    const Parameter& parameter = *tensors.Find(placement.name);
    weights.FillParameter(parameter, begin, values);
    refuse(DescribeNotFinite(parameter, begin, values));
  };
  const auto read_buffer = [&](const OwnTensor& tensor, int64_t begin, const View& values) {
    weights.FillBuffer(*buffers.at(tensor.name), begin, values);
    refuse(DescribeNotFinite(tensor.name, begin, values));
  };
  return {WriteCheckpoint(out, checkpoint, read, progress, read_buffer), config.ignored,
          config.notes};
}

}  // namespace fsdp
