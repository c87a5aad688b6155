// Lines of comma-separated values (RFC 4180): cells between commas, or between double quotes, in
// which commas are text and two quotes are one. A quoted cell ends on its line.
// Tests: tests/trainer/data/clicks/csv_clicks_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CLICKS_CSV_H_
#define FSDP_TRAIN_TRAINER_DATA_CLICKS_CSV_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Splits a line, which has no line feed, into cells. A carriage return at its end is not text. The
// cells are views of the line, or of `unquoted`, which keeps those that had quotes in them. Returns
// the line's fault; empty if there is none.
std::string_view SplitCsvLine(std::string_view line, std::vector<std::string_view>& cells,
                              std::vector<std::string>& unquoted);

// A finite number, with spaces around it or none. Empty: it is none.
std::optional<float> CsvNumber(std::string_view cell);
// A 64-bit id, decimal or hexadecimal behind 0x, but for 2^64 - 1, which is no id. Empty: it is
// none.
std::optional<uint64_t> CsvId(std::string_view cell);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CLICKS_CSV_H_
