#include "trainer/data/clicks/csv_clicks.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "trainer/core/check.h"
#include "trainer/core/errors.h"
#include "trainer/core/units.h"
#include "trainer/core/utf8.h"
#include "trainer/data/clicks/click_store.h"
#include "trainer/data/text/file_format.h"
#include "trainer/data/text/text_format.h"

namespace fsdp {
namespace {

constexpr size_t kMostLineBytes = size_t{1} << 24;  // Damage, or a file's hole, has more.

// Cells of a line, in memory that is used again.
struct Cells {
  std::vector<std::string_view> all;
  std::vector<std::string> unquoted;
};

std::string Quoted(std::string_view cell) {
  constexpr size_t kShown = 40;
  const bool cut = cell.size() > kShown;
  return "`" + Printable(std::string(cell.substr(0, kShown))) + (cut ? "...`" : "`");
}

// One file: where its lines are, and which cells are which columns.
class CsvFile {
 public:
  CsvFile(const std::string& path, const CsvClicksOptions& options)
      : contents_(path), options_(options) {
    const std::string_view bytes = contents_.bytes();
    std::string other = FindOtherFormat(path, bytes, "a .csv");
    if (FormatOf("", bytes) != TextFormat::kText) other = "is JSON, not a .csv: convert it";
    if (!other.empty()) throw DataError("data: " + path + ": " + other);
    size_t at = 0;
    if (bytes.starts_with("\xef\xbb\xbf")) at = 3;  // Some programs' mark of UTF-8.
    int64_t number = 0;
    while (at < bytes.size()) {
      const std::string_view rest = bytes.substr(at, kMostLineBytes + 1);
      const size_t end = at + std::min(rest.find('\n'), rest.size());
      const std::string_view line = bytes.substr(at, end - at);
      ++number;
      if (line.size() > kMostLineBytes) {
        contents_.CheckIntact();
        throw DataError("data: " + path + ":" + std::to_string(number) + ": has more than " +
                        std::to_string(kMostLineBytes) +
                        " bytes, which no line may have: the file is damaged, or no .csv");
      }
      if (!line.empty() && line != "\r") {
        if (columns_ == 0) {
          NameColumns(line, number);
        } else {
          lines_.push_back({at, number});
        }
      }
      at = end + 1;
    }
    contents_.CheckIntact();
    if (columns_ == 0) throw DataError("data: " + path + ": names no columns");
  }

  int64_t size() const { return std::ssize(lines_); }
  const FileContents& contents() const { return contents_; }

  float Read(int64_t i, std::span<float> dense, std::span<int32_t> ids) const {
    static thread_local Cells cells;
    const Line& line = lines_[static_cast<size_t>(i)];
    Split(LineAt(line.at), line.number, cells);
    for (size_t k = 0; k < dense_.size(); ++k) {
      const std::string_view cell = cells.all[dense_[k]];
      if (!cell.empty()) {
        const std::optional<float> number = CsvNumber(cell);
        if (!number) Refuse(line, options_.dense[k], Quoted(cell) + " is no number");
        dense[k] = *number;
      } else {
        dense[k] = 0;
      }
    }
    for (size_t k = 0, slot = 0; k < categorical_.size(); ++k) {
      const auto bag = static_cast<size_t>(options_.columns.bags[k]);
      ReadIds(line, cells.all[categorical_[k]], k, ids.subspan(2 * slot, 2 * bag));
      slot += bag;
    }
    const std::string_view label = cells.all[label_];
    if (label.empty()) Refuse(line, options_.label, "has no label");
    const std::optional<float> number = CsvNumber(label);
    if (!number || (*number != 0 && *number != 1)) {
      Refuse(line, options_.label, Quoted(label) + " is no label, which is 0 or 1");
    }
    contents_.CheckIntact();
    return *number;
  }

 private:
  struct Line {
    size_t at;
    int64_t number;  // From 1, of the file's lines.
  };

  std::string_view LineAt(size_t at) const {
    const std::string_view bytes = contents_.bytes();
    return bytes.substr(at, std::min(bytes.find('\n', at), bytes.size()) - at);
  }

