// docs/metrics.md against what the binary writes, both ways: nothing in the file that the page does
// not list, with that type, and nothing on the page that no run has written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/run_binary.h"
#include "tests/trainer/observe/event_reader.h"

namespace fsdp::e2e {
namespace {

struct Described {
  std::string type;  // "text", "integer", "number", "list of text" or "list of lists".
  bool nullable = false, optional = false;
};
struct Page {
  std::map<std::string, std::map<std::string, Described>> kinds;  // By kind and key.
  std::map<std::string, std::string> tags;  // By scalar, where it is from: "step.loss".
  std::set<std::string> texts;              // Tags of texts.
};

Page ReadPage() {
  static const std::regex heading("(##+) ([A-Za-z]+)"), row("\\| `([^`]+)` \\| ([^|]*?) *\\|.*"),
      type("(text|integer|number|list of text|list of lists)( or null)?(, optional)?"),
      text_tag("`([a-z]+)` \\("), key("`([a-z_.]+)`");
  Page page;
  std::ifstream file("docs/metrics.md");
  std::string line, section, kind;
  while (std::getline(file, line)) {
    std::smatch match, cell;
    if (std::regex_match(line, match, heading)) {
      (match[1].length() == 2 ? section : kind) = match[2];
      if (match[1].length() == 3) page.kinds[kind];
    } else if (std::regex_match(line, match, row) && section == "Records") {
      const std::string words = match[2];
      if (!std::regex_match(words, cell, type)) {
        ADD_FAILURE() << "no type: " << line;
        continue;
      }
      const Described described{cell[1], cell[2].matched, cell[3].matched};
      EXPECT_TRUE(page.kinds[kind].emplace(match[1], described).second) << "twice: " << line;
    } else if (std::regex_match(line, match, row)) {
      // "| `time/` | `step.time.data`, ... |": a tag is the prefix and the key's last part.
      const std::string prefix = match[1], keys = match[2];
      for (std::sregex_iterator at(keys.begin(), keys.end(), key), end; at != end; ++at) {
        const std::string from = (*at)[1];
        const std::string tag = prefix + from.substr(from.rfind('.') + 1);
        EXPECT_TRUE(page.tags.emplace(tag, from).second) << line;
      }
    } else if (line.starts_with("Under *Text*: ")) {
      for (std::sregex_iterator at(line.begin(), line.end(), text_tag), end; at != end; ++at) {
        page.texts.insert((*at)[1]);
      }
    }
  }
  return page;
}

// The values of a record, nested ones as "memory.active_peak"; without its kind.
std::map<std::string, Json> Flat(const Json& record) {
  std::map<std::string, Json> flat;
  for (const auto& [key, value] : record.items()) {
    if (key == "kind") continue;
    if (!value.is_object()) {
      flat[key] = value;
      continue;
    }
    for (const auto& [inner, part] : value.items()) flat[key + "." + inner] = part;
  }
  return flat;
}

bool IsOf(const Json& value, const std::string& type) {
  if (type == "text") return value.is_string();
  if (type == "list of text") {
    return value.is_array() && !value.empty() &&
           std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
  }
  if (type == "list of lists") return value.is_array() && !value.empty() && value[0].is_array();
  return type == "integer" ? value.is_number_integer() : value.is_number_float();
}

// Runs that write every kind of record between them, and every key with and without a value.
class MetricsPage : public ::testing::Test {
 protected:
  MetricsPage() : page_(ReadPage()) {
    const std::string text = job_.dir().Write("text", std::string(3000, 'a'));
    on_text_ = {"data.train={source: text, paths: [" + text + "]}", "model.vocab_size=256"};
    const std::string set = "source: text, paths: [" + text + "]";
    Strings named = on_text_;
    named.insert(named.end(), {"data.valid=[{name: one, " + set + "}, {name: two, " + set + "}]",
                               "eval={every: 5, steps: 2, sample: {prompt: a, max_tokens: 3}}",
                               "checkpoint.every=5"});
    Run("named", named, 0);
    named.push_back("train.steps=12");
    Run("named", named, 0);  // Resumes.
    job_.dir().Write("text", std::string(3000, 'b'));
    named.insert(named.end(), {"train.steps=14", "data.allow_changed=true", "train.grad_clip=2",
                               "checkpoint.allow_changed=[train.grad_clip]"});
    Run("named", named, 0);  // Resumes on other data, with another recipe.
    const std::string other = job_.dir() / "other_records";
    std::filesystem::copy(job_.run_dir(), other, std::filesystem::copy_options::recursive);
    std::filesystem::remove(other + "/metrics.jsonl");
    named.insert(named.end(), {"train.steps=16", "checkpoint.allow_changed=[records]"});
    Run("other_records", named, 0);  // Resumes without the records before.
    Strings held_out = on_text_;
    held_out.insert(held_out.end(), {"data.valid={fraction: 0.2}", "eval.every=5"});
    Run("held_out", held_out, 0);
    held_out.insert(held_out.end(),
                    {"optimizer={name: sgd, lr: 1.0e+30}", "train.grad_clip=0", "eval.every=1"});
    Run("not_finite", held_out, 7);
    // Overflows until the scale is small enough.
    Run("scaled",
        {"fsdp.mixed_precision={param_dtype: fp16, grad_dtype: fp16, scaler: {init_scale: 1e30}}"},
        0);
    Run("offload", {"fsdp.cpu_offload={optimizer: true, optimizer_share: 0.5}"}, 0);
    Run("paper", {"fsdp={buffers: caching, fake_all_gather: true, fake_reduce: true}"}, 0);
    const std::string clicks = job_.dir().Write(
        "clicks.yaml",
        "model: {family: dhen, dense_columns: 4, table_rows: [24, 40], table_width: 16,\n"
        "  dense_vectors: 4, num_vectors: 10, num_hidden_layers: 1, num_attention_heads: 2,\n"
        "  cross_rank: 16, intermediate_size: 32}\n"
        "data: {train: {source: clicks, planted: 1000}, valid: null}\n"
        "train: {steps: 2, micro_batch_size: 4, global_batch_size: 4}\n"
        "log: {every: 1}\n");
    const Outcome tables = Call({"--config", clicks, "--set", "run.dir=" + job_.RunDir("tables")});
    EXPECT_EQ(tables.code, 0) << tables.Text();
    runs_.insert("tables");
    Strings experts = {
        "model={family: moe, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, "
        "vocab_size: 32, num_experts: 3, num_experts_per_tok: 2, moe_intermediate_size: 8}",
        "log.expert_loads_every=1"};
    Run("experts", experts, 0);
    // The second step's scores are not finite.
    experts.insert(experts.end(), {"optimizer={name: sgd, lr: 1.0e+30}", "train.grad_clip=0",
                                   "train.router.aux_loss=1.0e+17"});
    Run("routers", experts, 7);
    // Whatever is above the mean of the steps before it.
    Run("spikes",
        {"train.steps=60", "log.spike_z=1.0e-6", "optimizer.lr=0", "data.valid={source: synthetic}",
         "eval={every: 20, steps: 1, stop_after: 1}"},
        0);
  }

