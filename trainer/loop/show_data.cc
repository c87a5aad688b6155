#include "trainer/loop/show_data.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/shape.h"
#include "trainer/core/batch.h"
#include "trainer/core/json.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/loop/run_data.h"
#include "trainer/loop/setup.h"
#include "trainer/nn/model.h"
#include "trainer/recipe/recipe.h"

namespace fsdp {
namespace {

using Tokens = ShownSample::Tokens;

struct Shown {
  int64_t number = 0;
  std::string source;  // "data.train[1]".
  ShownSample sample;
};

// Memory of one sample.
class OneRow {
 public:
  explicit OneRow(const BatchSpec& spec)
      : bytes_(static_cast<size_t>(BatchBytes(spec, 1)) + kAlignment) {
    void* begin = bytes_.data();
    size_t room = bytes_.size();
    std::align(kAlignment, bytes_.size() - kAlignment, begin, room);
    row_ = CarveBatch(spec, 1, static_cast<std::byte*>(begin));
  }
  const Batch& row() const { return row_; }

 private:
  static constexpr size_t kAlignment = 64;
  std::vector<std::byte> bytes_;
  Batch row_;
};

// Calls `part` for the longest parts of a document that are all targets, or none of them.
template <typename Visit>
void ForEachPart(const Tokens& text, const Visit& part) {
  const size_t n = text.ids.size();
  for (size_t begin = 0, end = 0; begin < n; begin = end) {
    for (end = begin + 1; end < n && text.positions[end] != 0; ++end) {
      if (text.is_target[end] != text.is_target[begin]) break;
    }
    part(begin, end);
  }
}

class Page {
 public:
  Page(const ShowDataOptions& options, std::shared_ptr<const Tokenizer> tokenizer,
       std::ostream& out)
      : options_(options), tokenizer_(std::move(tokenizer)), out_(out) {}

  // `first`: the ids begin a document.
  std::string TextOf(std::span<const int32_t> ids, bool first) const {
    if (tokenizer_) return tokenizer_->Decode(ids, first);
    std::string text;
    for (const int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
    return text;
  }

  void WriteLegend() const {
    out_ << "tokens that the loss counts, the targets, are "
         << (options_.colours ? "green" : "between \u00ab and \u00bb") << "\n";
  }

  void Write(const Shown& shown) const {
    const ShownSample& sample = shown.sample;
    out_ << "sample " << shown.number << " of " << shown.source
         << (sample.where.empty() ? "" : ", " + PrintableName(sample.where)) << "\n";
    for (const auto& [name, value] : sample.facts) {
      out_ << "  " << PrintableName(name) << ": " << PrintableName(value) << "\n";
    }
    for (const Tokens& text : sample.tokens) WriteTokens(text);
  }

  void Write(const std::string& set, const Tally& tally) const {
    out_ << PrintableName(set) << ": ";
    const char* between = "";
    for (const auto& [name, count] : tally) {
      out_ << std::exchange(between, ", ") << name << " " << Grouped(count);
    }
    out_ << "\n";
  }

  std::string Json(const Shown& shown) const {
    std::vector<std::string> facts, texts;
    for (const auto& [name, value] : shown.sample.facts) {
      facts.push_back(JsonObject().Add("name", name).Add("value", value).Text());
    }
    for (const Tokens& text : shown.sample.tokens) {
      const std::vector<int> targets(text.is_target.begin(), text.is_target.end());
      texts.push_back(JsonObject()
                          .Add("name", text.name)
                          .Add("text", TextOf(text.ids, true))
                          .Add("tokens", std::ssize(text.ids))
                          .AddRaw("ids", List(text.ids))
                          .AddRaw("targets", List(targets))
                          .AddRaw("positions", List(text.positions))
                          .Text());
    }
    return JsonObject()
        .Add("sample", shown.number)
        .Add("source", shown.source)
        .Add("where", shown.sample.where)
        .AddRaw("texts", JsonArray(texts))
        .AddRaw("facts", JsonArray(facts))
        .Text();
  }

 private:
  template <typename T>
  static std::string List(const std::vector<T>& numbers) {
    std::vector<std::string> texts;
    for (const T number : numbers) texts.push_back(std::to_string(number));
    return JsonArray(texts);
  }

  void WriteTokens(const Tokens& text) const {
    int64_t targets = 0, documents = 0;
    for (size_t i = 0; i < text.ids.size(); ++i) {
      targets += text.is_target[i];
      documents += text.positions[i] == 0;
    }
    out_ << "  " << text.name << ": " << Counted(std::ssize(text.ids), "token") << ", "
         << Counted(targets, "target")
         << (documents > 1 ? ", " + std::to_string(documents) + " documents" : "") << "\n";
    const std::string open = options_.colours ? "\x1b[32m" : "\u00ab";
    const std::string close = options_.colours ? "\x1b[0m" : "\u00bb";
    ForEachPart(text, [&](size_t begin, size_t end) {
      if (text.positions[begin] == 0) WritePositions(text, begin);
      const std::string part =
          Printable(TextOf(std::span(text.ids).subspan(begin, end - begin), begin == 0));
      out_ << (text.is_target[begin] ? open + part + close : part);
      if (end == text.ids.size() || text.positions[end] == 0) out_ << "\n";
    });
  }

  // The line above a document.
  void WritePositions(const Tokens& text, size_t begin) const {
    size_t last = begin;
    while (last + 1 < text.ids.size() && text.positions[last + 1] != 0) ++last;
    out_ << "  tokens " << begin << " to " << last << ", positions 0 to " << text.positions[last]
         << ":\n";
  }

  const ShowDataOptions& options_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  std::ostream& out_;
};

// The opened data on a page, part by part. Each returns JSON texts, and writes only where the page
// is for people.
class Shower {
 public:
  Shower(const Recipe& recipe, const ModelShape& shape, const RunData& data, const Page& page,
         bool json)
      : data_(data),
        rows_(data.train->rows()),
        one_(MakeModel(shape)->Inputs(recipe.data.seq_len)),
        page_(page),
        json_(json) {
    for (const KeyedSource& keyed : KeyedSources(recipe.data)) {
      if (keyed.list == "data.train") sources_.push_back(keyed.key);
    }
  }