  [[noreturn]] void Refuse(const Line& line, const std::string& column,
                           const std::string& what) const {
    contents_.CheckIntact();  // A truncated file reads as zeros.
    throw DataError("data: " + contents_.path() + ":" + std::to_string(line.number) + ": column `" +
                    Printable(column) + "`: " + what);
  }

  void Split(std::string_view line, int64_t number, Cells& cells) const {
    const std::string_view wrong = SplitCsvLine(line, cells.all, cells.unquoted);
    const std::string place = "data: " + contents_.path() + ":" + std::to_string(number) + ": ";
    if (!wrong.empty() || (columns_ != 0 && cells.all.size() != columns_)) contents_.CheckIntact();
    if (!wrong.empty()) {
      throw DataError(place + "column " + std::to_string(cells.all.size() + 1) + ": " +
                      std::string(wrong));
    }
    if (columns_ != 0 && cells.all.size() != columns_) {
      throw DataError(place + "has " + Counted(std::ssize(cells.all), "cell") +
                      ", and the file's first line names " +
                      Counted(static_cast<int64_t>(columns_), "column"));
    }
  }

  void NameColumns(std::string_view line, int64_t number) {
    Cells cells;
    Split(line, number, cells);
    columns_ = cells.all.size();
    const auto find = [&](const std::string& name, const std::string& where) {
      const auto found = std::find(cells.all.begin(), cells.all.end(), name);
      if (found == cells.all.end()) {
        std::string names;
        constexpr size_t kNamed = 12;
        for (size_t i = 0; i < std::min(kNamed, columns_); ++i) {
          names += (i == 0 ? " " : ", ") + Quoted(cells.all[i]);
        }
        if (columns_ > kNamed) names += " and " + std::to_string(columns_ - kNamed) + " more";
        throw DataError(where + ": " + contents_.path() + " has no column `" + Printable(name) +
                        "`: it has" + names);
      }
      if (std::find(found + 1, cells.all.end(), name) != cells.all.end()) {
        throw DataError(where + ": " + contents_.path() + " has two columns `" + Printable(name) +
                        "`");
      }
      return static_cast<size_t>(found - cells.all.begin());
    };
    label_ = find(options_.label, options_.where_label);
    for (const std::string& name : options_.dense) {
      dense_.push_back(find(name, options_.where_dense));
    }
    for (const std::string& name : options_.categorical) {
      categorical_.push_back(find(name, options_.where_categorical));
    }
  }

  // The cell of categorical column k.
  void ReadIds(const Line& line, std::string_view cell, size_t k, std::span<int32_t> words) const {
    const std::string& column = options_.categorical[k];
    const auto rows = static_cast<uint64_t>(options_.columns.rows[k]);
    std::fill(words.begin(), words.end(), -1);
    const int64_t bag = std::ssize(words) / 2;
    int64_t n = 0;
    while (!cell.empty()) {
      const size_t bar = std::min(cell.find('|'), cell.size());
      const std::optional<uint64_t> id = CsvId(cell.substr(0, bar));
      if (!id) {
        Refuse(line, column,
               Quoted(cell.substr(0, bar)) + " is no id, which is a whole number of 64 bits");
      }
      if (n == bag) {
        Refuse(line, column,
               "has more than " + Counted(bag, "id") +
                   ", which is what the model's bag of this column holds");
      }
      WriteId(*id == kNoId ? kNoId % rows : *id,
              words.subspan(static_cast<size_t>(2 * n)).first<2>());
      ++n;
      if (bar == cell.size()) break;
      cell.remove_prefix(bar + 1);
      if (cell.empty()) Refuse(line, column, "`` is no id: the cell ends with `|`");
    }
  }

