// A day, as templates see it.
// Tests: tests/trainer/recipe/load_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_DATE_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_DATE_H_

#include <charconv>
#include <chrono>
#include <optional>
#include <string_view>

namespace fsdp {

struct JinjaDate {
  int year = 0, month = 1, day = 1;
};

// "2026-11-26", a day that there is; otherwise nothing.
inline std::optional<JinjaDate> ParseJinjaDate(std::string_view text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return std::nullopt;
  bool good = true;
  const auto number = [&](size_t at, size_t digits) {
    int value = -1;
    const char* const begin = text.data() + at;
    const auto [end, error] = std::from_chars(begin, begin + digits, value);
    good &= error == std::errc() && end == begin + digits && value >= 0;
    return value;
  };
  const JinjaDate date{number(0, 4), number(5, 2), number(8, 2)};
  const std::chrono::year_month_day day{std::chrono::year(date.year),
                                        std::chrono::month(static_cast<unsigned>(date.month)),
                                        std::chrono::day(static_cast<unsigned>(date.day))};
  if (!good || !day.ok()) return std::nullopt;
  return date;
}

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_DATE_H_
