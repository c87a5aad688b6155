#include "trainer/data/jinja/parser.h"

#include <algorithm>

namespace fsdp::jinja {
namespace {

using Type = Token::Type;
using Kind = Stmt::Kind;

// jinja2's own tags that no chat template has a use for: there is no other template to load.
constexpr std::string_view kForeignTags[] = {"block", "extends", "print",      "include",
                                             "from",  "import",  "autoescape", "call",
                                             "do",    "trans",   "debug",      "pluralize"};

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Program Run(const std::string& name) {
    Program program;
    program.name = name;
    program.body = Statements({});
    program.has_generation = has_generation_;
    return program;
  }

 private:
  using Names = std::vector<std::string_view>;

  StmtPtr Make(Kind kind, int line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  void ExpectEnd(Type type) {
    if (current().type != type) {
      Refuse(current().line, std::string("want ") + (type == Type::kBlockEnd ? "`%}`" : "`}}`") +
                                 ", got " + Describe(current()));
    }
    Take();
  }

  // Up to a tag of one of these names, which is then the current token; empty: to the end.
  Block Statements(const Names& ends) {
    const Level level(*this);
    Block block;
    while (current().type != Type::kEnd) {
      const int line = current().line;
      if (current().type == Type::kData) {
        block.push_back(Make(Kind::kText, line));
        block.back()->text = Take().text;
      } else if (current().type == Type::kVariableBegin) {
        Take();
        block.push_back(Make(Kind::kOutput, line));
        block.back()->exprs.push_back(Tuple());
        ExpectEnd(Type::kVariableEnd);
      } else {
        Take();  // `{%`: nothing else stands between tags.
        for (const std::string_view end : ends) {
          if (current().IsName(end)) return block;
        }
        block.push_back(Statement(ends));
        ExpectEnd(Type::kBlockEnd);
      }
    }
    if (!ends.empty()) {
      Refuse(current().line, "the template ends before {% " + std::string(ends.back()) + " %}");
    }
    return block;
  }

  // The body of a tag and what ends it. Returns the name of the tag that did.
  Block Body(const Names& ends, std::string* ended = nullptr) {
    SkipOperator(":");
    ExpectEnd(Type::kBlockEnd);
    Block block = Statements(ends);
    const std::string name = TakeName();
    if (ended) *ended = name;
    return block;
  }

  StmtPtr Statement(const Names& ends) {
    const int line = current().line;
    const std::string tag = current().type == Type::kName ? current().text : "";
    if (tag.empty()) Refuse(line, "want the name of a tag, got " + Describe(current()));
    Take();
    if (tag == "if") return If(line);
    if (tag == "for") return For(line);
    if (tag == "set") return Set(line);
    if (tag == "macro") return Macro(line);
    if (tag == "filter") return FilterBlock(line);
    if (tag == "with") return With(line);
    if (tag == "generation") return Generation(line);
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) Refuse(line, "{% " + tag + " %} outside of a loop");
      return Make(tag == "break" ? Kind::kBreak : Kind::kContinue, line);
    }
    if (std::find(std::begin(kForeignTags), std::end(kForeignTags), tag) !=
        std::end(kForeignTags)) {
      Refuse(line, "{% " + tag + " %} is not among what chat templates use");
    }
    Refuse(line, "there is no tag {% " + tag + " %}" +
                     (ends.empty() ? "" : "; want {% " + std::string(ends.back()) + " %} first"));
  }

  StmtPtr If(int line) {
    StmtPtr stmt = Make(Kind::kIf, line);
    std::string ended = "elif";
    while (ended == "elif") {
      stmt->exprs.push_back(Tuple(false));
      stmt->bodies.push_back(Body({"elif", "else", "endif"}, &ended));
    }
    if (ended == "else") stmt->bodies.push_back(Body({"endif"}));
    return stmt;
  }

