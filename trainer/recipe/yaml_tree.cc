#include "trainer/recipe/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include "trainer/core/utf8.h"

namespace fsdp::recipe {
namespace {

// Thrown through yaml-cpp's parser, which has no state that we read again.
struct Refused {
  YAML::Mark mark;
  std::string message;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(int source, bool place_lines, std::vector<RecipeMistake>& mistakes)
      : source_(source), place_lines_(place_lines), mistakes_(mistakes) {}

  std::shared_ptr<const YamlNode> root() const { return root_; }

  Place PlaceOf(const YAML::Mark& mark) const {
    if (!place_lines_) return {source_, 0, 0};
    return {source_, std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1};
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (root_) throw Refused{mark, "a second document: a recipe is one"};
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    auto node = New(YamlNode::Kind::kNull, mark);
    // yaml-cpp may mark a missing value with the next token's place.
    if (!stack_.empty() && stack_.back().key && stack_.back().key->place.line != node->place.line) {
      node->place = stack_.back().key->place;
    }
    Add(mark, anchor, node);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) throw Refused{mark, "an alias inside its own anchor"};
    if (AwaitsKey()) throw Refused{mark, "an alias cannot be a key"};
    Add(mark, 0, found->second);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    RefuseTag(mark, tag);
    if (AwaitsKey()) {
      if (value == "<<" && tag == "?") {
        throw Refused{mark, "merge keys (<<) are not supported: use a second --config file"};
      }
      stack_.back().key = {value, PlaceOf(mark), nullptr};
      return;
    }
    auto node = New(YamlNode::Kind::kScalar, mark);
    node->text = value;
    node->plain = tag == "?";
    Add(mark, anchor, node);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    Open(YamlNode::Kind::kList, mark, tag, anchor, style);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    Open(YamlNode::Kind::kMap, mark, tag, anchor, style);
  }
  void OnMapEnd() override { Close(); }

  struct Bracket {
    std::string text;
    YAML::Mark mark;
  };
  // The innermost open bracket.
  std::optional<Bracket> OpenBracket() const {
    for (auto frame = stack_.rbegin(); frame != stack_.rend(); ++frame) {
      if (!frame->in_brackets) continue;
      return Bracket{frame->node->kind == YamlNode::Kind::kMap ? "`{`" : "`[`", frame->mark};
    }
    return std::nullopt;
  }

 private:
  struct Frame {
    std::shared_ptr<YamlNode> node;
    YAML::anchor_t anchor;
    YAML::Mark mark;
    bool in_brackets;
    std::optional<YamlNode::Entry> key;                    // Read, its value still to come.
    std::unordered_map<std::string, size_t> entries = {};  // Index in node->entries by key.
  };

  std::shared_ptr<YamlNode> New(YamlNode::Kind kind, const YAML::Mark& mark) const {
    auto node = std::make_shared<YamlNode>();
    node->kind = kind;
    node->place = PlaceOf(mark);
    return node;
  }

  static void RefuseTag(const YAML::Mark& mark, const std::string& tag) {
    // "?" is a plain scalar or collection, "!" a quoted scalar.
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Refused{mark, "tags are not supported, got " + tag};
    }
  }

  bool AwaitsKey() const {
    return !stack_.empty() && stack_.back().node->kind == YamlNode::Kind::kMap &&
           !stack_.back().key;
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor, YAML::EmitterStyle::value style) {
    RefuseTag(mark, tag);
    // For yaml-cpp a bracket that nobody closed begins a key.
    if (AwaitsKey()) throw Refused{mark, "a key must be text; or a bracket is not closed"};
    stack_.push_back(
        {New(kind, mark), anchor, mark, style == YAML::EmitterStyle::Flow, std::nullopt});
  }

  void Close() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    Add(frame.mark, frame.anchor, frame.node);
  }

  void Add(const YAML::Mark& mark, YAML::anchor_t anchor,
           const std::shared_ptr<const YamlNode>& node) {
    if (anchor != 0) anchors_[anchor] = node;
    if (stack_.empty()) {
      root_ = node;
      return;
    }
    if (AwaitsKey()) throw Refused{mark, "a key must be text"};
    Frame& frame = stack_.back();
    if (frame.node->kind == YamlNode::Kind::kList) {
      frame.node->items.push_back(node);
      return;
    }
    YamlNode::Entry entry = std::move(*frame.key);
    frame.key.reset();
    entry.value = node;
    const auto [at, is_new] = frame.entries.emplace(entry.key, frame.node->entries.size());
    if (!is_new) {
      YamlNode::Entry& before = frame.node->entries[at->second];
      std::string message = "duplicate key";
      if (place_lines_) message += ", first on line " + std::to_string(before.place.line);
      mistakes_.push_back({entry.place, Path() + entry.key, message});
      before = entry;
      return;
    }
    frame.node->entries.push_back(entry);
  }

  // The key of the open map, with a dot at its end.
  std::string Path() const {
    std::string path;
    for (size_t i = 0; i + 1 < stack_.size(); ++i) {
      if (stack_[i].node->kind == YamlNode::Kind::kList) {
        if (!path.empty()) path.pop_back();
        path.append("[").append(std::to_string(stack_[i].node->items.size())).append("].");
      } else {
        path += stack_[i].key->key + ".";
      }
    }
    return path;
  }

  const int source_;
  const bool place_lines_;
  std::vector<RecipeMistake>& mistakes_;
  std::vector<Frame> stack_;
  std::map<YAML::anchor_t, std::shared_ptr<const YamlNode>> anchors_;
  std::shared_ptr<const YamlNode> root_;
};

