// Renders templates for chat_template_fixtures.py, which compares them with jinja2's. A line of
// standard input is {"template", "variables", "date": [year, month, day] or null}; a line of
// standard output {"text", "generation"} or {"error"}.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/core/errors.h"
#include "trainer/data/chat/jinja/template.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

Json Answer(const Json& request) {
  // Templates come many times in a row.
  static std::string source;
  static std::unique_ptr<JinjaTemplate> parsed;
  try {
    if (const std::string given = request.at("template"); !parsed || given != source) {
      parsed.reset();
      parsed = std::make_unique<JinjaTemplate>("template", given);
      source = given;
    }
    JinjaOptions options;
    if (const Json& date = request.at("date"); !date.is_null()) {
      options.date = JinjaDate{date[0], date[1], date[2]};
    }
    const JinjaText rendered = parsed->Render(request.at("variables"), options);
    return {{"text", rendered.text}, {"generation", rendered.generation}};
  } catch (const DataError& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace
}  // namespace fsdp

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << fsdp::Answer(nlohmann::ordered_json::parse(line)).dump() << '\n' << std::flush;
  }
}
