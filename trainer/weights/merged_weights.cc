#include "trainer/weights/merged_weights.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "models/shape.h"
#include "trainer/core/errors.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/load.h"
#include "trainer/recipe/recipe.h"
#include "trainer/weights/initial_weights.h"

namespace fsdp {
namespace {

int64_t RowsOfBlock(int64_t width) { return std::max<int64_t>((int64_t{1} << 18) / width, 1); }

}  // namespace

// Row by row of the weight, rank by rank in each: an element's sum has one order.
void AddLora(const LoraFactors& f, const Shape& weight, int64_t begin, std::span<float> out) {
  const bool rows_are_outputs = f.layout == WeightLayout::kOutIn;
  const int64_t width = weight[1], inputs = rows_are_outputs ? width : weight[0];
  std::vector<double> sums;
  for (int64_t done = 0; done < std::ssize(out);) {
    const int64_t row = (begin + done) / width, first = (begin + done) % width;
    const int64_t count = std::min(width - first, std::ssize(out) - done);
    float* const to = out.data() + done;
    done += count;
    if (rows_are_outputs && (row < f.column || row >= f.column + f.columns)) continue;
    sums.assign(static_cast<size_t>(count), 0);
    for (int64_t r = 0; r < f.rank; ++r) {
      if (rows_are_outputs) {
        const double b = f.b[(row - f.column) * f.rank + r];
        const float* const a = f.a.data() + r * inputs + first;
        for (int64_t i = 0; i < count; ++i) sums[i] += b * static_cast<double>(a[i]);
      } else {
        const double a = f.a[r * inputs + row];
        const float* const b = f.b.data() + (first - f.column) * f.rank + r;
        for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(b[i * f.rank]) * a;
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<float>(static_cast<double>(to[i]) + f.scale * sums[i]);
    }
  }
}

MergedWeights::MergedWeights(CheckpointReader& reader, const Model& model, std::string state)
    : reader_(reader), model_(model), layout_(model.linear_layout()), state_(std::move(state)) {
  if (!reader.HasState(state_)) {
    std::string list;
    for (const std::string& s : reader.manifest().StateNames())
      list += (list.empty() ? "" : ", ") + s;
    throw CheckpointError(reader.directory() + ": has no state '" + state_ + "'; it has " + list);
  }
  for (const FlatParameter& flat : reader.manifest().flat_parameters) {
    if (FlatHasState(flat, state_)) continue;
    for (const Placement& p : flat.parameters) {
      frozen_.insert(WholeName(p.name));
      if (flat.of_base) of_base_.insert(WholeName(p.name));
    }
  }
  std::set<std::string> names;
  for (const ModelSegment& segment : model.segments()) {
    for (const Parameter* p : segment.parameters) {
      names.insert(p->name());
      ReadPlain(*p, 0, {});  // Refuses what is missing, or of another shape.
    }
  }
  reader.RequireNoOther(names, "a model of its shape");
  for (const ModelBuffer* buffer : BuffersOf(model)) {
    names.insert(buffer->name());
    ReadBuffer(*buffer, 0, View(nullptr, buffer->dtype(), Shape{0}));
  }
  const StateFormat* buffers = reader.manifest().FindState(kBuffersState);
  for (const OwnTensor& tensor : buffers ? buffers->tensors : std::vector<OwnTensor>()) {
    if (names.count(tensor.name) == 0) {
      throw CheckpointError(reader.directory() + ": holds buffer '" + tensor.name +
                            "', which a model of its shape does not have");
    }
  }
  RequireTables(model);
}

void MergedWeights::RequireTables(const Model& model) {
  tables_ = {kRowsState, Grid::kRows, {}, {}};
  for (const EmbeddingTable& t : model.tables()) {
    tables_.tensors.push_back({t.name, "", t.dtype, Shape{t.rows, t.width}});
  }
  for (int t = 0; t < std::ssize(tables_.tensors); ++t) {
    reader_.ReadRows(tables_, t, 0, 1, 0, View(nullptr, DType::kFloat32, Shape{0}));
  }
  const StateFormat* const there = reader_.manifest().FindState(kRowsState);
  if (there != nullptr && tables_.tensors.empty() && !there->tensors.empty()) {
    throw CheckpointError(reader_.directory() + ": holds table '" + there->tensors[0].name +
                          "', which a model of its shape does not have");
  }
}

const MergedWeights::Block& MergedWeights::BlockOf(int table, int64_t number) {
  constexpr size_t kBlocks = 8;
  for (const Block& block : blocks_) {
    if (block.table == table && block.number == number) return block;
  }
  blocks_.resize(kBlocks);
  Block& block = blocks_[next_block_++ % kBlocks];
  const Shape& shape = tables_.tensors[table].shape;
  const int64_t rows = RowsOfBlock(shape[1]);
  const int64_t count = std::min(rows, shape[0] - number * rows) * shape[1];
  block = {table, number, std::vector<float>(static_cast<size_t>(count))};
  reader_.ReadRows(
      tables_, table, 0, 1, number * rows,
      View(reinterpret_cast<std::byte*>(block.values.data()), DType::kFloat32, Shape{count}));
  return block;
}

void MergedWeights::ReadTable(int table, int64_t begin, std::span<float> out) {
  const int64_t width = tables_.tensors[table].shape[1];
  const int64_t size = RowsOfBlock(width) * width;
  for (size_t done = 0; done < out.size();) {
    const int64_t at = begin + static_cast<int64_t>(done);
    const Block& block = BlockOf(table, at / size);
    const auto skip = static_cast<size_t>(at % size);
    const size_t count = std::min(out.size() - done, block.values.size() - skip);
    std::copy_n(block.values.begin() + static_cast<std::ptrdiff_t>(skip), count,
                out.begin() + static_cast<std::ptrdiff_t>(done));
    done += count;
  }
}

void MergedWeights::ReadBuffer(const ModelBuffer& buffer, int64_t begin, const View& out) {
  reader_.ReadTensor(kBuffersState, {buffer.name(), "", buffer.dtype(), buffer.shape()}, begin,
                     out);
}

const CodedBase& MergedWeights::Base() {
  if (base_) return *base_;
  const CheckpointMeta& meta = reader_.manifest().meta;
  const std::string from = reader_.directory() + "/manifest.json";
  if (!meta.base) throw CheckpointError(from + ": names no weights that its run began with");
  const Recipe recipe = ParseRecipe({{from + ", recipe", meta.recipe}});
  WeightsPath path = meta.base->files;
  path.base = recipe.model.base.value_or("");
  WeightSource weights;
  try {
    const ModelShape shape = ShapeFromJson(meta.config, from + ", config");
    weights = OpenInitialWeights(path, FindHeadToDraw(shape, path).head);
  } catch (const CheckpointError& error) {
    throw CheckpointError(reader_.directory() + ": its frozen weights are those of " +
                          meta.base->files +
                          ", so these, or a link to them, must be there: " + error.what());
  }
  auto base = std::make_shared<CodedBase>(weights.parameters, RecordsOf(weights), model_);
  RequireBase(*meta.base, {path.directory, base->hash()}, reader_.directory());
  base_ = std::move(base);
  return *base_;
}

std::optional<RecordSource> MergedWeights::Records() {
  if (!reader_.manifest().meta.base) return std::nullopt;
  Base();
  RecordSource source;
  source.is_whole = [](const ParameterSlice&) { return true; };
  source.fill = [base = base_](const Parameter& parameter, const ParameterSlice& slice,
                               int64_t first, std::span<uint8_t> records, std::span<float>) {
    base->Records(parameter, slice, first, records);
  };
  return source;
}

void MergedWeights::ReadPlain(const Parameter& parameter, int64_t begin, std::span<float> out) {
  if (of_base_.count(parameter.name()) > 0) {
    reader_.RequireParameter(parameter.name(), parameter.shape());
    if (out.empty()) return;
    return instead_ ? instead_(parameter, begin, out) : Base().Fill(parameter, begin, out);
  }
  reader_.Read(frozen_.count(parameter.name()) > 0 ? "master" : state_, parameter.name(),
               parameter.shape(), begin, out);
}

void MergedWeights::LoadAdapters(const Parameter& parameter) {
  if (std::exchange(loaded_, &parameter) == &parameter) return;
  factors_.clear();
  const int64_t rows = parameter.shape()[0] / parameter.experts();  // An expert's.
  for (const Adapter& adapter : parameter.adapters()) {
    for (int64_t e = 0; e < parameter.experts(); ++e) {
      const ParameterSlice& a = adapter.a->slices()[static_cast<size_t>(e)];
      const ParameterSlice& b = adapter.b->slices()[static_cast<size_t>(e)];
      LoraFactors& f = factors_.emplace_back();
      f.rank = a.rows;
      f.column = e * rows + adapter.column;
      f.columns = b.rows;
      f.scale = adapter.scale;
      f.layout = layout_;
      f.a.resize(static_cast<size_t>(a.shape.NumElements()));
      f.b.resize(static_cast<size_t>(b.shape.NumElements()));
      ReadPlain(*adapter.a, a.begin, f.a);
      ReadPlain(*adapter.b, b.begin, f.b);
    }
  }
}

void MergedWeights::Read(const Parameter& parameter, int64_t begin, std::span<float> out) {
  if (parameter.adapters().empty() || out.empty()) return ReadPlain(parameter, begin, out);
  LoadAdapters(parameter);  // First: they lie elsewhere in the file.
  ReadPlain(parameter, begin, out);
  for (const LoraFactors& f : factors_) AddLora(f, parameter.shape(), begin, out);
}

}  // namespace fsdp
