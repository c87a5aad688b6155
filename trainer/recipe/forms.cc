// Tests: tests/trainer/recipe/schema_test.cc
#include "trainer/data/hub_cache.h"
#include "trainer/data/tokenizers/tokenizer.h"
#include "trainer/recipe/containers.h"
#include "trainer/recipe/sections.h"

namespace fsdp::recipe {
namespace {

using Sources = std::vector<SourceRecipe>;

// `bytes`, a path whose ending gives the kind of tokenizer, or a directory that holds one.
class TokenizerType final : public TypeOf<std::string> {
 public:
  Json Schema() const override {
    Json path = text_->Schema();
    path["pattern"] = "\\.(json|model)$|/$";  // Editors take a directory by its slash.
    return AnyOfSchemas({EnumSchema({"bytes"}), path});
  }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 std::string& value) const override {
    std::string read;
    if (!text_.Read(node, key, reader, read)) return false;
    if (read != "bytes" && !read.ends_with(".json") && !read.ends_with(".model")) {
      const std::optional<std::string> file = TokenizerFileIn(read);
      const std::string cache = file ? "" : WhereInHubCache(read);
      if (!cache.empty()) {
        reader.Mistake(node.place, key, "`" + read + "` holds no tokenizer" + cache);
        return false;
      }
      if (!file) {
        reader.Wrong(node, key,
                     "`bytes`, a path that ends in .json or .model, or a directory with a "
                     "tokenizer.json, tokenizer.model or spiece.model");
        return false;
      }
      read = *file;
    }
    value = std::move(read);
    return true;
  }
  Json WriteValue(const std::string& value) const override { return value; }

  const Type<std::string> text_ = Path();
};

class PathsType final : public TypeOf<std::vector<std::string>> {
 public:
  Json Schema() const override { return AnyOfSchemas({text_->Schema(), list_->Schema()}); }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 std::vector<std::string>& value) const override {
    if (node.kind == YamlNode::Kind::kScalar) {
      std::string read;
      if (!text_.Read(node, key, reader, read)) return false;
      value = {std::move(read)};
      return true;
    }
    if (node.kind != YamlNode::Kind::kList) {
      reader.Wrong(node, key, "a path or a list of paths");
      return false;
    }
    return list_.Read(node, key, reader, value);
  }
  Json WriteValue(const std::vector<std::string>& value) const override {
    return list_.Write(value);
  }

  const Type<std::string> text_ = Path();
  const Type<std::vector<std::string>> list_ = ListOf(text_);
};

// A list of maps, at least one, each with a place of its own for messages. A list with mistakes is
// kept, so that further mistakes are found.
class SourceListType final : public TypeOf<Sources> {
 public:
  explicit SourceListType(const Type<SourceRecipe>& item) : item_(item), list_(ListOf(item)) {}

  Json Schema() const override {
    Json schema = list_->Schema();
    schema["minItems"] = 1;
    return schema;
  }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 Sources& value) const override {
    reader.ForgetBelow(key);
    value.assign(node.items.size(), {});
    if (value.empty()) reader.Wrong(node, key, "at least one source");
    bool good = !value.empty();
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string name = key + "[" + std::to_string(i) + "]";
      reader.Saw(name, node.items[i]->place, false);
      good &= item_.Read(*node.items[i], name, reader, value[i]);
    }
    return good;
  }
  Json WriteValue(const Sources& value) const override { return list_.Write(value); }

  const Type<SourceRecipe> item_;
  const Type<Sources> list_;
};

// A later file that gives the other form replaces the earlier one.
class TrainSourcesType final : public TypeOf<TrainRecipeSources> {
 public:
  TrainSourcesType(const Type<SourceRecipe>& one, const Type<SourceRecipe>& of_list)
      : one_(one), list_(std::make_shared<SourceListType>(of_list)) {}

  Json Schema() const override { return AnyOfSchemas({one_->Schema(), list_->Schema()}); }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 TrainRecipeSources& value) const override {
    if (node.kind == YamlNode::Kind::kList) {
      Sources read;
      const bool good = list_.Read(node, key, reader, read);
      value = std::move(read);
      return good;
    }
    if (node.kind != YamlNode::Kind::kMap) {
      reader.Wrong(node, key, "a map as in `{paths: FILES}`, or a list of maps");
      return false;
    }
    SourceRecipe read;
    if (const auto* before = std::get_if<SourceRecipe>(&value)) {
      read = *before;
    } else {
      reader.ForgetBelow(key);
    }
    const bool good = one_.Read(node, key, reader, read);
    value = std::move(read);
    return good;
  }
  Json WriteValue(const TrainRecipeSources& value) const override {
    if (const auto* own = std::get_if<SourceRecipe>(&value)) return one_.Write(*own);
    return list_.Write(std::get<Sources>(value));
  }

  const Type<SourceRecipe> one_;
  const Type<Sources> list_;
};

// null, {fraction}, a source, or a list of named ones. A later file that names keys of another form
// changes the form.
class ValidSourcesType final : public TypeOf<ValidRecipe> {
 public:
  ValidSourcesType(const Type<HeldOut>& held_out, const Type<SourceRecipe>& source,
                   const Type<SourceRecipe>& of_list)
      : held_out_(held_out), source_(source), list_(std::make_shared<SourceListType>(of_list)) {}

