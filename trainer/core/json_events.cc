#include "trainer/core/json_events.h"

#include <nlohmann/json.hpp>

namespace fsdp {
namespace {

class Adapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Adapter(JsonEvents& events) : events_(events) {}

  bool null() override { return events_.Null(); }
  bool boolean(bool) override { return events_.Boolean(); }
  bool number_integer(number_integer_t) override { return events_.Negative(); }
  bool number_unsigned(number_unsigned_t value) override { return events_.Unsigned(value); }
  bool number_float(number_float_t, const string_t&) override { return events_.Real(); }
  bool string(string_t& value) override { return events_.Text(value); }
  bool binary(binary_t&) override { return false; }  // JSON has none.
  bool start_object(size_t) override { return events_.BeginObject(); }
  bool key(string_t& key) override { return events_.Key(key); }
  bool end_object() override { return events_.EndObject(); }
  bool start_array(size_t) override { return events_.BeginList(); }
  bool end_array() override { return events_.EndList(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    events_.NoJson(position);
    return false;
  }

 private:
  JsonEvents& events_;
};

}  // namespace

bool ReadJson(std::string_view text, JsonEvents& events) {
  Adapter adapter(events);
  return nlohmann::json::sax_parse(text, &adapter);
}

}  // namespace fsdp
