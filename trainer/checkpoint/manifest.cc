#include "trainer/checkpoint/manifest.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>

#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/core/errors.h"
#include "trainer/core/json_reader.h"
#include "trainer/core/read_file.h"

namespace fsdp {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 60;  // Sums and products below stay in 64 bits.
constexpr int64_t kMinChunkBytes = int64_t{1} << 12, kMaxChunkBytes = int64_t{1} << 26;
constexpr size_t kHexDigits = 16;

std::optional<uint64_t> FromHex(std::string_view text) {
  if (text.size() != kHexDigits) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'a' && c <= 'f')) return std::nullopt;
    value = value * 16 + static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

constexpr JsonErrors kErrors{
    .raise = [](const std::string& message) { throw CheckpointError(message); }};

uint64_t Hex(const JsonValue& json) {
  const std::optional<uint64_t> value = FromHex(json.Text());
  if (!value) json.Refuse("want 16 hexadecimal digits");
  return *value;
}

// A name of our own: printed in messages, part of a tensor's name.
const std::string& PlainName(const JsonValue& json) {
  const std::string& name = json.Text();
  if (name.empty()) json.Refuse("is empty");
  return name;
}

std::vector<DataFile> ParseDataFiles(const JsonValue& node) {
  std::vector<DataFile> files;
  for (const JsonValue& file : node.Elements()) {
    files.push_back(
        {file.At("path").Text(), file.At("bytes").Integer(0, kMaxFileBytes), Hex(file.At("hash"))});
  }
  return files;
}

Shape ParseShape(const JsonValue& node) {
  std::vector<int64_t> dims;
  for (const JsonValue& dim : node.At("shape").Elements()) {
    dims.push_back(dim.Integer(0, Shape::kMaxElements));
  }
  try {
    return Shape(dims);
  } catch (const std::invalid_argument& error) {
    node.Refuse(error.what());
  }
}

Placement ParsePlacement(const JsonValue& node, bool coded) {
  Placement p;
  p.name = PlainName(node.At("name"));
  p.shape = ParseShape(node);
  p.offset = node.At("offset").Integer(0, Shape::kMaxElements);
  if (coded) p.coded_bytes = node.At("bytes").Integer(1, Shape::kMaxElements);
  return p;
}

FlatParameter ParseFlatParameter(const JsonValue& node, int shards) {
  FlatParameter flat;
  flat.name = PlainName(node.At("name"));
  flat.size = node.At("size").Integer(0, Shape::kMaxElements);
  flat.shard_size = node.At("shard_size").Integer(0, flat.size);
  flat.frozen = node.At("frozen").Boolean();
  if (const auto whole = node.Find("whole")) flat.dtypes.whole = whole->Boolean();
  if (const auto code = node.Find("code")) {
    const std::optional<WeightCode> known = FindWeightCode(code->Text());
    if (!known || !flat.frozen) code->Refuse("is no code of frozen weights");
    flat.dtypes.code = *known;
  }
  flat.of_base = flat.HasRecords();
  if (const auto base = node.Find("base")) flat.of_base = base->Boolean();
  if (flat.of_base && !flat.frozen) node.Refuse("is of the base, but not frozen");
  if (!flat.of_base && flat.HasRecords()) node.Refuse("has a code, but is not of the base");
  if (flat.size % shards != 0 || flat.size / shards != flat.shard_size) {
    node.Refuse("size is not " + std::to_string(shards) + " times shard_size");
  }
  for (const JsonValue& p : node.At("parameters").Elements()) {
    flat.parameters.push_back(ParsePlacement(p, flat.HasRecords()));
  }
  std::vector<const Placement*> order;
  for (const Placement& p : flat.parameters) order.push_back(&p);
  std::sort(order.begin(), order.end(), [](const Placement* a, const Placement* b) {
    return std::pair(a->offset, a->size()) < std::pair(b->offset, b->size());
  });
  int64_t reached = 0;
  for (const Placement* p : order) {
    if (p->offset < reached) node.Refuse(Quote(p->name) + " lies on another parameter");
    reached = p->offset + p->size();
    if (reached > flat.size) node.Refuse(Quote(p->name) + " ends behind its unit");
  }
  return flat;
}