  std::vector<Json> Records(const std::string& run) { return ReadMetrics(job_.RunDir(run)); }

  Page page_;
  Job job_;
  std::set<std::string> runs_;

 private:
  void Run(const std::string& name, const Strings& settings, int code) {
    job_.RunDir(name);
    const Outcome outcome = job_.Train(settings);
    EXPECT_EQ(outcome.code, code) << name << "\n" << outcome.Text();
    runs_.insert(name);
  }

  Strings on_text_;
};

TEST_F(MetricsPage, ListsEveryKindAndKey) {
  std::map<std::string, int> records;     // By kind.
  std::map<std::string, int> seen, null;  // By kind.key.
  for (const std::string& run : runs_) {
    for (const Json& record : Records(run)) {
      const std::string kind = record["kind"];
      ASSERT_EQ(page_.kinds.count(kind), 1u) << "not in docs/metrics.md: kind " << kind;
      ++records[kind];
      const auto& keys = page_.kinds[kind];
      const auto values = Flat(record);
      for (const auto& [key, value] : values) {
        const std::string name = kind + "." + key;
        const auto described = keys.find(key);
        ASSERT_NE(described, keys.end()) << "not in docs/metrics.md: " << name;
        if (value.is_null()) {
          ++null[name];
          EXPECT_TRUE(described->second.nullable) << name << " is null: " << record;
        } else {
          ++seen[name];
          EXPECT_TRUE(IsOf(value, described->second.type))
              << name << ", want " << described->second.type << ": " << record;
        }
      }
      for (const auto& [key, described] : keys) {
        EXPECT_TRUE(described.optional || values.contains(key))
            << kind << "." << key << " is not there: " << record;
      }
    }
  }
  for (const auto& [kind, keys] : page_.kinds) {
    EXPECT_GT(records[kind], 0) << "docs/metrics.md lists kind " << kind << ": no run wrote one";
    for (const auto& [key, described] : keys) {
      const std::string name = kind + "." + key;
      EXPECT_GT(seen[name] + null[name], 0)
          << "docs/metrics.md lists " << name << ": never written";
      if (name != "step.mfu") {  // The cpu device does not know its peak.
        EXPECT_GT(seen[name], 0) << name << " never has a value";
      }
      EXPECT_EQ(null[name] > 0, described.nullable) << name;
      EXPECT_EQ(seen[name] + null[name] < records[kind], described.optional) << name;
    }
  }
}

// Every tag is there where its key has a value, with that value, and there are no others.
TEST_F(MetricsPage, ListsEveryTag) {
  using Points = std::vector<std::pair<int64_t, float>>;
  std::set<std::string> texts, used;
  for (const std::string run : {"named", "held_out", "experts"}) {
    std::map<std::string, Points> want, got;
    for (const Json& record : Records(run)) {
      const std::string kind = record["kind"];
      const auto values = Flat(record);
      for (const auto& [tag, from] : page_.tags) {
        if (from.substr(0, from.find('.')) != kind) continue;
        const std::string key = from.substr(from.find('.') + 1);
        if (!values.contains(key) && page_.kinds[kind][key].optional) continue;
        ASSERT_TRUE(values.contains(key)) << tag << " is of " << from << ": " << record;
        const size_t place = tag.find("NAME");
        if ((place != std::string::npos) != values.contains("name")) continue;
        if (values.at(key).is_null()) continue;
        std::string full = tag;
        if (place != std::string::npos)
          full.replace(place, 4, values.at("name").get<std::string>());
        want[full].emplace_back(record["step"], static_cast<float>(values.at(key).get<double>()));
        used.insert(tag);
      }
    }
    for (const std::string& name : job_.dir().List()) {
      if (name.find(run + "/events.out.tfevents.") == std::string::npos) continue;
      for (const TensorBoardEvent& event : ReadEvents(job_.dir() / name)) {
        for (const auto& [tag, value] : event.scalars) got[tag].emplace_back(event.step, value);
        for (const auto& [tag, text] : event.texts) texts.insert(tag);
      }
    }
    for (const auto& [tag, points] : got) {
      EXPECT_TRUE(want.contains(tag)) << "not in docs/metrics.md: tag " << tag;
    }
    for (const auto& [tag, points] : want) EXPECT_EQ(got[tag], points) << tag << " of " << run;
  }
  used.insert("speed/mfu");  // As above.
  for (const auto& [tag, from] : page_.tags) {
    EXPECT_TRUE(used.contains(tag)) << "docs/metrics.md lists " << tag << ": never written";
  }
  EXPECT_EQ(texts, page_.texts);
}

}  // namespace
}  // namespace fsdp::e2e