  Json Schema() const override {
    const Json null = Json::Object({{"type", "null"}});
    return AnyOfSchemas({null, held_out_->Schema(), source_->Schema(), list_->Schema()});
  }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 ValidRecipe& value) const override {
    if (node.kind == YamlNode::Kind::kNull) {
      reader.ForgetBelow(key);
      value = std::monostate();
      return true;
    }
    if (node.kind == YamlNode::Kind::kList) {
      Sources read;
      const bool good = list_.Read(node, key, reader, read);
      value = std::move(read);
      return good;
    }
    if (node.kind != YamlNode::Kind::kMap) {
      reader.Wrong(node, key,
                   "null, {fraction: ...}, a map like data.train or a list of such maps, each with "
                   "a name");
      return false;
    }
    if (std::get_if<Sources>(&value)) reader.ForgetBelow(key);
    const YamlNode::Entry* fraction = node.Find("fraction");
    bool names_source = false;
    for (const auto& [name, property] : schema_["properties"].Members()) {
      names_source |= node.Find(name) != nullptr;
    }
    if (fraction != nullptr && names_source) {
      reader.Mistake(fraction->place, key + ".fraction",
                     "a share of data.train and a source of its own exclude each other");
      return false;
    }
    if (names_source || (fraction == nullptr && std::get_if<SourceRecipe>(&value))) {
      SourceRecipe read;
      if (const auto* before = std::get_if<SourceRecipe>(&value)) read = *before;
      const bool good = source_.Read(node, key, reader, read);
      value = std::move(read);
      return good;
    }
    HeldOut read;
    if (const auto* before = std::get_if<HeldOut>(&value)) read = *before;
    const bool good = held_out_.Read(node, key, reader, read);
    value = read;
    return good;
  }
  Json WriteValue(const ValidRecipe& value) const override {
    if (const auto* share = std::get_if<HeldOut>(&value)) return held_out_.Write(*share);
    if (const auto* own = std::get_if<SourceRecipe>(&value)) return source_.Write(*own);
    if (const auto* all = std::get_if<Sources>(&value)) return list_.Write(*all);
    return nullptr;
  }

  const Type<HeldOut> held_out_;
  const Type<SourceRecipe> source_;
  const Json schema_ = source_->Schema();
  const Type<Sources> list_;
};

class ResumeType final : public TypeOf<ResumeRecipe> {
 public:
  Json Schema() const override {
    return AnyOfSchemas({EnumSchema({"auto", "none"}), step_->Schema(), text_->Schema()});
  }

 private:
  using Kind = ResumeRecipe::Kind;

  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 ResumeRecipe& value) const override {
    const bool scalar = node.kind == YamlNode::Kind::kScalar;
    if (scalar && (node.text == "auto" || node.text == "none")) {
      value = {.kind = node.text == "auto" ? Kind::kAuto : Kind::kNone};
      return true;
    }
    if (scalar && node.plain && ResolvePlain(node.text) == PlainType::kInteger) {
      ResumeRecipe read{.kind = Kind::kStep};
      if (!step_.Read(node, key, reader, read.step)) return false;
      value = std::move(read);
      return true;
    }
    const bool is_text = scalar && !node.text.empty() &&
                         (!node.plain || ResolvePlain(node.text) == PlainType::kText);
    if (!is_text) {
      reader.Wrong(node, key, "`auto`, `none`, a step or a directory");
      return false;
    }
    ResumeRecipe read{.kind = Kind::kDirectory};
    if (!text_.Read(node, key, reader, read.directory)) return false;
    value = std::move(read);
    return true;
  }
  Json WriteValue(const ResumeRecipe& value) const override {
    switch (value.kind) {
      case Kind::kAuto:
        return "auto";
      case Kind::kNone:
        return "none";
      case Kind::kStep:
        return value.step;
      case Kind::kDirectory:
        break;
    }
    return value.directory;
  }

  const Type<int64_t> step_ = Integer(0);
  const Type<std::string> text_ = Path();
};

class StepsOrNullType final : public TypeOf<int64_t> {
 public:
  Json Schema() const override {
    return AnyOfSchemas({steps_->Schema(), Json::Object({{"type", "null"}})});
  }

 private:
  bool ReadValue(const YamlNode& node, const std::string& key, RecipeReader& reader,
                 int64_t& value) const override {
    if (node.kind != YamlNode::Kind::kNull) return steps_.Read(node, key, reader, value);
    value = 0;
    return true;
  }
  Json WriteValue(const int64_t& value) const override {
    return value == 0 ? Json() : steps_.Write(value);
  }

  const Type<int64_t> steps_ = Integer(1);
};

}  // namespace

Type<std::vector<std::string>> Paths() {
  return Type<std::vector<std::string>>(std::make_shared<PathsType>());
}
Type<std::string> TokenizerName() { return Type<std::string>(std::make_shared<TokenizerType>()); }
Type<TrainRecipeSources> TrainSources(const Type<SourceRecipe>& one,
                                      const Type<SourceRecipe>& of_list) {
  return Type<TrainRecipeSources>(std::make_shared<TrainSourcesType>(one, of_list));
}
Type<ValidRecipe> ValidSources(const Type<HeldOut>& held_out, const Type<SourceRecipe>& source,
                               const Type<SourceRecipe>& of_list) {
  return Type<ValidRecipe>(std::make_shared<ValidSourcesType>(held_out, source, of_list));
}
Type<ResumeRecipe> Resume() { return Type<ResumeRecipe>(std::make_shared<ResumeType>()); }
Type<int64_t> StepsOrNull() { return Type<int64_t>(std::make_shared<StepsOrNullType>()); }

}  // namespace fsdp::recipe
