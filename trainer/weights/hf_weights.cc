#include "trainer/weights/hf_weights.h"

#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "models/family.h"
#include "models/shape.h"
#include "trainer/checkpoint/finite.h"
#include "trainer/core/atomic_file.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/read_file.h"
#include "trainer/fsdp/model_layout.h"
#include "trainer/nn/model.h"
#include "trainer/weights/hf_config.h"
#include "trainer/weights/hf_tensors.h"

namespace fsdp {
namespace {

constexpr const char* kIndex = ".index.json";

std::string SingleFile(const std::string& directory) { return directory + "/model.safetensors"; }

std::string WithoutTrunk(const std::string& name) {
  for (const ModelFamily* family : Families()) {
    const std::string_view trunk = family->hf_names().trunk;
    if (!trunk.empty() && name.starts_with(trunk)) return name.substr(trunk.size());
  }
  return name;
}

// Tensors beside weights in older files, and a tied head.
bool IsOfNoUse(const std::string& name) {
  for (const ModelFamily* family : Families()) {
    for (const std::string_view end : family->hf_names().unused) {
      if (name.ends_with(end)) return true;
    }
  }
  return name == "lm_head.weight";  // Asked for where it is not tied.
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

std::optional<bool> HfHoldsTensor(const std::string& directory, const std::string& tensor) {
  const std::string single = SingleFile(directory);
  if (!PathExists(single) && !PathExists(single + kIndex)) return std::nullopt;
  return HfWeights(directory).Holds(tensor);
}

bool HfWeights::Holds(const std::string& tensor) const {
  return tensors_.contains(WithoutTrunk(tensor));
}

HfWeights::HfWeights(const std::string& directory) : directory_(directory) {
  const std::string single = SingleFile(directory), index = single + kIndex;
  const auto add = [this](const SafetensorsReader& file, const std::string& name) {
    if (!tensors_.emplace(WithoutTrunk(name), Tensor{&file, name}).second) {
      throw CheckpointError(file.path() + ": two tensors are called " + WithoutTrunk(name) +
                            ", but for what stands before it");
    }
  };
  if (PathExists(single)) {
    files_.push_back(std::make_unique<SafetensorsReader>(single));
    for (const std::string& name : files_[0]->Names()) add(*files_[0], name);
    return;
  }
  if (!PathExists(index)) {
    throw CheckpointError(directory +
                          ": holds neither model.safetensors nor model.safetensors.index.json");
  }
  std::map<std::string, const SafetensorsReader*> opened;
  for (const auto& [tensor, name] : ReadIndex(index)) {
    const SafetensorsReader*& file = opened[name];
    if (file == nullptr) {
      files_.push_back(std::make_unique<SafetensorsReader>(directory + "/" + name));
      file = files_.back().get();
    }
    file->Info(tensor);  // Throws where the file lacks it.
    add(*file, tensor);
  }
}

const HfWeights::Tensor& HfWeights::Find(const std::string& tensor, const Shape& shape) const {
  const auto it = tensors_.find(WithoutTrunk(tensor));
  if (it == tensors_.end()) {
    throw CheckpointError(directory_ + ": has no parameter '" + tensor + "'");
  }
  const auto& [file, name] = it->second;
  const std::vector<int64_t>& dims = file->Info(name).shape;
  bool same = static_cast<int>(dims.size()) == shape.rank();
  for (int i = 0; same && i < shape.rank(); ++i) same = dims[i] == shape[i];
  if (!same) {
    std::string text;
    for (const int64_t dim : dims) text += (text.empty() ? "" : ", ") + std::to_string(dim);
    throw CheckpointError(file->path() + ": parameter '" + tensor + "' has shape [" + text +
                          "], want " + shape.ToString());
  }
  return it->second;
}

void HfWeights::RequireAll(const HfTensors& tensors, const ModelHead& head) const {
  std::set<std::string> wanted;
  for (const HfTensors::Tensor& want : tensors.tensors()) {
    if (head.Has(want.name())) {
      // It is drawn.
    } else if (want.buffer != nullptr) {
      FillBuffer(*want.buffer, 0, View(nullptr, want.buffer->dtype(), Shape{0}));
    } else {
      const Tensor& tensor = Find(want.name(), want.shape());
      tensor.file->ReadFloat(tensor.name, 0, {});  // Refuses a dtype that cannot be read.
    }
    wanted.insert(WithoutTrunk(want.name()));
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
  const auto& [file, name] = Find(tensor, shape);
  file->ReadFloat(name, begin, out);
}

void HfWeights::FillBuffer(const ModelBuffer& buffer, int64_t begin, const View& out) const {
  const auto& [file, name] = Find(buffer.name(), buffer.shape());
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
  return {WriteCheckpoint(out, checkpoint, read, progress, read_buffer), config.ignored};
}

}  // namespace fsdp
