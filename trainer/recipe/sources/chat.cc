// Conversations, written out by a chat template.
// Tests: tests/e2e/chat_test.cc
#include "trainer/core/errors.h"
#include "trainer/data/chat/chat_template.h"
#include "trainer/data/chat/jinja/date.h"
#include "trainer/data/chat/train_on.h"
#include "trainer/data/samples/line_samples.h"
#include "trainer/recipe/data_source.h"

namespace fsdp::sources::chat {
namespace {

struct Keys {
  std::optional<std::string> chat_template;  // A file; empty: the tokenizer's own.
  TrainOn train_on = TrainOn::kAssistant;
  std::optional<std::string> date;  // ParseJinjaDate().
  bool operator==(const Keys&) const = default;
};

void Check(const SourceRecipe& source, const std::string& key, const RequireRule& require) {
  const std::optional<std::string>& date = source.own.Of<Keys>().date;
  require(!date || ParseJinjaDate(*date), {key + ".date"},
          "`" + date.value_or("") + "` is no day, such as 2026-11-26");
  require(!source.eot, {key + ".eot", key + ".source"},
          "does not belong to source `chat`: its template writes what ends a conversation");
}

std::string Template(const SourceRecipe& source) {
  return source.own.Of<Keys>().chat_template.value_or("");
}

DataSource::Lines Lines(const SourceToOpen& open) {
  const Keys& keys = open.source.own.Of<Keys>();
  ChatOptions options;
  options.train_on = keys.train_on;
  if (keys.date) options.date = ParseJinjaDate(*keys.date);
  try {
    ChatTemplate chat = ChatTemplate::Open(open.source.tokenizer, Template(open.source));
    const DataFile file{chat.name(), chat.bytes(), chat.hash()};
    return {Conversations(open.tokenizer, std::move(chat), options), file};
  } catch (const DataError& error) {
    throw DataError(open.recipe.Mistake(open.key + ".template", error.what()));
  }
}

}  // namespace

const DataSource& Source() {
  static const DataSource source{
      .name = "chat",
      .description =
          "JSON whose objects have `messages` with `role` and `content`, or ShareGPT's "
          "`conversations` with `from` and `value`, written out by a chat template.",
      .keys =
          {Own(recipe::Key(
               "template", &Keys::chat_template, recipe::Nullable(recipe::Path()),
               "chat: a file with the chat template, in the language of Jinja. null: the "
               "tokenizer's own, from chat_template.jinja beside it or from its "
               "tokenizer_config.json.")),
           Own(recipe::Key(
               "train_on", &Keys::train_on,
               recipe::OneOf<TrainOn>({"assistant", "last", "all"}, {}),
               "chat: the tokens that the loss counts. assistant: everything the assistant says, "
               "with each end of turn, except messages with `weight: 0`. last: the assistant's "
               "last message. all: every token. The assistant's words are those that the template "
               "encloses in {% generation %}; without that, those that the message adds after the "
               "generation prompt.")),
           Own(recipe::Key("date", &Keys::date, recipe::Nullable(recipe::Text()),
                           "chat: the day that the template's strftime_now returns, as in "
                           "2026-11-26. null: strftime_now is not defined, and most templates then "
                           "write a fixed day."))},
      .tokenizer = DataSource::Tokenizer::kNeeded,
      .noun = "conversation",
      .is_whole = true,
      .check = Check,
      .chat_template = Template,
      .lines = Lines};
  return source;
}

}  // namespace fsdp::sources::chat