DType ParseDType(const JsonValue& node, Grid grid) {
  const std::optional<DType> dtype = FindStateDType(node.Text(), grid);
  if (!dtype) node.Refuse("no dtype of states is called " + Quote(node.Text()));
  return *dtype;
}

OwnTensor ParseOwnTensor(const JsonValue& node) {
  OwnTensor tensor;
  tensor.name = PlainName(node.At("name"));
  if (node.Has("owner")) tensor.owner = PlainName(node.At("owner"));
  tensor.dtype = ParseDType(node.At("dtype"), Grid::kTensor);
  tensor.shape = ParseShape(node);
  if (tensor.shape.NumElements() == 0) node.Refuse("has no elements");
  return tensor;
}

StateFormat ParseFormat(const JsonValue& node, const std::string& name,
                        const std::vector<FlatParameter>& flats) {
  StateFormat state{name, Grid::kElement, {}, {}};
  const JsonValue grid = node.At("grid");
  const std::optional<Grid> known = FindGrid(grid.Text());
  if (!known) {
    grid.Refuse("this build knows of no grid " + Quote(grid.Text()) +
                ": use the build that wrote it, or a newer one");
  }
  state.grid = *known;
  if (HasOwnTensors(state.grid)) {
    std::set<std::string_view> names, parameters;
    for (const FlatParameter& flat : flats) {
      for (const Placement& p : flat.parameters) parameters.insert(p.name);
    }
    for (const JsonValue& tensor : node.At("tensors").Elements()) {
      state.tensors.push_back(ParseOwnTensor(tensor));
      if (state.grid == Grid::kRows && state.tensors.back().shape.rank() == 0) {
        tensor.Refuse("has no rows");
      }
      const std::string& owner = state.tensors.back().owner;
      if (!owner.empty() && parameters.count(owner) == 0) {
        tensor.Refuse("its owner " + Quote(owner) + " is no parameter");
      }
    }
    for (const OwnTensor& tensor : state.tensors) {
      if (!names.insert(tensor.name).second) node.Refuse("two tensors " + Quote(tensor.name));
    }
    return state;
  }
  std::map<std::string_view, size_t> without;  // Those whose dtype is to come.
  for (size_t u = 0; u < flats.size(); ++u) {
    if (FlatHasState(flats[u], name)) without[flats[u].name] = u;
  }
  state.dtypes.resize(flats.size(), DType::kFloat32);
  const bool blocks = state.grid == Grid::kBlock;
  if (blocks) {
    state.coded.resize(flats.size());
    if (!name.ends_with(kAbsmaxSuffix)) node.Refuse("a state of blocks has no " + Quote(name));
  }
  const JsonValue dtypes = node.At("dtypes");
  for (const auto& [flat, dtype] : dtypes.Members()) {
    const auto it = without.find(flat);
    if (it == without.end()) dtypes.Refuse("no unit " + Quote(flat) + " has the state");
    state.dtypes[it->second] = ParseDType(dtype, state.grid);
    if (blocks) {
      state.coded[it->second] = true;
      if (state.dtypes[it->second] != DType::kFloat32) dtypes.Refuse("an absmax is fp32");
    }
    without.erase(it);
  }
  if (!without.empty() && !blocks) dtypes.Refuse("has no " + Quote(without.begin()->first));
  return state;
}

