#include "trainer/data/clicks/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "trainer/data/clicks/click_batch.h"

namespace fsdp {
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
  int base = 10;
  if (cell.starts_with("0x") || cell.starts_with("0X")) {
    cell.remove_prefix(2);
    base = 16;
  }
  uint64_t id = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), id, base);
  if (error != std::errc() || end != cell.data() + cell.size() || id == kNoId) return std::nullopt;
  return id;
}

}  // namespace fsdp
