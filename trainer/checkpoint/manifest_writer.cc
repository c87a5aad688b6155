#include "trainer/checkpoint/manifest_writer.h"

#include <utility>
#include <vector>

#include "trainer/checkpoint/chunk_checksum.h"
#include "trainer/core/errors.h"
#include "trainer/core/hex.h"
#include "trainer/core/json_tree.h"

namespace fsdp {
namespace {

std::string Dump(const JsonTree& json) {
  try {
    return json.Dump();
  } catch (const NotUtf8& error) {
    throw CheckpointError(std::string("a checkpoint's manifest cannot be written: ") +
                          error.what());
  }
}

std::string Dump(const std::vector<DataFile>& files) {
  JsonTree json = JsonTree::List();
  for (const DataFile& file : files) {
    json.Append(
        JsonTree::Object({{"path", file.path}, {"bytes", file.bytes}, {"hash", ToHex(file.hash)}}));
  }
  // A path need not be UTF-8, and is there for people.
  return json.Dump(-1, JsonTree::IllFormed::kReplaced);
}

JsonTree ToJson(const Shape& shape) {
  JsonTree dims = JsonTree::List();
  for (int i = 0; i < shape.rank(); ++i) dims.Append(shape[i]);
  return dims;
}

JsonTree ToJson(const StateFormat& state, const std::vector<FlatParameter>& flats) {
  if (HasOwnTensors(state.grid)) {
    JsonTree tensors = JsonTree::List();
    for (const OwnTensor& tensor : state.tensors) {
      JsonTree json = JsonTree::Object();
      json["name"] = tensor.name;
      if (!tensor.owner.empty()) json["owner"] = tensor.owner;
      json["dtype"] = Name(tensor.dtype);
      json["shape"] = ToJson(tensor.shape);
      tensors.Append(std::move(json));
    }
    return JsonTree::Object({{"grid", Name(state.grid)}, {"tensors", std::move(tensors)}});
  }
  JsonTree dtypes = JsonTree::Object();
  for (size_t u = 0; u < flats.size(); ++u) {
    if (state.Has(flats[u], u)) dtypes[flats[u].name] = Name(state.dtypes.at(u));
  }
  return JsonTree::Object({{"grid", Name(state.grid)}, {"dtypes", std::move(dtypes)}});
}

JsonTree ToJson(const FlatParameter& flat) {
  JsonTree parameters = JsonTree::List();
  for (const Placement& p : flat.parameters) {
    JsonTree json =
        JsonTree::Object({{"name", p.name}, {"shape", ToJson(p.shape)}, {"offset", p.offset}});
    if (flat.HasRecords()) json["bytes"] = p.coded_bytes;
    parameters.Append(std::move(json));
  }
  JsonTree json = JsonTree::Object({{"name", flat.name},
                                    {"size", flat.size},
                                    {"shard_size", flat.shard_size},
                                    {"frozen", flat.frozen},
                                    {"parameters", std::move(parameters)}});
  if (flat.dtypes.whole) json["whole"] = true;
  if (flat.of_base) json["base"] = true;
  if (flat.HasRecords()) json["code"] = Name(flat.dtypes.code);
  return json;
}

}  // namespace

std::string ManifestFileToJson(const ManifestFile& file) {
  JsonTree chunks = JsonTree::List(), slices = JsonTree::List();
  for (const uint64_t chunk : file.chunks) chunks.Append(ToHex(chunk));
  for (const ManifestSlice& s : file.slices) {
    slices.Append(JsonTree::Object(
        {{"state", s.state},
         {s.tensor.empty() ? "unit" : "tensor", s.tensor.empty() ? s.flat : s.tensor},
         {"begin", s.begin},
         {"count", s.count},
         {"at", s.at},
         {"bytes", s.bytes}}));
  }
  return Dump(JsonTree::Object({{"name", file.name},
                                {"bytes", file.bytes},
                                {"chunk_bytes", file.chunk_bytes},
                                {"chunks", std::move(chunks)},
                                {"slices", std::move(slices)}}));
}

std::string ManifestToText(const Manifest& manifest) {
  const auto list = [](const auto& elements, const auto& to_text) {
    std::string text = "[";
    for (const auto& element : elements) {
      text.append(text.size() == 1 ? "\n" : ",\n").append(to_text(element));
    }
    return text + "]";
  };
  const CheckpointMeta& meta = manifest.meta;
  std::string rest;
  const auto add = [&](const char* key, const std::string& value) {
    rest.append(rest.empty() ? "\"" : ",\n\"").append(key).append("\": ").append(value);
  };
  add("format", Dump(kManifestFormat));
  add("version", std::to_string(kManifestVersion));
  add("world", std::to_string(manifest.world));
  add("shards", std::to_string(manifest.shards));
  add("step", std::to_string(meta.step));
  add("tokens", std::to_string(meta.tokens));
  add("seed", std::to_string(meta.seed));
  add("updates", std::to_string(meta.updates));
  if (meta.skipped > 0) add("skipped", std::to_string(meta.skipped));
  if (meta.scaler) {
    add("scaler", "{\"scale\": " + Dump(meta.scaler->scale) +
                      ", \"good_steps\": " + std::to_string(meta.scaler->good_steps) + "}");
  }
  if (const auto& e = meta.evaluation) {
    add("evaluation", std::string("{") + (e->loss ? "\"loss\": " + Dump(*e->loss) + ", " : "") +
                          "\"best\": " + Dump(e->best) +
                          ", \"since_best\": " + std::to_string(e->since_best) + "}");
  }
  if (meta.base) {
    add("base", "{\"files\": " + Dump(meta.base->files) + ", \"hash\": \"" +
                    ToHex(meta.base->hash) + "\"}");
  }
  if (meta.evaluate_first) add("evaluate_first", "true");
  if (!meta.products.empty()) add("products", Dump(meta.products));
  if (!meta.classes.empty()) {
    add("classes", JsonTree(meta.classes).Dump(-1, JsonTree::IllFormed::kReplaced));
  }
  if (!meta.beside.empty()) add("beside", Dump(meta.beside));
  add("recipe", Dump(meta.recipe));
  add("config", Dump(meta.config));
  if (meta.data) {
    add("data",
        "{\"train\": " + Dump(meta.data->train) + ", \"valid\": " + Dump(meta.data->valid) + "}");
  }
  if (meta.records) {
    add("records", "{\"bytes\": " + std::to_string(meta.records->bytes) + ", \"hash\": \"" +
                       ToHex(meta.records->hash) + "\"}");
  }
  add("states", Dump(manifest.StateNames()));
  std::string formats;
  for (const StateFormat& state : manifest.states) {
    formats.append(formats.empty() ? "\n" : ",\n")
        .append(Dump(state.name))
        .append(": ")
        .append(Dump(ToJson(state, manifest.flat_parameters)));
  }
  add("formats", "{" + formats + "}");
  add("units",
      list(manifest.flat_parameters, [](const FlatParameter& flat) { return Dump(ToJson(flat)); }));
  add("files", list(manifest.files, ManifestFileToJson));
  rest += "}\n";
  return std::string(kManifestBeforeChecksum) + ToHex(Checksum(rest)) +
         std::string(kManifestAfterChecksum) + rest;
}

}  // namespace fsdp
