#include <algorithm>

#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace graft::text::jinja {
namespace {

using Expr = Expression::Kind;
using Stmt = Statement::Kind;

// No real template nests deeper.
constexpr int kMaxDepth = 200;
constexpr int kMaxNodes = 100'000;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Body run() {
    Body out = body_until({});
    if (token().kind != Token::Kind::end) fail("unexpected end of a block");
    return out;
  }

 private:
  struct Deeper {
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxDepth) parser_.fail("it is nested too deeply");
    }
    ~Deeper() { --parser_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Parser& parser_;
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw InvalidProgram(graft::str("chat template, line ", token().line, ": ", what));
  }

  const Token& token(std::size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool is_sign(std::string_view text, std::size_t ahead = 0) const {
    return token(ahead).kind == Token::Kind::sign && token(ahead).text == text;
  }
  bool is_name(std::string_view text, std::size_t ahead = 0) const {
    return token(ahead).kind == Token::Kind::name && token(ahead).text == text;
  }
  std::string described() const {
    switch (token().kind) {
      case Token::Kind::text:
        return "text";
      case Token::Kind::output_begin:
      case Token::Kind::block_begin:
        return "a tag";
      case Token::Kind::output_end:
      case Token::Kind::block_end:
        return "the end of the tag";
      case Token::Kind::constant:
        return token().value.repr();
      case Token::Kind::end:
        return "the end of the template";
      default:
        return "'" + token().text + "'";
    }
  }

  bool take_sign(std::string_view text) {
    if (!is_sign(text)) return false;
    ++at_;
    return true;
  }
  bool take_name(std::string_view text) {
    if (!is_name(text)) return false;
    ++at_;
    return true;
  }
  void expect_sign(std::string_view text) {
    if (!take_sign(text)) fail(graft::str("expected '", text, "', found ", described()));
  }
  std::string expect_any_name() {
    if (token().kind != Token::Kind::name) fail("expected a name, found " + described());
    return tokens_[at_++].text;
  }
  void expect_block_end() {
    if (token().kind != Token::Kind::block_end) fail("expected '%}', found " + described());
    ++at_;
  }

  // --- statements ---

  // Parses up to a block that begins with one of the names; consumes its '{%' but not the name.
  Body body_until(const std::vector<std::string_view>& ends) {
    const Deeper deeper(*this);
    Body out;
    while (token().kind != Token::Kind::end) {
      if (token().kind == Token::Kind::text) {
        auto statement = make(Stmt::text);
        statement->text = tokens_[at_++].text;
        out.push_back(std::move(statement));
      } else if (token().kind == Token::Kind::output_begin) {
        auto statement = make(Stmt::output);
        ++at_;
        statement->expression = tuple_or_expression();
        if (token().kind != Token::Kind::output_end) fail("expected '}}', found " + described());
        ++at_;
        out.push_back(std::move(statement));
      } else {
        ++at_;  // '{%'
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return is_name(end); })) return out;
        if (auto statement = block()) out.push_back(std::move(statement));
      }
    }
    if (!ends.empty()) fail(graft::str("expected '{% ", ends.back(), " %}', found the end of the template"));
    return out;
  }

  // A body and the block that ends it.
  Body body_to(std::string_view end) {
    Body out = body_until({end});
    ++at_;
    expect_block_end();
    return out;
  }

  std::unique_ptr<Statement> make(Stmt kind) const {
    auto out = std::make_unique<Statement>();
    out->kind = kind;
    out->line = token().line;
    return out;
  }

  std::unique_ptr<const Statement> block() {
    const std::string name = expect_any_name();
    if (name == "if") return condition();
    if (name == "for") return loop();
    if (name == "set") return set();
    if (name == "macro") return macro();
    if (name == "call") return call_block();
    if (name == "filter") return filter_block();
    if (name == "with") return with();
    if (name == "generation") {
      auto out = make(Stmt::body);
      expect_block_end();
      out->body = body_to("endgeneration");
      return out;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail("'" + name + "' outside of a loop");
      auto out = make(name == "break" ? Stmt::break_loop : Stmt::continue_loop);
      expect_block_end();
      return out;
    }
    if (name.starts_with("end") || name == "else" || name == "elif") fail("unexpected '" + name + "'");
    throw Unsupported(graft::str("chat template, line ", token().line, ": the tag '", name, "' is not supported"));
  }

  std::unique_ptr<const Statement> condition() {
    const Deeper deeper(*this);  // elif is a condition in the other branch
    auto out = make(Stmt::condition);
    out->expressions.push_back(tuple_or_expression());
    expect_block_end();
    out->body = body_until({"elif", "else", "endif"});
    if (take_name("elif")) {
      out->otherwise.push_back(condition());  // it consumes the end block
      return out;
    }
    if (take_name("else")) {
      expect_block_end();
      out->otherwise = body_until({"endif"});
    }
    ++at_;
    expect_block_end();
    return out;
  }

  std::unique_ptr<const Statement> loop() {
    auto out = make(Stmt::loop);
    out->names = targets();
    if (!take_name("in")) fail("expected 'in', found " + described());
    out->expression = tuple_or_expression(/*with_condition=*/false);
    if (take_name("if")) out->filter = expression();
    out->recursive = take_name("recursive");
    expect_block_end();
    ++loops_;
    out->body = body_until({"else", "endfor"});
    --loops_;
    if (take_name("else")) {
      expect_block_end();
      out->otherwise = body_until({"endfor"});
    }
    ++at_;
    expect_block_end();
    return out;
  }

  // a, b or (a, b): one name, or several that unpack a sequence.
  std::vector<std::string> targets() {
    const bool bracket = take_sign("(");
    std::vector<std::string> out{expect_any_name()};
    while (take_sign(",")) {
      if (token().kind != Token::Kind::name || is_name("in")) {
        fail("expected a name, found " + described());
      }
      out.push_back(expect_any_name());
    }
    if (bracket) expect_sign(")");
    return out;
  }

  std::unique_ptr<const Statement> set() {
    auto out = make(Stmt::set);
    if (token().kind == Token::Kind::name && is_sign(".", 1)) {
      out->names = {expect_any_name()};
      ++at_;
      out->attribute = expect_any_name();
    } else {
      out->names = targets();
    }
    if (take_sign("=")) {
      out->expression = tuple_or_expression();
      expect_block_end();
      return out;
    }
    out->kind = Stmt::set_block;
    if (out->names.size() != 1) fail("expected '=', found " + described());
    out->expression = filters_of(nullptr);
    expect_block_end();
    out->body = body_to("endset");
    return out;
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> out;
    expect_sign("(");
    while (!take_sign(")")) {
      if (!out.empty()) {
        expect_sign(",");
        if (take_sign(")")) break;
      }
      Parameter parameter{expect_any_name(), nullptr};
      if (take_sign("=")) parameter.otherwise = expression();
      out.push_back(std::move(parameter));
    }
    return out;
  }

  std::unique_ptr<const Statement> macro() {
    auto out = make(Stmt::macro);
    out->text = expect_any_name();
    out->parameters = parameters();
    expect_block_end();
    out->body = function_body("endmacro");
    return out;
  }

  std::unique_ptr<const Statement> call_block() {
    auto out = make(Stmt::call_block);
    if (is_sign("(")) out->parameters = parameters();
    out->expression = expression();
    if (out->expression->kind != Expr::call) fail("expected a call, found something else");
    expect_block_end();
    out->body = function_body("endcall");
    return out;
  }

  // Loops around a macro do not count inside it.
  Body function_body(std::string_view end) {
    const int outer = loops_;
    loops_ = 0;
    Body out = body_to(end);
    loops_ = outer;
    return out;
  }

  std::unique_ptr<const Statement> filter_block() {
    auto out = make(Stmt::filter_block);
    out->expression = filters_of(filter(nullptr));
    expect_block_end();
    out->body = body_to("endfilter");
    return out;
  }

  std::unique_ptr<const Statement> with() {
    auto out = make(Stmt::scope);
    while (token().kind != Token::Kind::block_end) {
      if (!out->names.empty()) expect_sign(",");
      out->names.push_back(expect_any_name());
      expect_sign("=");
      out->expressions.push_back(expression());
    }
    expect_block_end();
    out->body = body_to("endwith");
    return out;
  }

  // --- expressions, from the loosest binding to the tightest ---

  std::unique_ptr<Expression> make(Expr kind, std::string text = "") {
    auto out = std::make_unique<Expression>();
    if (++nodes_ > kMaxNodes) fail("it is too large");
    out->kind = kind;
    out->line = token().line;
    out->text = std::move(text);
    return out;
  }
  ExpressionPtr joined(Expr kind, std::string text, ExpressionPtr left, ExpressionPtr right) {
    auto out = make(kind, std::move(text));
    out->children.push_back(std::move(left));
    out->children.push_back(std::move(right));
    return out;
  }

  bool tuple_ends() const {
    const Token::Kind kind = token().kind;
    return kind == Token::Kind::output_end || kind == Token::Kind::block_end || is_sign(")") || is_name("recursive");
  }

  ExpressionPtr tuple_or_expression(bool with_condition = true) {
    ExpressionPtr first = with_condition ? expression() : logical_or();
    if (!is_sign(",")) return first;
    auto out = make(Expr::tuple);
    out->children.push_back(std::move(first));
    while (take_sign(",") && !tuple_ends()) out->children.push_back(with_condition ? expression() : logical_or());
    return out;
  }

  ExpressionPtr expression() {
    const Deeper deeper(*this);
    ExpressionPtr value = logical_or();
    while (take_name("if")) {
      auto out = make(Expr::conditional);
      out->children.push_back(std::move(value));
      out->children.push_back(logical_or());
      out->children.push_back(take_name("else") ? expression() : nullptr);
      value = std::move(out);
    }
    return value;
  }

  ExpressionPtr logical_or() {
    ExpressionPtr left = logical_and();
    while (take_name("or")) left = joined(Expr::binary, "or", std::move(left), logical_and());
    return left;
  }
  ExpressionPtr logical_and() {
    ExpressionPtr left = logical_not();
    while (take_name("and")) left = joined(Expr::binary, "and", std::move(left), logical_not());
    return left;
  }
  ExpressionPtr logical_not() {
    if (!take_name("not")) return comparison();
    const Deeper deeper(*this);
    auto out = make(Expr::unary, "not");
    out->children.push_back(logical_not());
    return out;
  }

  ExpressionPtr comparison() {
    ExpressionPtr first = sum();
    std::unique_ptr<Expression> out;
    while (true) {
      std::string sign;
      for (const char* known : {"==", "!=", "<=", ">=", "<", ">"})
        if (sign.empty() && take_sign(known)) sign = known;
      if (sign.empty() && take_name("in")) sign = "in";
      if (sign.empty() && is_name("not") && is_name("in", 1)) {
        at_ += 2;
        sign = "not in";
      }
      if (sign.empty()) break;
      if (!out) {
        out = make(Expr::compare);
        out->children.push_back(std::move(first));
      }
      out->operators.push_back(sign);
      out->children.push_back(sum());
    }
    if (out) return out;
    return first;
  }

  ExpressionPtr sum() {
    ExpressionPtr left = concatenation();
    while (is_sign("+") || is_sign("-")) {
      const std::string sign = tokens_[at_++].text;
      left = joined(Expr::binary, sign, std::move(left), concatenation());
    }
    return left;
  }
  ExpressionPtr concatenation() {
    ExpressionPtr left = product();
    while (take_sign("~")) left = joined(Expr::binary, "~", std::move(left), product());
    return left;
  }
  ExpressionPtr product() {
    ExpressionPtr left = power();
    while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
      const std::string sign = tokens_[at_++].text;
      left = joined(Expr::binary, sign, std::move(left), power());
    }
    return left;
  }
  ExpressionPtr power() {
    ExpressionPtr left = unary(true);
    while (take_sign("**")) left = joined(Expr::binary, "**", std::move(left), unary(true));
    return left;
  }

  ExpressionPtr unary(bool with_filters) {
    const Deeper deeper(*this);
    ExpressionPtr out;
    if (is_sign("-") || is_sign("+")) {
      auto made = make(Expr::unary, tokens_[at_++].text);
      made->children.push_back(unary(false));
      out = std::move(made);
    } else {
      out = primary();
    }
    out = postfix(std::move(out));
    return with_filters ? filters_and_tests(std::move(out)) : std::move(out);
  }

  ExpressionPtr constant(Value value) {
    auto out = make(Expr::constant);
    out->value = std::move(value);
    ++at_;
    return out;
  }

  ExpressionPtr primary() {
    if (token().kind == Token::Kind::constant) {
      if (token().value.text() == nullptr) return constant(token().value);
      std::string text;  // adjacent literals are one string
      while (token(1).kind == Token::Kind::constant && token(1).value.text() != nullptr)
        text += *tokens_[at_++].value.text();
      return constant(text + *token().value.text());
    }
    if (token().kind == Token::Kind::name) {
      const std::string& name = token().text;
      if (name == "true" || name == "True") return constant(true);
      if (name == "false" || name == "False") return constant(false);
      if (name == "none" || name == "None") return constant(None{});
      auto out = make(Expr::name, name);
      ++at_;
      return out;
    }
    if (take_sign("(")) {
      if (take_sign(")")) return make(Expr::tuple);
      ExpressionPtr out = tuple_or_expression();
      expect_sign(")");
      return out;
    }
    if (take_sign("[")) return list();
    if (take_sign("{")) return dict();
    fail("expected a value, found " + described());
  }

  ExpressionPtr list() {
    auto out = make(Expr::list);
    while (!take_sign("]")) {
      if (!out->children.empty()) {
        expect_sign(",");
        if (take_sign("]")) break;
      }
      out->children.push_back(expression());
    }
    return out;
  }

  ExpressionPtr dict() {
    auto out = make(Expr::dict);
    while (!take_sign("}")) {
      if (!out->children.empty()) {
        expect_sign(",");
        if (take_sign("}")) break;
      }
      out->children.push_back(expression());
      expect_sign(":");
      out->children.push_back(expression());
    }
    return out;
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (true) {
      if (take_sign(".")) {
        auto out = make(Expr::attribute);
        if (token().kind == Token::Kind::constant && token().value.is_integer()) {
          out->kind = Expr::item;  // x.0
          out->children.push_back(std::move(value));
          out->children.push_back(constant(token().value));
        } else {
          out->text = expect_any_name();
          out->children.push_back(std::move(value));
        }
        value = std::move(out);
      } else if (take_sign("[")) {
        value = subscript(std::move(value));
      } else if (is_sign("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value) {
    auto out = make(Expr::item);
    out->children.push_back(std::move(value));
    const auto part = [&]() -> ExpressionPtr { return is_sign(":") || is_sign("]") ? nullptr : expression(); };
    out->children.push_back(part());
    if (is_sign(":")) {
      out->kind = Expr::slice;
      for (int i = 0; i < 2; ++i) out->children.push_back(take_sign(":") ? part() : nullptr);
    } else if (out->children[1] == nullptr) {
      fail("expected an index, found " + described());
    }
    expect_sign("]");
    return out;
  }

  ExpressionPtr call(ExpressionPtr value) {
    auto out = make(Expr::call);
    out->children.push_back(std::move(value));
    out->arguments = arguments();
    return out;
  }

  CallArguments arguments() {
    CallArguments out;
    expect_sign("(");
    while (!take_sign(")")) {
      if (!out.positional.empty() || !out.named.empty()) {
        expect_sign(",");
        if (take_sign(")")) break;
      }
      if (is_sign("*") || is_sign("**"))
        throw Unsupported(graft::str("chat template, line ", token().line, ": '*' arguments are not supported"));
      if (token().kind == Token::Kind::name && is_sign("=", 1)) {
        std::string name = expect_any_name();
        ++at_;
        out.named.push_back({std::move(name), expression()});
      } else {
        if (!out.named.empty()) fail("an argument without a name stands behind one with a name");
        out.positional.push_back(expression());
      }
    }
    return out;
  }

  ExpressionPtr filters_and_tests(ExpressionPtr value) {
    while (true) {
      if (take_sign("|"))
        value = filter(std::move(value));
      else if (take_name("is"))
        value = test(std::move(value));
      else if (is_sign("("))
        value = call(std::move(value));
      else
        return value;
    }
  }

  // Any number of filters: |a|b.
  ExpressionPtr filters_of(ExpressionPtr value) {
    while (take_sign("|")) value = filter(std::move(value));
    return value;
  }

  ExpressionPtr filter(ExpressionPtr value) {
    auto out = make(Expr::filter, expect_any_name());
    while (take_sign(".")) out->text += "." + expect_any_name();
    out->children.push_back(std::move(value));
    if (is_sign("(")) out->arguments = arguments();
    return out;
  }

  ExpressionPtr test(ExpressionPtr value) {
    const bool negated = take_name("not");
    auto out = make(Expr::test, expect_any_name());
    out->children.push_back(std::move(value));
    const Token::Kind kind = token().kind;
    const bool value_follows =
        kind == Token::Kind::name || kind == Token::Kind::constant || is_sign("[") || is_sign("{");
    if (is_sign("(")) {
      out->arguments = arguments();
    } else if (value_follows && !is_name("else") && !is_name("or") && !is_name("and") && !is_name("if") &&
               !is_name("is") && !is_name("in") && !is_name("not")) {
      out->arguments.positional.push_back(postfix(primary()));
    }
    if (!negated) return out;
    auto outer = make(Expr::unary, "not");
    outer->children.push_back(std::move(out));
    return outer;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int nodes_ = 0;
  int loops_ = 0;  // around the statement
};

}  // namespace

// Moves the children of an expression to the front of a list that is linked by next_to_free.
void Expression::take_children(Expression& expression, Expression*& list) noexcept {
  const auto take = [&](ExpressionPtr& child) {
    if (!child) return;
    auto* taken = const_cast<Expression*>(child.release());  // NOLINT: parsed ones are const, but were not made so
    taken->next_to_free_ = list;
    list = taken;
  };
  for (ExpressionPtr& child : expression.children) take(child);
  for (ExpressionPtr& value : expression.arguments.positional) take(value);
  for (NamedExpression& named : expression.arguments.named) take(named.value);
}

Expression::~Expression() {
  Expression* list = nullptr;
  take_children(*this, list);
  while (list != nullptr) {
    const std::unique_ptr<Expression> first(list);
    list = first->next_to_free_;
    take_children(*first, list);
  }
}

Body parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace graft::text::jinja