ManifestSlice ParseSlice(const JsonValue& node, int64_t file_bytes) {
  ManifestSlice s;
  s.state = PlainName(node.At("state"));
  if (node.Has("tensor")) {
    s.tensor = PlainName(node.At("tensor"));
  } else {
    s.flat = PlainName(node.At("unit"));
  }
  s.begin = node.At("begin").Integer(0, Shape::kMaxElements);
  s.count = node.At("count").Integer(1, Shape::kMaxElements);
  s.at = node.At("at").Integer(0, file_bytes);
  s.bytes = node.At("bytes").Integer(1, kMaxFileBytes);
  if (s.bytes > file_bytes - s.at) node.Refuse("ends behind its file");
  return s;
}

ManifestFile ParseFile(const JsonValue& node) {
  ManifestFile file;
  file.name = node.At("name").Text();
  file.bytes = node.At("bytes").Integer(0, kMaxFileBytes);
  file.chunk_bytes = node.At("chunk_bytes").Integer(kMinChunkBytes, kMaxChunkBytes);
  for (const JsonValue& chunk : node.At("chunks").Elements()) file.chunks.push_back(Hex(chunk));
  const int64_t chunks = (file.bytes + file.chunk_bytes - 1) / file.chunk_bytes;
  if (static_cast<int64_t>(file.chunks.size()) != chunks) {
    node.Refuse("has checksums of " + std::to_string(file.chunks.size()) + " chunks, want " +
                std::to_string(chunks));
  }
  for (const JsonValue& slice : node.At("slices").Elements()) {
    file.slices.push_back(ParseSlice(slice, file.bytes));
  }
  std::vector<const ManifestSlice*> order;
  for (const ManifestSlice& s : file.slices) order.push_back(&s);
  std::sort(order.begin(), order.end(),
            [](const ManifestSlice* a, const ManifestSlice* b) { return a->at < b->at; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->at - order[i - 1]->at < order[i - 1]->bytes) {
      node.Refuse("two slices share bytes");
    }
  }
  return file;
}

void CheckNames(const JsonValue& document, const std::vector<std::string>& names,
                const std::vector<FlatParameter>& flat_parameters) {
  std::set<std::string_view> states, flats, parameters;
  for (const std::string& state : names) {
    if (!states.insert(state).second) document.Refuse("two states " + Quote(state));
  }
  for (const FlatParameter& flat : flat_parameters) {
    if (!flats.insert(flat.name).second) document.Refuse("two units " + Quote(flat.name));
    for (const Placement& p : flat.parameters) {
      if (!parameters.insert(p.name).second) document.Refuse("two parameters " + Quote(p.name));
    }
  }
}

// In the order of `names`.
std::vector<StateFormat> ParseFormats(const JsonValue& formats,
                                      const std::vector<std::string>& names,
                                      const std::vector<FlatParameter>& flats) {
  std::map<std::string_view, size_t> without;  // Those whose format is to come.
  for (size_t s = 0; s < names.size(); ++s) without[names[s]] = s;
  std::vector<StateFormat> states(names.size());
  for (const auto& [name, format] : formats.Members()) {
    const auto it = without.find(name);
    if (it == without.end()) formats.Refuse("no state " + Quote(name));
    states[it->second] = ParseFormat(format, name, flats);
    without.erase(it);
  }
  if (!without.empty()) formats.Refuse("has no " + Quote(without.begin()->first));
  return states;
}