// The offset of the first byte that is no UTF-8.
std::optional<size_t> FindBadUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = Utf8Length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

// A tab in the indentation of that line, counted from 0, or of the one before it: yaml-cpp stumbles
// over what comes behind.
std::optional<YAML::Mark> FindTab(const std::string& text, int line) {
  std::istringstream lines(text);
  std::string read;
  for (int number = 0; number <= line && std::getline(lines, read); ++number) {
    const size_t tab = std::min(read.find_first_not_of(' '), read.size());
    if (number + 1 < line || tab == read.size() || read[tab] != '\t') continue;
    if (read.find_first_not_of(" \t\r") == std::string::npos) continue;
    YAML::Mark mark;
    mark.line = number;
    mark.column = static_cast<int>(tab);
    return mark;
  }
  return std::nullopt;
}

// The place where a text begins as TOML does, with `[table]` or `key = value`.
std::optional<YAML::Mark> FindToml(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  for (int number = 0; std::getline(lines, line); ++number) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    const auto is_key = [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
    };
    size_t at = line.find_first_not_of('[', begin);
    const size_t brackets = std::min(at, line.size()) - begin;
    while (at < line.size() && is_key(static_cast<unsigned char>(line[at]))) ++at;
    const std::string end = at < line.size() ? line.substr(at) : "";
    const bool is_table =
        (brackets == 1 && end.starts_with("]")) || (brackets == 2 && end.starts_with("]]"));
    const size_t equals = end.find_first_not_of(' ');
    const bool is_pair =
        brackets == 0 && at > begin && equals != std::string::npos && end[equals] == '=';
    if (!is_table && !is_pair) return std::nullopt;
    YAML::Mark mark;
    mark.line = number;
    mark.column = static_cast<int>(begin);
    return mark;
  }
  return std::nullopt;
}

// The unit of UTF-16 that text[at] escapes, as JSON does; 0: none.
uint32_t EscapedUnit(const std::string& text, size_t at) {
  if (at + 6 > text.size() || text.compare(at, 2, "\\u") != 0) return 0;
  uint32_t unit = 0;
  const auto [end, error] = std::from_chars(&text[at + 2], &text[at + 6], unit, 16);
  return error == std::errc() && end == &text[at + 6] ? unit : 0;
}

// The message for an escape that yaml-cpp has just read and that is no character. JSON escapes a
// character outside the first plane in two halves, which YAML does not take.
std::string WordsForEscape(const std::string& text, size_t end, const std::string& said) {
  if (end < 6 || !said.starts_with(YAML::ErrorMsg::INVALID_UNICODE)) return "not YAML: " + said;
  const uint32_t high = EscapedUnit(text, end - 6), low = EscapedUnit(text, end);
  if (high < 0xd800 || high > 0xdfff) return "not YAML: " + said;
  const std::string half = text.substr(end - 6, 6);
  if (high > 0xdbff || low < 0xdc00 || low > 0xdfff) return half + " is half of a character";
  char whole[16];
  std::snprintf(whole, sizeof(whole), "\\U%08X",
                0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
  return half + text.substr(end, 6) +
         " is a character in two halves, as JSON escapes it: in YAML " + "it is " + whole +
         ", or the character itself";
}

}  // namespace