  std::vector<std::string> Samples(int64_t count) const {
    std::vector<std::string> samples;
    for (int64_t i = 0; i < count; ++i) {
      rows_.Fill(i, 0, one_.row());
      rows_.Derive(one_.row());
      const Shown shown{i, sources_.at(static_cast<size_t>(rows_.mixture()(i).source)),
                        rows_.Show(i, one_.row())};
      if (json_) {
        samples.push_back(page_.Json(shown));
      } else {
        if (i == 0 && !shown.sample.tokens.empty()) page_.WriteLegend();
        page_.Write(shown);
      }
    }
    return samples;
  }

  std::vector<std::string> Sources() const {
    std::vector<std::string> counts;
    for (int64_t k = 0; k < rows_.sources(); ++k) {
      const std::string& source = sources_.at(static_cast<size_t>(k));
      counts.push_back(Counts(JsonObject().Add("source", source), source, rows_.Count(k)));
    }
    return counts;
  }

  std::vector<std::string> Valid() const {
    std::vector<std::string> counts;
    for (const RunData::Valid& set : data_.valid) {
      const std::string name = "data.valid" + (set.name.empty() ? "" : " " + set.name);
      counts.push_back(
          Counts(JsonObject().Add("name", set.name), name,
                 {{"samples", set.loader->Size()}, {"targets", set.loader->Targets()}}));
    }
    return counts;
  }

 private:
  // `longest input` is the key longest_input.
  std::string Counts(JsonObject object, const std::string& name, const Tally& tally) const {
    if (!json_) page_.Write(name, tally);
    for (const auto& [what, count] : tally) {
      std::string key = what;
      std::replace(key.begin(), key.end(), ' ', '_');
      object.Add(key, count);
    }
    return object.Text();
  }

  const RunData& data_;
  const RowSource& rows_;
  const OneRow one_;
  const Page& page_;
  const bool json_;
  std::vector<std::string> sources_;  // Keys of data.train.
};

}  // namespace

void ShowData(const Recipe& given, const ShowDataOptions& options, const OpenProgress& progress,
              std::ostream& out) {
  const ModelShape shape = ShapeFor(given);
  const Recipe recipe = WithShape(given, shape);
  const RunData data =
      OpenData(recipe, shape, /*data_ranks=*/1, static_cast<uint64_t>(recipe.run.seed),
               recipe.data.valid, progress);
  std::shared_ptr<const Tokenizer> tokenizer = data.tokenizer;
  if (tokenizer) tokenizer = PaddedVocabulary(tokenizer, static_cast<int32_t>(VocabSize(shape)));
  const Page page(options, tokenizer, out);
  const Shower shower(recipe, shape, data, page, options.json);
  const std::vector<std::string> samples = shower.Samples(options.samples);
  const std::vector<std::string> sources = shower.Sources(), valid = shower.Valid();
  std::vector<std::string> classes;
  for (const std::string& name : data.classes) classes.push_back(JsonString(name));
  if (options.json) {
    out << JsonObject()
               .AddRaw("samples", JsonArray(samples))
               .AddRaw("sources", JsonArray(sources))
               .AddRaw("valid", JsonArray(valid))
               .AddRaw("classes", JsonArray(classes))
               .Text()
        << "\n";
  } else if (!data.classes.empty()) {
    out << "classes:";
    for (const std::string& name : data.classes) out << " " << PrintableName(name);
    out << "\n";
  }
}

}  // namespace fsdp
