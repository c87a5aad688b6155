#include "trainer/recipe/hardware.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "trainer/core/errors.h"
#include "trainer/core/nearest.h"
#include "trainer/recipe/containers.h"
#include "trainer/recipe/print.h"

namespace fsdp {
namespace {

using recipe::Integer;
using recipe::Json;
using recipe::Key;
using recipe::KeyOf;
using recipe::Nullable;
using recipe::Number;
using recipe::RecipeReader;
using recipe::YamlNode;

constexpr int64_t kMostBytes = int64_t{1} << 60;
constexpr std::array<const char*, 6> kForms = {"data sheet", "publication", "measured",
                                               "calibrate",  "seen",        "assumed"};
constexpr char kSources[] = "sources";

// The bounds of a file's numbers (docs/simulator.md, "Bounds"): machines of the past and of the
// next decades are inside, and no step's time overflows, whichever of these a file has together.
struct Bounds {
  double least, most;
};
constexpr Bounds kFlopsPerSecond = {1, 1e21};
constexpr Bounds kBytesPerSecond = {1, 1e18};
constexpr Bounds kSeconds = {0, 3600};
constexpr Bounds kSecondsPerByte = {0, 1};
constexpr Bounds kShare = {1e-6, 1};
constexpr Bounds kMultiple = {1e-3, 1e3};  // Our kernels' bytes, so many times.
constexpr Bounds kCapability = {1, 100};
constexpr Bounds kTerms = {0, 1e9};   // A sum's, or columns and rows.
constexpr Bounds kBytes = {0, 1e15};  // A message's.

recipe::Type<double> NumberIn(const Bounds& bounds) {
  return Number({.at_least = bounds.least, .at_most = bounds.most});
}
template <typename T>
KeyOf<T> Within(const Bounds& bounds, const char* name, double T::*field, const char* about) {
  return Key(name, field, NumberIn(bounds), about);
}
template <typename T>
KeyOf<T> Within(const Bounds& bounds, const char* name, std::optional<double> T::*field,
                const char* about) {
  return Key(name, field, Nullable(NumberIn(bounds)), about);
}

recipe::Type<HostTimes> HostType() {
  using H = HostTimes;
  return recipe::Map<H>({
      Within(kSeconds, "operation_s", &H::operation_s, "To enqueue an operation."),
      Within(kSeconds, "event_s", &H::event_s, "To record an event."),
      Within(kSeconds, "wait_s", &H::wait_s, "To let a stream wait for an event."),
      Within(kSeconds, "allocation_s", &H::allocation_s, "A block from a caching allocator."),
      Within(kSeconds, "segment_s", &H::segment_s,
             "To take a segment from the device, or give it back."),
      Within(kSecondsPerByte, "segment_s_per_byte", &H::segment_s_per_byte,
             "The same, a byte of it."),
  });
}

recipe::Type<LinkRates> LinkType() {
  using L = LinkRates;
  return recipe::Map<L>({
      Within(kBytesPerSecond, "ring_bytes_per_s", &L::ring_bytes_per_s,
             "Rate of a ring, for large messages."),
      Within(kSeconds, "ring_step_s", &L::ring_step_s, "The latency of a step of a ring."),
      Within(kBytesPerSecond, "all_to_all_bytes_per_s", &L::all_to_all_bytes_per_s,
             "Rate of a pairwise exchange, for large messages."),
      Within(kSeconds, "all_to_all_step_s", &L::all_to_all_step_s,
             "The latency of one of its steps."),
      Within(kBytes, "ramp_bytes", &L::ramp_bytes,
             "A message of this many bytes per rank reaches half of those rates."),
  });
}

recipe::Type<NetworkRates> NetworkType() {
  using N = NetworkRates;
  return recipe::Map<N>({
      Key("ranks_per_host", &N::ranks_per_host, Integer(1), "Ranks of a host."),
      Within(kSeconds, "collective_s", &N::collective_s, "A collective, beside its steps."),
      Key("inside", &N::inside, LinkType(), "Links inside a host, for each rank."),
      Key("between", &N::between, LinkType(), "Links between hosts, for each host."),
  });
}

recipe::Section<Hardware> ComputeKeys() {
  using H = Hardware;
  return {
      Within(kFlopsPerSecond, "bf16_flops", &H::bf16_flops,
             "FLOP/s of the data sheet, of bf16 by bf16."),
      Within(kFlopsPerSecond, "fp16_flops", &H::fp16_flops, "The same of fp16."),
      Within(kFlopsPerSecond, "fp32_flops", &H::fp32_flops, "The same of fp32."),
      Within(kShare, "product_share", &H::product_share,
             "The share of those that a huge product reaches."),
      Key("multiprocessors", &H::multiprocessors, Nullable(Integer(1, 4096)),
          "Tiles of a product that are computed at once. null: every shape has the rate above."),
      Within(kCapability, "capability", &H::capability,
             "Compute capability of a GPU. null: below 9.0."),
      Key("tile_terms", &H::tile_terms, Integer(0, 1 << 20),
          "Begin and end of a tile, in terms of its sums."),
      Within(kFlopsPerSecond, "attention_forward_flops", &H::attention_forward_flops,
             "FLOP/s of causal attention in bf16, below the diagonal."),
      Within(kFlopsPerSecond, "attention_backward_flops", &H::attention_backward_flops,
             "FLOP/s of its backward pass."),
      Within(kFlopsPerSecond, "attention_64_forward_flops", &H::attention_64_forward_flops,
             "The same of heads of up to 64, forward. null: as of all."),
      Within(kFlopsPerSecond, "attention_64_backward_flops", &H::attention_64_backward_flops,
             "And on the way back."),
      Within(kBytesPerSecond, "copy_bytes_per_s", &H::copy_bytes_per_s,
             "Bytes a second of a copy in device memory, read and written."),
      Within(kSeconds, "launch_s", &H::launch_s, "From one kernel to the next on a stream."),
      Key("cores", &H::cores, Nullable(Integer(1, 4096)),
          "Cores that the CPU's rates were measured with."),
      Key("op_bytes_per_s", &H::op_bytes_per_s, recipe::Named(NumberIn(kBytesPerSecond)),
          "Operations with a rate of their own, by name or `NAME, DTYPE`: bytes a second."),
      Key("op_flops_per_s", &H::op_flops_per_s, recipe::Named(NumberIn(kFlopsPerSecond)),
          "Operations with products that have a rate of their own, by the same names: FLOP/s."),
      Key("op_terms", &H::op_terms, recipe::Named(NumberIn(kTerms)),
          "By the same names: the terms of a sum that its begin and end take as long as."),
      Key("op_sides", &H::op_sides, recipe::Named(NumberIn(kTerms)),
          "By the same names: how many more columns each row of a product costs, and each column "
          "rows."),
      Within(kShare, "reached", &H::reached,
             "Share of their rates that kernels reach in a whole step."),
      Within(kMultiple, "unfused_bytes", &H::unfused_bytes,
             "Bytes of kernels other than products, as a multiple of ours."),
      Within(kShare, "kernels_beside_collectives", &H::kernels_beside_collectives,
             "The share of their rate that kernels keep beside a collective."),
      Within(kShare, "collectives_beside_kernels", &H::collectives_beside_kernels,
             "The share of its rate that a collective keeps beside kernels."),
  };
}

const recipe::Type<Hardware>& HardwareType() {
  using H = Hardware;
  static const recipe::Type<H> type = [] {
    recipe::Section<H> keys = {
        Key("name", &H::name, recipe::Text(), "As the driver calls it.").Required(),
        Key("device", &H::device, recipe::OneOf<H::Device>({"cpu", "cuda"}, recipe::Later()),
            "The device's kind."),
        Key("kernels", &H::kernels, Nullable(recipe::OneOfTexts(KindsOfKernels())),
            "The kind of kernels that a CPU was measured with, as `devices` says it. null: "
            "unknown."),
        Key("memory", &H::memory, Nullable(Integer(1, kMostBytes)),
            "Bytes that a program gets of one device. null: unknown."),
        Key("outside", &H::outside, Nullable(Integer(0, kMostBytes)),
            "The part of them that a rank's contexts and libraries take. null: not measured."),
        Key("host_memory", &H::host_memory, Nullable(Integer(1, kMostBytes)),
            "Bytes of a host, for all of its ranks. null: unknown."),
    };
    for (const recipe::AnyField& field : ComputeKeys().fields) keys.fields.push_back(field);
    const recipe::Section<H> rest = {
        Within(kBytesPerSecond, "host_link_bytes_per_s", &H::host_link_bytes_per_s,
               "Bytes a second between a device and its host, each way."),
        Within(kBytesPerSecond, "host_copy_bytes_per_s", &H::host_copy_bytes_per_s,
               "Bytes a second of a copy in a rank's share of its host, read and written."),
        Within(kBytesPerSecond, "disk_read_bytes_per_s", &H::disk_read_bytes_per_s,
               "Bytes a second from its disk."),
        Within(kBytesPerSecond, "disk_write_bytes_per_s", &H::disk_write_bytes_per_s,
               "Bytes a second to its disk."),
        Key("host", &H::host, HostType(), "Seconds that the host is busy."),
        Key("network", &H::network, Nullable(NetworkType()), "null: one rank."),
        Key(kSources, &H::sources, recipe::Named(recipe::Text()), "Each number's source."),
    };
    for (const recipe::AnyField& field : rest.fields) keys.fields.push_back(field);
    return recipe::Map<H>(keys);
  }();
  return type;
}

std::string Below(const std::string& prefix, const std::string& key) {
  return prefix.empty() ? key : prefix + "." + key;
}

// All keys that there are, with their dots.
void AddKeys(const Json& map, const std::string& prefix, std::vector<std::string>& keys) {
  for (const auto& [key, value] : map.Members()) {
    const std::string name = Below(prefix, key);
    keys.push_back(name);
    if (value.IsObject()) AddKeys(value, name, keys);
  }
}

// A machine with every key of every map.
Json Defaults() {
  Hardware standard;
  standard.network.emplace();
  return HardwareType().Write(standard);
}

// Why `text` is no source; "" where it is one.
std::string WhyNoSource(const std::string& text) {
  for (const char* form : kForms) {
    const std::string begin = std::string(form) + ": ";
    if (!text.starts_with(begin) || text.size() == begin.size()) continue;
    if (form != std::string_view("seen")) return "";
    std::istringstream words(text.substr(begin.size()));
    std::string word;
    int count = 0;
    while (words >> word) ++count;
    return count == 3 ? "" : "want a point of the paper, `seen: FIGURE CURVE X`";
  }
  std::vector<std::string> forms;
  for (const char* form : kForms) {
    const bool seen = form == std::string_view("seen");
    forms.push_back(recipe::Quoted(std::string(form) + (seen ? ": FIGURE CURVE X" : ": ...")));
  }
  return "want " + recipe::Join(forms, "or");
}

using Sources = std::map<std::string, std::string>;

Sources::const_iterator FindSource(const Sources& sources, std::string key) {
  while (true) {
    const auto found = sources.find(key);
    const size_t dot = key.rfind('.');
    if (found != sources.end() || dot == std::string::npos) return found;
    key.resize(dot);
  }
}

// The keys written in the file: numbers, and the maps that hold some.
struct Written {
  std::map<std::string, const YamlNode*> numbers;
  std::set<std::string> maps;
};

void FindNumbers(const YamlNode& map, const std::string& prefix, Written& written) {
  for (const YamlNode::Entry& entry : map.entries) {
    const std::string key = Below(prefix, entry.key);
    if (entry.value->kind == YamlNode::Kind::kMap && key != kSources) {
      const size_t before = written.numbers.size();
      FindNumbers(*entry.value, key, written);
      if (written.numbers.size() > before) written.maps.insert(key);
    } else if (entry.value->kind == YamlNode::Kind::kScalar && entry.value->plain) {
      const recipe::PlainType type = recipe::ResolvePlain(entry.value->text);
      if (type == recipe::PlainType::kInteger || type == recipe::PlainType::kNumber) {
        written.numbers[key] = entry.value.get();
      }
    }
  }
}

// Every number has a source, and every source a number.
void CheckSources(const YamlNode& tree, RecipeReader& reader) {
  if (reader.Unusable(kSources)) return;
  Written written;
  FindNumbers(tree, "", written);
  const YamlNode::Entry* sources = tree.Find(kSources);
  Sources given;  // Bad ones, too, whose numbers then do not count as without a source.
  if (sources != nullptr) {
    for (const YamlNode::Entry& entry : sources->value->entries) given[entry.key];
  }
  for (const auto& [key, node] : written.numbers) {
    if (reader.Unusable(key) || FindSource(given, key) != given.end()) continue;
    reader.Mistake(node->place, key,
                   "no source: say under `" + std::string(kSources) +
                       "` where it is from, as in `" + key + ": \"data sheet: ...\"`");
  }
  if (sources == nullptr) return;
  std::vector<std::string> keys(written.maps.begin(), written.maps.end());
  for (const auto& [key, node] : written.numbers) keys.push_back(key);
  for (const YamlNode::Entry& entry : sources->value->entries) {
    const std::string name = Below(kSources, entry.key);
    if (std::find(keys.begin(), keys.end(), entry.key) == keys.end()) {
      const std::string near = Nearest(entry.key, keys);
      reader.Mistake(
          entry.place, name,
          "this file has no such number" + (near.empty() ? "" : recipe::DidYouMean(near)));
    } else if (const std::string why = WhyNoSource(entry.value->text);
               !why.empty() && !reader.Unusable(name)) {
      reader.Wrong(*entry.value, name, why.substr(std::string("want ").size()));
    }
  }
}

// Leaves out what equals `standard` and has no source; an empty map stays where it has a meaning.
Json ToWrite(const Json& map, const Json& standard, const std::string& prefix,
             const Sources& sources) {
  Json kept = Json::Object();
  for (const auto& [key, value] : map.Members()) {
    const std::string name = Below(prefix, key);
    const Json usual = standard.Contains(key) ? standard[key] : Json();
    if (value.IsObject() && name != kSources) {
      Json inner = ToWrite(value, usual, name, sources);
      if (!inner.empty() || name == "network") kept[key] = std::move(inner);
      continue;
    }
    const bool has_source = FindSource(sources, name) != sources.end();
    if (value.IsNull() || (value == usual && !has_source)) continue;
    if (value.IsNumber() && !has_source) {
      throw std::invalid_argument("[write_hardware] " + name + " has no source");
    }
    kept[key] = value;
  }
  return kept;
}

void AddYaml(const Json& map, const std::string& indent, std::string& text) {
  for (const auto& [key, value] : map.Members()) {
    text += indent + recipe::YamlValue(key) + ":";
    if (value.IsObject() && !value.empty()) {
      text += "\n";
      AddYaml(value, indent + "  ", text);
    } else {
      text += " " + recipe::YamlValue(value) + "\n";
    }
  }
}

}  // namespace

Hardware ReadHardware(const std::string& path) {
  std::string text;
  if (const std::string why = recipe::ReadTextFile(path, text); !why.empty()) {
    throw ConfigError(path + ": " + why);
  }
  std::vector<std::string> keys;
  AddKeys(Defaults(), "", keys);
  RecipeReader reader(keys);
  const auto tree = recipe::ParseYaml(text, 0, /*place_lines=*/true, reader.mistakes());
  Hardware hardware;
  if (tree) HardwareType().Read(*tree, "", reader, hardware);
  if (reader.mistakes().empty() && hardware.name.empty()) {
    reader.Mistake({0, 1, 1}, "name", "missing: what the driver calls the device");
  }
  if (hardware.kernels && hardware.device != Hardware::Device::kCpu) {
    const YamlNode::Entry* kernels = tree->Find("kernels");
    reader.Mistake(kernels->place, "kernels", "the machine is a GPU, and these are a CPU's");
  }
  if (tree) CheckSources(*tree, reader);
  if (!reader.mistakes().empty()) recipe::ThrowMistakes(reader.mistakes(), {path});
  return hardware;
}

std::string WriteHardware(const Hardware& hardware) {
  for (const auto& [key, source] : hardware.sources) {
    if (const std::string why = WhyNoSource(source); !why.empty()) {
      throw std::invalid_argument("[write_hardware] the source of " + key + ": " + why);
    }
  }
  std::string text;
  AddYaml(ToWrite(HardwareType().Write(hardware), Defaults(), "", hardware.sources), "", text);
  return text;
}

const std::vector<std::string>& KindsOfKernels() {
  static const std::vector<std::string> kinds = {"avx2", "avx512",       "avx512_bf16",
                                                 "amx",  "amx_emulated", "amx_emulated_on_avx2"};
  return kinds;
}

bool SameRates(const std::string& kind, const std::string& other, bool bf16) {
  const auto narrow = [](const std::string& name) { return name.ends_with("avx2"); };
  return bf16 ? kind == other : narrow(kind) == narrow(other);
}

std::string HardwareSchema() { return HardwareType()->Schema().Dump(); }

std::string SourceOf(const Hardware& hardware, const std::string& key) {
  const auto found = FindSource(hardware.sources, key);
  return found == hardware.sources.end() ? "" : found->second;
}

std::vector<std::string> PointsSeen(const Hardware& hardware) {
  constexpr std::string_view kSeen = "seen: ";
  std::set<std::string> points;
  for (const auto& [key, source] : hardware.sources) {
    if (source.starts_with(kSeen)) points.insert(source.substr(kSeen.size()));
  }
  return {points.begin(), points.end()};
}

}  // namespace fsdp
