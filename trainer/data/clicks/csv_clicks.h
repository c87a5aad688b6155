// Clicks in files of comma-separated values (csv.h), whose first line names the columns: one of
// labels, those of numbers, and categorical ones, whose cells have ids with `|` between them.
// Tests: tests/trainer/data/clicks/csv_clicks_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CLICKS_CSV_CLICKS_H_
#define FSDP_TRAIN_TRAINER_DATA_CLICKS_CSV_CLICKS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/clicks/click_store.h"

namespace fsdp {

struct CsvClicksOptions {
  std::vector<std::string> paths;  // ExpandPaths().
  std::string label;
  std::vector<std::string> dense, categorical;  // Names of columns, in the model's order.
  ClickColumns columns;                         // As many of each.
  // For the keys in what is said of paths and of columns.
  std::string where = "data", where_label = "data", where_dense = "data",
              where_categorical = "data";
};

// The lines of all files but the first of each, one file behind the other; empty lines are none.
// A number's cell may be empty: 0; so may a categorical one: no ids. Reads every line once, so that
// a run does not end at a cell that it meets later. Throws DataError, with file, line and column,
// for a column that a file does not have or has twice, a line with more or fewer cells than the
// first, a label other than 0 and 1, a number or an id that is none, and more ids than a bag has.
std::shared_ptr<const ClickStore> OpenCsvClicks(const CsvClicksOptions& options);

// Lines of comma-separated values (RFC 4180): cells between commas, or between double quotes, in
// which commas are text and two quotes are one. A quoted cell ends on its line.

// Splits a line, which has no line feed, into cells. A carriage return at its end is not text. The
// cells are views of the line, or of `unquoted`, which keeps those that had quotes in them. Returns
// the line's fault; empty if there is none.
std::string_view SplitCsvLine(std::string_view line, std::vector<std::string_view>& cells,
                              std::vector<std::string>& unquoted);

// A finite number, with spaces around it or none. Empty: it is none.
std::optional<float> CsvNumber(std::string_view cell);
// A 64-bit id, from -2^63 to 2^64 - 1, decimal or hexadecimal behind 0x. A negative one is the
// unsigned number of its bits. Empty: it is none.
std::optional<uint64_t> CsvId(std::string_view cell);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CLICKS_CSV_CLICKS_H_
