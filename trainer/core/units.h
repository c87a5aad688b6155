// Numbers for people: three significant digits, no more than 10 characters. Files get exact ones.
#ifndef FSDP_TRAIN_TRAINER_CORE_UNITS_H_
#define FSDP_TRAIN_TRAINER_CORE_UNITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

std::string HumanBytes(int64_t bytes);      // "512 B", "1.50 KiB", "23.4 GiB": powers of 1024.
std::string HumanCount(double count);       // "950", "12.3k", "4.56M", "7.89B": powers of 1000.
std::string HumanRate(double value);        // As a count, with fractions: "8.25", "0.0312".
std::string HumanDuration(double seconds);  // "12.3 ms", "4.56 s", "3m05s", "2h07m", "3d04h".
std::string Grouped(int64_t value);         // "1,234,567".

// The shortest text that reads back as the same double, without trailing zeros: "0.1", "1e+308",
// "nan". std::to_string() would write 309 digits, or 0.000000.
std::string Shortest(double value);
// "2.3026"; from 10^7 on "2.3026e+38"; "nan" whatever its sign.
std::string FixedPoint(double value, int decimals);

// "1 step", "2 steps", "12345 steps". `noun`: singular, of those that take an s.
std::string Counted(int64_t count, std::string_view noun);

// "10GB" is 10^10 bytes and "1.5 GiB" 1.5 x 2^30, in letters of any case; without a unit, bytes. A
// fraction of a byte is dropped. Empty for text that is no size, for less than a byte, and from
// 2^63 on.
std::optional<int64_t> ParseBytes(std::string_view text);

// "90m" is 5400 seconds, "1.5 h" as many; units are s, m, h and d, in small letters. A fraction of
// a second is dropped. Empty for text that is no such time, for less than a second, and from 2^31
// on.
std::optional<int64_t> ParseDuration(std::string_view text);

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_CORE_UNITS_H_