// Checks that each slice's flat parameter or tensor exists and takes as many bytes as the slice
// has.
void CheckSlices(const JsonValue& document, const Manifest& manifest) {
  std::map<std::pair<std::string_view, std::string_view>, int64_t> value_bytes;
  for (const StateFormat& state : manifest.states) {
    for (const OwnTensor& t : state.tensors) value_bytes[{state.name, t.name}] = SizeOf(t.dtype);
    for (size_t u = 0; u < state.dtypes.size(); ++u) {
      value_bytes[{state.name, manifest.flat_parameters[u].name}] = SizeOf(state.dtypes[u]);
    }
  }
  const auto check = [&](const ManifestSlice& slice) {
    const StateFormat* state = manifest.FindState(slice.state);
    if (state == nullptr) document.Refuse("no state " + Quote(slice.state));
    const std::string of = "a slice of state " + Quote(slice.state);
    const bool own = HasOwnTensors(state->grid);
    if (own == slice.tensor.empty()) {
      document.Refuse(of + " is none of its grid, " + std::string(Name(state->grid)));
    }
    const auto it = value_bytes.find({slice.state, own ? slice.tensor : slice.flat});
    if (it == value_bytes.end()) {
      document.Refuse(own ? "no tensor " + Quote(slice.tensor) : "no unit " + Quote(slice.flat));
    }
    const int64_t elements = state->elements_per_value();
    if (slice.begin % elements != 0 || slice.count % elements != 0) {
      document.Refuse(of + " cuts a block");
    }
    if (const int64_t want = slice.count / elements * it->second; slice.bytes != want) {
      document.Refuse(of + " has " + std::to_string(slice.bytes) + " bytes, want " +
                      std::to_string(want));
    }
  };
  for (const ManifestFile& file : manifest.files) {
    for (const ManifestSlice& slice : file.slices) check(slice);
  }
}

// That each file has the rows that its rank was dealt.
void CheckDeal(const JsonValue& document, const Manifest& manifest, const StateFormat& state,
               const Extents& extents) {
  const RowPlacement deal = DealOf(state, manifest.world);
  for (int t = 0; t < std::ssize(state.tensors); ++t) {
    const OwnTensor& table = state.tensors[t];
    const int64_t row = table.shape.NumElements() / table.shape[0];
    int last = -1;
    for (const Extent& e : extents.at({state.name, table.name})) {
      const bool dealt = e.file > last && e.count == deal.RowsOf(t, e.file).count * row;
      if (!dealt) document.Refuse("the rows of " + Quote(table.name) + " are dealt otherwise");
      last = e.file;
    }
  }
}

void CheckCoverage(const JsonValue& document, const Manifest& manifest) {
  const Extents extents = ExtentsOf(manifest);
  const auto check = [&](const std::string& state, const char* kind, const std::string& name,
                         int64_t want) {
    int64_t reached = 0;
    if (const auto it = extents.find({state, name}); it != extents.end()) {
      for (const Extent& e : it->second) {
        if (e.begin != reached) {
          reached = -1;
          break;
        }
        reached += e.count;
      }
    }
    if (reached != want) {
      document.Refuse("the slices of state " + Quote(state) + " do not hold " + kind + " " +
                      Quote(name) + " exactly once");
    }
  };
  for (const StateFormat& state : manifest.states) {
    for (const OwnTensor& tensor : state.tensors) {
      check(state.name, "tensor", tensor.name, tensor.shape.NumElements());
      const bool whole = state.grid != Grid::kRows;
      if (whole && extents.at({state.name, tensor.name}).size() != 1) {
        document.Refuse("tensor " + Quote(tensor.name) + " is in parts");
      }
    }
    if (state.grid == Grid::kRows) CheckDeal(document, manifest, state, extents);
    if (HasOwnTensors(state.grid)) continue;
    for (size_t u = 0; u < manifest.flat_parameters.size(); ++u) {
      const FlatParameter& flat = manifest.flat_parameters[u];
      check(state.name, "unit", flat.name, state.Has(flat, u) ? flat.size : 0);
    }
  }
}

}  // namespace

int64_t Manifest::DataBytes() const {
  int64_t bytes = 0;
  for (const ManifestFile& file : files) bytes += file.bytes;
  return bytes;
}

std::vector<std::string> Manifest::StateNames() const {
  std::vector<std::string> names;
  for (const StateFormat& state : states) names.push_back(state.name);
  return names;
}

const StateFormat* Manifest::FindState(std::string_view name) const {
  for (const StateFormat& state : states) {
    if (state.name == name) return &state;
  }
  return nullptr;
}

std::string RankFileName(int rank) { return "rank_" + std::to_string(rank) + ".safetensors"; }