const YamlNode::Entry* YamlNode::Find(const std::string& key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

std::shared_ptr<const YamlNode> ParseYaml(const std::string& text, int source, bool place_lines,
                                          std::vector<RecipeMistake>& mistakes) {
  TreeBuilder builder(source, place_lines, mistakes);
  if (const auto bad = FindBadUtf8(text)) {
    YAML::Mark mark;
    const size_t line_start = bad == 0u ? std::string::npos : text.rfind('\n', *bad - 1);
    mark.line = static_cast<int>(std::count(text.begin(), text.begin() + *bad, '\n'));
    mark.column = static_cast<int>(line_start == std::string::npos ? *bad : *bad - line_start - 1);
    mistakes.push_back({builder.PlaceOf(mark), "", "not UTF-8 text"});
    return nullptr;
  }
  if (const auto toml = place_lines ? FindToml(text) : std::nullopt) {
    mistakes.push_back({builder.PlaceOf(*toml), "",
                        "TOML, and a recipe is YAML: `steps = 10` below `[train]` is "
                        "`train: {steps: 10}`"});
    return nullptr;
  }
  // yaml-cpp 0.7 takes a quote that nobody closed for closed at the end of the text, and with it
  // all keys after it; at an end of document it does not.
  const bool ended = text.empty() || text.back() == '\n';
  std::istringstream stream(text + (ended ? "...\n" : "\n...\n"));
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refused& refused) {
    mistakes.push_back({builder.PlaceOf(refused.mark), "", refused.message});
    return nullptr;
  } catch (const YAML::Exception& error) {
    std::string message = error.msg;
    if (message == YAML::ErrorMsg::DOC_IN_SCALAR) message = "a quote above is not closed";
    if (message == YAML::ErrorMsg::BAD_FILE) message = "nested too deeply";
    if (const auto tab = FindTab(text, error.mark.line)) {
      mistakes.push_back({builder.PlaceOf(*tab), "", "a tab: YAML is indented with spaces alone"});
      return nullptr;
    }
    // A bracket that nobody closed is found out where the next key or the end of the text comes;
    // the place to look at is the bracket.
    const auto bracket = builder.OpenBracket();
    if (bracket &&
        (message == YAML::ErrorMsg::END_OF_MAP_FLOW || message == YAML::ErrorMsg::END_OF_SEQ_FLOW ||
         message == YAML::ErrorMsg::FLOW_END)) {
      const Place at = builder.PlaceOf(error.mark);
      std::string what = bracket->text + " is not closed";
      if (place_lines && static_cast<size_t>(std::max(error.mark.pos, 0)) < text.size()) {
        what += ", or a comma is missing, before line " + std::to_string(at.line) + ", column " +
                std::to_string(at.column);
      }
      mistakes.push_back({builder.PlaceOf(bracket->mark), "", what});
      return nullptr;
    }
    mistakes.push_back(
        {builder.PlaceOf(error.mark), "",
         WordsForEscape(text, static_cast<size_t>(std::max(error.mark.pos, 0)), message)});
    return nullptr;
  }
  if (builder.root()) return builder.root();
  auto empty = std::make_shared<YamlNode>();
  empty->place = builder.PlaceOf(YAML::Mark());
  return empty;
}

PlainType ResolvePlain(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") {
    return PlainType::kNull;
  }
  for (const char* word : {"true", "True", "TRUE", "false", "False", "FALSE"}) {
    if (text == word) return PlainType::kBool;
  }
  const auto digits = [&](size_t from, auto is_digit) {
    size_t end = from;
    while (end < text.size() && is_digit(static_cast<unsigned char>(text[end]))) ++end;
    return end;
  };
  const auto decimal = [](unsigned char c) { return c >= '0' && c <= '9'; };
  const auto octal = [](unsigned char c) { return c >= '0' && c <= '7'; };
  const auto hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
  const size_t size = text.size();
  if (size > 2 && text[0] == '0') {
    if (text[1] == 'o' && digits(2, octal) == size) return PlainType::kInteger;
    if (text[1] == 'x' && digits(2, hex) == size) return PlainType::kInteger;
  }
  const size_t start = text[0] == '+' || text[0] == '-' ? 1 : 0;
  for (const char* word : {".inf", ".Inf", ".INF"}) {
    if (text.substr(start) == word) return PlainType::kNumber;
  }
  for (const char* word : {".nan", ".NaN", ".NAN"}) {
    if (text == word) return PlainType::kNumber;
  }
  size_t at = digits(start, decimal);
  const size_t whole = at - start;
  if (at == size) return whole > 0 ? PlainType::kInteger : PlainType::kText;
  size_t fraction = 0;
  if (text[at] == '.') {
    const size_t end = digits(at + 1, decimal);
    fraction = end - at - 1;
    at = end;
  }
  if (whole + fraction == 0) return PlainType::kText;
  if (at < size && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < size && (text[at] == '+' || text[at] == '-')) ++at;
    const size_t end = digits(at, decimal);
    if (end == at) return PlainType::kText;
    at = end;
  }
  return at == size ? PlainType::kNumber : PlainType::kText;
}

}  // namespace fsdp::recipe
