#include "trainer/data/jinja/template.h"

#include <nlohmann/json.hpp>

#include "trainer/data/jinja/ast.h"
#include "trainer/data/jinja/json.h"
#include "trainer/data/jinja/lexer.h"
#include "trainer/data/jinja/machine.h"
#include "trainer/data/jinja/parser.h"
#include "trainer/data/jinja/scopes.h"

namespace fsdp {

struct JinjaTemplate::Parsed {
  jinja::Program program;
};

JinjaTemplate::JinjaTemplate(const std::string& name, std::string_view source) {
  auto parsed = std::make_unique<Parsed>();
  parsed->program = jinja::Parse(name, source);
  jinja::ResolveNames(parsed->program);
  parsed_ = std::move(parsed);
}
JinjaTemplate::JinjaTemplate(JinjaTemplate&& other) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&& other) noexcept = default;
JinjaTemplate::~JinjaTemplate() = default;

const std::string& JinjaTemplate::name() const { return parsed_->program.name; }
bool JinjaTemplate::has_generation() const { return parsed_->program.has_generation; }

JinjaText JinjaTemplate::Render(const nlohmann::ordered_json& variables,
                                const JinjaOptions& options) const {
  jinja::Dict given;
  try {
    for (const auto& [key, value] : variables.items()) {
      given.Set(jinja::Value::Text(key), jinja::FromJson(value));
    }
  } catch (const jinja::Fault& fault) {
    throw jinja::TemplateError(name(), 1, std::string("is given ") + fault.what());
  }
  std::optional<jinja::Date> date;
  if (options.date) date = {options.date->year, options.date->month, options.date->day};
  jinja::Machine machine(parsed_->program, given, date, options.steps, options.text_bytes);
  auto [text, ranges] = machine.Run();
  return {std::move(text), std::move(ranges)};
}

}  // namespace fsdp
