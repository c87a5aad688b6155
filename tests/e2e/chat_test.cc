// Learning to answer, and answering: sources `chat` and `pairs`, and `generate` in conversations.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "tests/e2e/run_binary.h"

namespace fsdp::e2e {
namespace {

const std::string kFixtures = "tests/fixtures/chat/";
const char kWeights[] = "tests/fixtures/gpt2/odd_vocab";
const char kTokenizer[] = "tests/fixtures/tokenizers/gpt2.json";

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// --- Against transformers ---

// Settings of the run that tools/reference/chat.py makes.
Strings Reference(const Job& job, const std::string& chat_template) {
  return {
      std::string("model={hidden_size: null, num_hidden_layers: null, num_attention_heads: null, "
                  "max_position_embeddings: null, vocab_size: null, init_from: ") +
          kWeights + "}",
      "data={seq_len: 64, shuffle: false, packing: none, valid: null, cache: " +
          (job.dir() / "cache") + "}",
      "data.train={source: chat, paths: [" + kFixtures + "conversations.jsonl], tokenizer: " +
          kTokenizer + ", template: " + kFixtures + chat_template + "}",
      "train={steps: 20, micro_batch_size: 2, global_batch_size: 6}",
      "optimizer={lr: 3.0e-3, betas: [0.9, 0.95], weight_decay: 0.1}",
      "schedule={name: constant, warmup_steps: 0}"};
}

double Relative(const Json& got, const Json& want) {
  return std::abs(got.get<double>() - want.get<double>()) / std::abs(want.get<double>());
}

class ChatOfTransformers : public ::testing::TestWithParam<const char*> {
 protected:
  const Json want_ = Json::parse(ReadFile(kFixtures + "expected.json"))[GetParam()];
  // A few times what PyTorch in float32 is away from itself in float64.
  const double tolerance_ = 4 * want_["error"].get<double>();
};

TEST_P(ChatOfTransformers, LossesAndNormsAreThoseOfLabelsOfMinus100) {
  for (const int world : {1, 2, 3}) {
    Job job;
    const Strings settings = Reference(job, GetParam());
    const Outcome run = world == 1 ? job.Train(settings) : job.Launch(world, settings);
    ASSERT_EQ(run.code, 0) << run.Text();
    const std::vector<Json> steps = OfKind(ReadMetrics(job.run_dir()), "step");
    ASSERT_EQ(steps.size(), want_["loss"].size());
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_LT(Relative(steps[i]["loss"], want_["loss"][i]), tolerance_) << world << " " << i;
      EXPECT_LT(Relative(steps[i]["grad_norm"], want_["grad_norm"][i]), tolerance_)
          << world << " " << i;
    }
  }
}

TEST_P(ChatOfTransformers, PackedUnpackedAndAloneHaveOneLoss) {
  Job job;
  for (const char* packing : {"none", "samples"}) {
    Strings settings = Reference(job, GetParam());
    settings.push_back(std::string("data.packing=") + packing);
    settings.push_back("data.valid={source: chat, paths: [" + kFixtures +
                       "conversations.jsonl], tokenizer: " + kTokenizer +
                       ", template: " + kFixtures + GetParam() + "}");
    settings.push_back("eval.every=1");
    Strings call = {"eval", "--checkpoint", kWeights, "--full", "--json", "--config", job.recipe()};
    for (const std::string& setting : settings) {
      call.push_back("--set");
      call.push_back(setting);
    }
    const Outcome outcome = Call(call);
    ASSERT_EQ(outcome.code, 0) << outcome.Text();
    const Json set = Json::parse(outcome.out.substr(outcome.out.find('{')))["sets"][0];
    EXPECT_EQ(set["tokens"], want_["targets"]) << packing;
    EXPECT_LT(Relative(set["loss"], want_["all"]), tolerance_) << packing;
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatOfTransformers,
                         ::testing::Values("marked.jinja", "plain.jinja"),
                         [](const auto& info) { return std::string(info.param, 5); });

// --- A model that has learnt some answers ---

constexpr const char* kTemplate =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

Json Turn(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

class ChatTest : public ::testing::Test {
 protected:
  ChatTest() {
    const std::map<std::string, std::string> says = {
        {"cat", "meow"}, {"dog", "woof"}, {"cow", "moo"}, {"hen", "cluck"}};
    std::string lines;
    for (int i = 0; i < 12; ++i) {
      for (const auto& [animal, sound] : says) {
        Json messages = {Turn("user", "What says the " + animal + "?"),
                         Turn("assistant", "The " + animal + " says " + sound + ".")};
        if (i % 3 == 0) {
          messages.push_back(Turn("user", "Thanks."));
          messages.push_back(Turn("assistant", "Not at all."));
        }
        lines += Json{{"messages", messages}}.dump() + "\n";
      }
    }
    lines_ = job_.dir().Write("talks.jsonl", lines);
    template_ = job_.dir().Write("t.jinja", kTemplate);
  }

  Strings Settings(const Strings& more = {}) const {
    Strings settings = {
        "model={family: gpt2, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, "
        "max_position_embeddings: 256, vocab_size: 256}",
        "data={seq_len: 256, valid: null, cache: " + (job_.dir() / "cache") + "}",
        "data.train={source: chat, paths: [" + lines_ + "], template: " + template_ + "}",
        "train={steps: 10, micro_batch_size: 4, global_batch_size: 4}",
        "optimizer.lr=5.0e-3",
        "schedule={warmup_steps: 5}",
        "checkpoint.every=0"};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  Outcome Train(const Strings& more = {}) const { return job_.Train(Settings(more)); }

  Job job_;
  std::string lines_, template_;
};

// Types these lines on a process's terminal, each when the process asks for one, and returns what
// the terminal shows.
std::string OnATerminal(const Strings& arguments, const Strings& lines) {
  std::vector<char*> argv;
  std::string program = BinaryPath();
  argv.push_back(program.data());
  Strings copy = arguments;
  for (std::string& argument : copy) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  std::string shown;
  size_t typed = 0, seen = 0;
  for (pollfd poll{terminal, POLLIN, 0}; ::poll(&poll, 1, kPatience.count() * 1000) > 0;) {
    char buffer[4096];
    const ssize_t n = ::read(terminal, buffer, sizeof(buffer));
    if (n <= 0) break;
    shown.append(buffer, static_cast<size_t>(n));
    if (!shown.ends_with("\n> ") || shown.size() == seen) continue;
    seen = shown.size();
    const std::string line = typed < lines.size() ? lines[typed++] + "\n" : "\x04";
    EXPECT_EQ(::write(terminal, line.data(), line.size()), std::ssize(line));
  }
  ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::close(terminal);
  std::string plain;
  for (const char c : shown) {
    if (c != '\r') plain += c;
  }
  return plain;
}

TEST_F(ChatTest, LearnsToAnswerAndToStop) {
  const Outcome run = Train({"train.steps=150", "log.every=50"});
  ASSERT_EQ(run.code, 0) << run.Text();
  EXPECT_TRUE(Has(run.out, "in 48 conversations, which fill")) << run.out;
  EXPECT_TRUE(Has(run.out, "generate --checkpoint " + job_.run_dir() + "/checkpoints/step_150\n"))
      << run.out;
  const Strings model = {"generate", "--checkpoint", job_.run_dir(), "--temperature", "0"};
  const auto generate = [&](const Strings& more) {
    Strings arguments = model;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Call(arguments);
  };
  const std::string one =
      job_.dir().Write("one.json", Json{Turn("user", "What says the cow?")}.dump());
  const std::string two = job_.dir().Write(
      "two.json", Json{{"messages",
                        {Turn("user", "What says the hen?"),
                         Turn("assistant", "The hen says cluck."), Turn("user", "Thanks.")}}}
                      .dump());
  const Outcome answer = generate({"--messages", one});
  EXPECT_EQ(answer.code, 0) << answer.Text();
  EXPECT_EQ(answer.out, "The cow says moo.\n");
  EXPECT_EQ(generate({"--messages", one, "--messages", two}).out,
            "--- 1 of 2\nThe cow says moo.\n\n--- 2 of 2\nNot at all.\n");
  const Json turns = {{{"from", "human"}, {"value", "What says the cow?"}}};
  for (const Json& theirs : {turns, Json{{"conversations", turns}}}) {  // ShareGPT's.
    const std::string file = job_.dir().Write("theirs.json", theirs.dump());
    EXPECT_EQ(generate({"--messages", file}).out, "The cow says moo.\n");
  }
  const Json json = Json::parse(generate({"--messages", two, "--json"}).out);
  EXPECT_EQ(json["text"], "Not at all.");
  EXPECT_EQ(json["end"], "end_of_text");
  EXPECT_EQ(json["prompt"],
            "<|user|>What says the hen?</s>\n<|assistant|>The hen says cluck.</s>\n"
            "<|user|>Thanks.</s>\n<|assistant|>");
  EXPECT_TRUE(Has(generate({"--messages", one, "--ignore-eot", "--max-tokens", "40"}).out,
                  "The cow says moo.</s>\n"));

  const std::string shown = OnATerminal(model, {"What says the dog?", "", "Thanks.", "/new",
                                                std::string(300, 'x'), "What says the cat?"});
  EXPECT_EQ(shown,
            "Talk to " + job_.run_dir() +
                ": a line is a message, /new begins anew, /exit or Ctrl-D ends.\n"
                "> What says the dog?\nThe dog says woof.\n> \n> Thanks.\nNot at all.\n> /new\n> " +
                std::string(300, 'x') +
                "\nthe conversation has 326 tokens, and there is room for 256: /new begins "
                "another\n> What says the cat?\nThe cat says meow.\n> \n");
  const Outcome silent = Call(model);
  EXPECT_EQ(silent.code, 2) << silent.Text();
  EXPECT_TRUE(Has(silent.err, "only on a terminal it talks without them")) << silent.err;

  EXPECT_TRUE(Has(OnATerminal({"generate", "--checkpoint", job_.run_dir(), "--json"}, {}),
                  "--json: belongs to a prompt or to --messages"));
  EXPECT_TRUE(Has(OnATerminal({"generate", "--checkpoint", job_.run_dir(), "--temperature", "0",
                               "--ignore-eot", "--max-tokens", "40"},
                              {"What says the cow?"}),
                  "The cow says moo.</s>"));
  EXPECT_TRUE(Has(generate({"--prompt", "a", "--template", template_}).err,
                  "--template: belongs to --messages"));

  // The export has the chat template that the run was given.
  const std::string out = job_.dir() / "hf";
  const Outcome exported = Call({"checkpoint", "export", job_.run_dir(), "--out", out});
  ASSERT_EQ(exported.code, 0) << exported.Text();
  EXPECT_EQ(ReadFile(out + "/chat_template.jinja"), kTemplate);
  EXPECT_EQ(Call({"generate", "--checkpoint", out, "--temperature", "0", "--messages", one}).out,
            "The cow says moo.\n");
}

TEST_F(ChatTest, PairsLearnTheSecond) {
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    lines += R"({"q": "up?", "a": " down"})"
             "\n"
             R"({"q": "in?", "a": " out"})"
             "\n";
  }
  const std::string file = job_.dir().Write("pairs.jsonl", lines);
  const Outcome run = Train({"data.train={source: pairs, paths: [" + file +
                                 "], template: null, prompt: q, completion: a, eot: 10}",
                             "data.seq_len=32", "train.steps=60"});
  ASSERT_EQ(run.code, 0) << run.Text();
  EXPECT_TRUE(Has(run.out, "in 16 pairs, which fill")) << run.out;
  EXPECT_EQ(
      Call({"generate", "--checkpoint", job_.run_dir(), "--temperature", "0", "--prompt", "in?"})
          .out,
      "in? out\n");
}

TEST_F(ChatTest, AResumeGoesOnWithTheSameBitsAndWithNothingElse) {
  Strings settings = {"train.steps=6", "checkpoint.every=3", "data.shuffle=true"};
  const auto last = [&] { return OfKind(ReadMetrics(job_.run_dir()), "step").back()["loss"]; };
  job_.RunDir("whole");
  ASSERT_EQ(Train(settings).code, 0);
  const Json loss = last();
  settings.push_back("checkpoint.resume=" + job_.run_dir() + "/checkpoints/step_3");
  job_.RunDir("parts");
  const Outcome resumed = Train(settings);
  ASSERT_EQ(resumed.code, 0) << resumed.Text();
  EXPECT_EQ(last(), loss);
  // The same conversations in other words are other data.
  std::string other = kTemplate;
  other.replace(other.find("</s>"), 4, "</t>");
  job_.dir().Write("t.jinja", other);
  const Outcome refused = Train(settings);
  EXPECT_EQ(refused.code, 4) << refused.Text();
  EXPECT_TRUE(Has(refused.err, "t.jinja")) << refused.err;
}

TEST_F(ChatTest, MistakesAreSaidBeforeTheFirstStep) {
  const auto fails = [&](const Strings& settings, int code, const std::string& words) {
    const Outcome outcome = Train(settings);
    EXPECT_EQ(outcome.code, code) << outcome.Text();
    EXPECT_TRUE(Has(outcome.err, words)) << outcome.err;
    EXPECT_FALSE(Has(outcome.out, "step 1")) << outcome.out;
  };
  const auto source = [&](const std::string& keys) {
    return "data.train={source: chat, paths: [" + lines_ + "], " + keys + "}";
  };
  fails({source("tokenizer: bytes, template: null")}, 4,
        "data.train.template: chat template: the tokenizer bytes has none");
  fails({source("template: not_there.jinja")}, 4, "not_there.jinja");
  const auto with = [&](const std::string& text) {
    return source("template: " + job_.dir().Write("other.jinja", text));
  };
  fails({with("{% for m in messages %}{{ m.content }}")}, 4, "other.jinja:1: ");
  fails({with("{{ lipsum() }}")}, 4,
        "other.jinja:1: `lipsum` is not among what chat templates use");
  fails({with("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}")},
        4, "talks.jsonl, line 1: ");
  fails({with("{{ messages | length }}")}, 4, "writes the first messages otherwise");
  fails({with("{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}")}, 4,
        "data.*.date gives it a day");
  fails({with("{% for m in messages %}{{ m.content }}{% endfor %}"), "data.train.train_on=all",
         "data.packing=windows"},
        2, "data.packing `windows` cuts anywhere");
  fails({"data.train.paths=[" + template_ + "]"}, 4, "is no .jsonl");
  fails({"data.train.paths=[" + job_.dir().Write("a.jsonl", "{\"messages\": [{\"content\": 1}]}") +
         "]"},
        4, "a.jsonl, line 1: messages[0] has no `role`");
  fails({"data.train.paths=[" +
         job_.dir().Write("b.jsonl", Json{{"messages", {Turn("user", "a")}}}.dump()) + "]"},
        4, "of 1 conversations 0 are longer than data.seq_len = 256 and the others have no target");
  fails({"data.seq_len=20"}, 4, "a conversation of ");
  // A check of the recipe finds what can be found without making tokens.
  Strings call = {"config", "check", "--config", job_.recipe()};
  for (const std::string& setting : Settings({with("{% if %}")})) {
    call.push_back("--set");
    call.push_back(setting);
  }
  EXPECT_EQ(Call(call).code, 4);
}

}  // namespace
}  // namespace fsdp::e2e