  FileContents contents_;
  const CsvClicksOptions& options_;
  size_t columns_ = 0;  // 0: not named yet.
  size_t label_ = 0;
  std::vector<size_t> dense_, categorical_;
  std::vector<Line> lines_;
};

class CsvClicks final : public ClickStore {
 public:
  explicit CsvClicks(const CsvClicksOptions& options) : options_(options) {
    FSDP_CHECK_EQ(std::ssize(options.dense), options.columns.dense);
    FSDP_CHECK_EQ(options.categorical.size(), options.columns.bags.size());
    FSDP_CHECK_EQ(options.categorical.size(), options.columns.rows.size());
    std::vector<float> dense(options.dense.size());
    std::vector<int32_t> ids(static_cast<size_t>(2 * options.columns.slots()));
    for (const std::string& path : ExpandPaths(options.paths, options.where)) {
      const auto& file = files_.emplace_back(std::make_unique<CsvFile>(path, options_));
      for (int64_t i = 0; i < file->size(); ++i) file->Read(i, dense, ids);
      ends_.push_back(size() + file->size());
    }
    if (size() == 0) throw DataError("data: " + Describe() + ": holds no rows");
  }

  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  float Read(int64_t i, std::span<float> dense, std::span<int32_t> ids) const override {
    const auto file =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
    return files_[file]->Read(i - (file == 0 ? 0 : ends_[file - 1]), dense, ids);
  }
  std::string Describe() const override {
    return AndMoreFiles(files_[0]->contents().path(), files_.size());
  }
  const ClickColumns& columns() const override { return options_.columns; }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names = options_.dense;
    names.insert(names.end(), options_.categorical.begin(), options_.categorical.end());
    return names;
  }
  std::vector<DataFile> Files() const override {
    std::vector<DataFile> files;
    for (const auto& file : files_) files.push_back(DescribeFile(file->contents()));
    return files;
  }

 private:
  const CsvClicksOptions options_;
  std::vector<std::unique_ptr<const CsvFile>> files_;
  std::vector<int64_t> ends_;  // Rows up to the end of each file.
};

}  // namespace

std::shared_ptr<const ClickStore> OpenCsvClicks(const CsvClicksOptions& options) {
  return std::make_shared<CsvClicks>(options);
}

namespace {

std::string_view WithoutSpaces(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::string_view SplitCsvLine(std::string_view line, std::vector<std::string_view>& cells,
                              std::vector<std::string>& unquoted) {
  cells.clear();
  unquoted.clear();
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  // Views of strings that move would dangle.
  unquoted.reserve(static_cast<size_t>(std::count(line.begin(), line.end(), '"') / 2));
  size_t at = 0;
  while (true) {
    if (at < line.size() && line[at] == '"') {
      std::string& cell = unquoted.emplace_back();
      for (++at;; ++at) {
        const size_t quote = line.find('"', at);
        if (quote == line.npos) return "a quoted cell does not end on its line";
        cell += line.substr(at, quote - at);
        at = quote + 1;
        if (at == line.size() || line[at] != '"') break;
        cell += '"';
      }
      cells.push_back(cell);
      if (at < line.size() && line[at] != ',') return "text follows a quoted cell";
    } else {
      const size_t comma = std::min(line.find(',', at), line.size());
      cells.push_back(line.substr(at, comma - at));
      at = comma;
    }
    if (at == line.size()) return {};
    ++at;
  }
}

std::optional<float> CsvNumber(std::string_view cell) {
  cell = WithoutSpaces(cell);
  float value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<uint64_t> CsvId(std::string_view cell) {
  cell = WithoutSpaces(cell);
  const char* const end_of_cell = cell.data() + cell.size();
  if (cell.starts_with('-')) {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(cell.data(), end_of_cell, id);
    if (error != std::errc() || end != end_of_cell) return std::nullopt;
    return static_cast<uint64_t>(id);
  }
  int base = 10;
  if (cell.starts_with("0x") || cell.starts_with("0X")) {
    cell.remove_prefix(2);
    base = 16;
  }
  uint64_t id = 0;
  const auto [end, error] = std::from_chars(cell.data(), end_of_cell, id, base);
  if (error != std::errc() || end != end_of_cell) return std::nullopt;
  return id;
}

}  // namespace fsdp