ManifestFile ParseManifestFile(std::string_view json, const std::string& path) {
  return ParseFile(ParseJson(json, path, kErrors));
}

Manifest ParseManifest(std::string_view text, const std::string& path) {
  const auto refuse = [&](const std::string& reason) {
    throw CheckpointError(path + ": " + reason);
  };
  const size_t head = kManifestBeforeChecksum.size() + kHexDigits + kManifestAfterChecksum.size();
  if (text.size() < head ||
      text.substr(0, kManifestBeforeChecksum.size()) != kManifestBeforeChecksum ||
      text.substr(head - kManifestAfterChecksum.size(), kManifestAfterChecksum.size()) !=
          kManifestAfterChecksum) {
    refuse("is not a checkpoint's manifest");
  }
  const std::optional<uint64_t> checksum =
      FromHex(text.substr(kManifestBeforeChecksum.size(), kHexDigits));
  if (!checksum || *checksum != Checksum(text.substr(head))) {
    refuse("is damaged: its contents do not have its checksum");
  }
  const JsonValue document = ParseJson(text, path, kErrors);
  if (const std::string& format = document.At("format").Text(); format != kManifestFormat) {
    refuse("has the format " + Quote(format) + ", want '" + kManifestFormat + "'");
  }
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  const int64_t version = document.At("version").Integer(1, kAny);
  if (version < kManifestVersion) {
    refuse("has version " + std::to_string(version) + ", written by a build before 0.1.0");
  }
  if (version > kManifestVersion) {
    refuse("has version " + std::to_string(version) + ", this build reads up to " +
           std::to_string(kManifestVersion) + ": use the build that wrote it, or a newer one");
  }
  Manifest manifest;
  manifest.world = static_cast<int>(document.At("world").Integer(1, 1 << 24));
  manifest.shards = static_cast<int>(document.At("shards").Integer(1, manifest.world));
  if (manifest.world % manifest.shards != 0) refuse("world is not a multiple of shards");
  manifest.meta.step = document.At("step").Integer(0, kAny);
  manifest.meta.tokens = document.At("tokens").Integer(0, kAny);
  manifest.meta.seed = document.At("seed").Unsigned();
  CheckpointMeta& meta = manifest.meta;
  meta.updates = document.At("updates").Integer(0, meta.step);
  if (document.Has("skipped")) meta.skipped = document.At("skipped").Integer(0, meta.step);
  if (document.Has("scaler")) {
    const JsonValue scaler = document.At("scaler"), scale = scaler.At("scale");
    const auto value = static_cast<float>(scale.Number());
    if (!(value > 0) || !std::isfinite(value)) scale.Refuse("is no scale");
    meta.scaler = {value, scaler.At("good_steps").Integer(0, int64_t{1} << 24)};
  }
  if (const auto evaluation = document.Find("evaluation")) {
    CheckpointMeta::Evaluation e;
    if (evaluation->Has("loss")) e.loss = evaluation->At("loss").Number();
    e.best = evaluation->At("best").Number();
    e.since_best = evaluation->At("since_best").Integer(0, meta.step);
    meta.evaluation = e;
  }
  if (const auto base = document.Find("base")) {
    meta.base = {base->At("files").Text(), Hex(base->At("hash"))};
  }
  if (document.Has("evaluate_first")) meta.evaluate_first = document.At("evaluate_first").Boolean();
  if (document.Has("products")) meta.products = document.At("products").Text();
  if (const auto names = document.Find("classes")) {
    for (const JsonValue& name : names->Elements()) meta.classes.push_back(name.Text());
  }
  if (const auto names = document.Find("beside")) {
    for (const JsonValue& name : names->Elements()) {
      meta.beside.push_back(PlainName(name));
      const std::filesystem::path path(name.Text());
      const bool leaves = path.is_absolute() || path.lexically_normal() != path ||
                          *path.begin() == ".." || !path.has_filename();
      if (leaves) name.Refuse("is not the name of a file in the directory");
    }
  }
  manifest.meta.recipe = document.At("recipe").Text();
  manifest.meta.config = document.At("config").Text();
  if (const auto data = document.Find("data")) {
    meta.data = {ParseDataFiles(data->At("train")), ParseDataFiles(data->At("valid"))};
  }
  if (const auto records = document.Find("records")) {
    meta.records = {records->At("bytes").Integer(0, kMaxFileBytes), Hex(records->At("hash"))};
  }
  std::vector<std::string> states;
  for (const JsonValue& state : document.At("states").Elements())
    states.push_back(PlainName(state));
  for (const JsonValue& flat : document.At("units").Elements()) {
    manifest.flat_parameters.push_back(ParseFlatParameter(flat, manifest.shards));
  }
  CheckNames(document, states, manifest.flat_parameters);
  manifest.states = ParseFormats(document.At("formats"), states, manifest.flat_parameters);
  for (const JsonValue& file : document.At("files").Elements()) {
    manifest.files.push_back(ParseFile(file));
    const std::string want = RankFileName(static_cast<int>(manifest.files.size()) - 1);
    if (manifest.files.back().name != want) {
      file.Refuse("is called " + Quote(manifest.files.back().name) + ", want '" + want + "'");
    }
  }
  if (static_cast<int>(manifest.files.size()) != manifest.world) {
    refuse("has " + std::to_string(manifest.files.size()) + " files for a world of " +
           std::to_string(manifest.world));
  }
  CheckSlices(document, manifest);
  CheckCoverage(document, manifest);
  return manifest;
}

