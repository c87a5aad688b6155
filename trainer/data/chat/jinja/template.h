// Templates in the language of Jinja, as far as chat templates of Hugging Face use it, with the
// meaning that transformers gives them: jinja2's immutable sandbox with trim_blocks, lstrip_blocks,
// {% break %}, {% continue %} and {% generation %}, and tojson without HTML escapes. Integers have
// 64 bits. Everything else is refused by name.
// Tests: tests/trainer/data/chat/jinja/jinja_template_test.cc
#ifndef FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_TEMPLATE_H_
#define FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/data/chat/jinja/date.h"

namespace fsdp {

struct JinjaOptions {
  std::optional<JinjaDate> date;         // strftime_now's; none: it is undefined.
  int64_t steps = 10'000'000;            // A second or so.
  size_t text_bytes = size_t{64} << 20;  // Limit of the text, and of each text on the way.
};

struct JinjaText {
  std::string text;
  // [begin, end) in bytes of each {% generation %}, in order.
  std::vector<std::pair<size_t, size_t>> generation;
};

class JinjaPrefixes;

class JinjaTemplate {
 public:
  // Throws DataError, as Render(): "<name>:<line>: <what>".
  JinjaTemplate(const std::string& name, std::string_view source);
  JinjaTemplate(JinjaTemplate&& other) noexcept;
  JinjaTemplate& operator=(JinjaTemplate&& other) noexcept;
  ~JinjaTemplate();

  // `variables`: an object; its members are the template's variables. Threads may render at once.
  JinjaText Render(const nlohmann::ordered_json& variables, const JinjaOptions& options = {}) const;
  const std::string& name() const;
  bool has_generation() const;  // Whether a {% generation %} stands in it.

 private:
  friend class JinjaPrefixes;
  struct Parsed;
  std::unique_ptr<const Parsed> parsed_;
};

// Renderings with the first items of a list in place of all of them: each is what Render() makes of
// these variables. Where the template loops over the list and looks at no item before its turn,
// the loop's body runs once for each item, and not for each item of each rendering.
class JinjaPrefixes {
 public:
  // Renderings differ by two of the variables, `list` and `flag`. The template must outlive this.
  // Throws DataError.
  JinjaPrefixes(const JinjaTemplate& of, const nlohmann::ordered_json& variables,
                const std::string& list, const std::string& flag, const JinjaOptions& options = {});
  ~JinjaPrefixes();
  JinjaPrefixes(const JinjaPrefixes&) = delete;
  JinjaPrefixes& operator=(const JinjaPrefixes&) = delete;

  std::string Render(size_t count, bool flag);
  bool remembers() const;  // Whether loops go on from where a shorter rendering ended.

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAINER_DATA_CHAT_JINJA_TEMPLATE_H_