  StmtPtr For(int line) {
    StmtPtr stmt = Make(Kind::kFor, line);
    stmt->target = Target(Ends::kAtIn, false);
    ExpectName("in");
    stmt->exprs.push_back(Tuple(false));
    if (SkipName("if")) stmt->condition = Expression();
    if (current().IsName("recursive")) {
      Refuse(current().line, "`recursive` loops are not among what chat templates use");
    }
    std::string ended;
    ++loops_;
    stmt->bodies.push_back(Body({"else", "endfor"}, &ended));
    --loops_;
    stmt->bodies.emplace_back();
    if (ended == "else") stmt->bodies.back() = Body({"endfor"});
    return stmt;
  }

  StmtPtr Set(int line) {
    StmtPtr stmt = Make(Kind::kSet, line);
    stmt->target = Target(Ends::kNowhere, true);
    if (SkipOperator("=")) {
      stmt->exprs.push_back(Tuple());
      return stmt;
    }
    stmt->kind = Kind::kSetBlock;
    if (current().IsOperator("|")) stmt->exprs.push_back(Filters(nullptr, false));
    const Inside inside(*this, "{% set %} that has a body");
    stmt->bodies.push_back(Body({"endset"}));
    return stmt;
  }

  StmtPtr FilterBlock(int line) {
    StmtPtr stmt = Make(Kind::kFilter, line);
    stmt->exprs.push_back(Filters(nullptr, true));
    const Inside inside(*this, "{% filter %}");
    stmt->bodies.push_back(Body({"endfilter"}));
    return stmt;
  }

  StmtPtr Macro(int line) {
    StmtPtr stmt = Make(Kind::kMacro, line);
    stmt->text = TakeName();
    ExpectOperator("(");
    while (!current().IsOperator(")")) {
      if (!stmt->parameters.empty()) ExpectOperator(",");
      Stmt::Parameter parameter;
      parameter.name = TakeName();
      for (const Stmt::Parameter& known : stmt->parameters) {
        if (known.name == parameter.name) {
          Refuse(line, "the parameter `" + parameter.name + "` stands there twice");
        }
      }
      if (SkipOperator("=")) {
        parameter.standard = Expression();
      } else if (!stmt->parameters.empty() && stmt->parameters.back().standard) {
        Refuse(current().line, "a parameter without a default behind one that has it");
      }
      stmt->parameters.push_back(std::move(parameter));
    }
    ExpectOperator(")");
    const Inside inside(*this, "{% macro %}");
    const int loops = std::exchange(loops_, 0);
    stmt->bodies.push_back(Body({"endmacro"}));
    loops_ = loops;
    return stmt;
  }

  StmtPtr With(int line) {
    StmtPtr stmt = Make(Kind::kWith, line);
    while (current().type != Type::kBlockEnd) {
      if (!stmt->targets.empty()) ExpectOperator(",");
      stmt->targets.push_back(Target(Ends::kNowhere, false));
      ExpectOperator("=");
      stmt->exprs.push_back(Expression());
    }
    stmt->bodies.push_back(Body({"endwith"}));
    return stmt;
  }

  StmtPtr Generation(int line) {
    if (inside_) {
      Refuse(line, std::string("{% generation %} stands within ") + inside_ +
                       ": where its text comes to stand is not known");
    }
    has_generation_ = true;
    StmtPtr stmt = Make(Kind::kGeneration, line);
    const Inside inside(*this, "{% generation %}");
    const int loops = std::exchange(loops_, 0);  // It is a function to jinja2.
    stmt->bodies.push_back(Body({"endgeneration"}));
    loops_ = loops;
    return stmt;
  }

  // Within a tag the text of which goes elsewhere first.
  class Inside {
   public:
    Inside(Parser& parser, const char* tag)
        : parser_(parser), outer_(std::exchange(parser.inside_, tag)) {}
    ~Inside() { parser_.inside_ = outer_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Parser& parser_;
    const char* const outer_;
  };

  int loops_ = 0;
  const char* inside_ = nullptr;
  bool has_generation_ = false;
};

}  // namespace

Program Parse(const std::string& name, std::string_view source) {
  return Parser(name, Tokenize(name, source)).Run(name);
}

}  // namespace fsdp::jinja