namespace {

int64_t SizeOfFile(const CheckpointHold& directory, const std::string& file) {
  const auto refuse = [&](const std::string& why) {
    throw CheckpointError(directory.path() + "/" + file + ": " + why);
  };
  struct stat status;
  const auto [at, name] = directory.PlaceOf(file);
  if (::fstatat(at, name.c_str(), &status, 0) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse("is not a file");
  return status.st_size;
}

}  // namespace

Manifest ReadManifestAlone(const CheckpointHold& directory) {
  const std::string path = directory.path() + "/" + kManifestName;
  SizeOfFile(directory, kManifestName);  // Which says what it is, where it is no file.
  const auto [at, name] = directory.PlaceOf(kManifestName);
  const FileText read = ReadFileTextAt(at, name, kAnySize);
  if (read.why.empty()) return ParseManifest(read.text, path);
  throw CheckpointError(path + ": " + (read.error == 0 ? "" : "cannot be read: ") + read.why);
}

Manifest ReadManifestAlone(const std::string& directory) {
  return ReadManifestAlone(CheckpointHold::OfNothing(directory));
}

Manifest ReadManifest(const CheckpointHold& directory) {
  Manifest manifest = ReadManifestAlone(directory);
  for (const ManifestFile& file : manifest.files) {
    if (const int64_t bytes = SizeOfFile(directory, file.name); bytes != file.bytes) {
      throw CheckpointError(directory.path() + "/" + file.name + ": has " + std::to_string(bytes) +
                            " bytes, want " + std::to_string(file.bytes));
    }
  }
  return manifest;
}

Manifest ReadManifest(const std::string& directory) {
  return ReadManifest(CheckpointHold::OfNothing(directory));
}

Extents ExtentsOf(const Manifest& manifest) {
  Extents extents;
  for (size_t f = 0; f < manifest.files.size(); ++f) {
    for (const ManifestSlice& s : manifest.files[f].slices) {
      extents[{s.state, s.tensor.empty() ? s.flat : s.tensor}].push_back(
          {s.begin, s.count, s.at, s.bytes, static_cast<int>(f)});
    }
  }
  for (auto& [key, list] : extents) {
    std::sort(list.begin(), list.end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  }
  return extents;
}

}  // namespace fsdp
