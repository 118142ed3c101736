#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

// Syntax trees of templates.
namespace graft::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct NamedExpression {
  std::string name;
  ExpressionPtr value;
};

// The arguments of a call, a filter or a test; *x and **x are not supported.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<NamedExpression> named;
};

struct Expression {
  enum class Kind {
    constant,     // value
    name,         // text
    list,         // children
    tuple,        // children
    dict,         // children: key, value, key, value ...
    attribute,    // children[0].text
    item,         // children[0][children[1]]
    slice,        // children[0][children[1] : children[2] : children[3]]; null: left out
    call,         // children[0](arguments)
    filter,       // children[0]|text(arguments); children[0] null in a filter block
    test,         // children[0] is text(arguments)
    unary,        // text: "-", "+", "not"
    binary,       // text: "+", "-", "*", "/", "//", "%", "**", "~", "and", "or"
    compare,      // children[0] operators[0] children[1] operators[1] ...
    conditional,  // children[0] if children[1] else children[2]; the last may be null
  };
  Kind kind = Kind::constant;
  int line = 0;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;
  CallArguments arguments;

  Expression() = default;
  ~Expression();  // without recursion and memory: `1 + 1 + 1 + ...` is a deep tree
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;

 private:
  static void take_children(Expression& expression, Expression*& list) noexcept;
  Expression* next_to_free_ = nullptr;
};

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

// A macro's, or a call block's, parameter; `otherwise` may be null.
struct Parameter {
  std::string name;
  ExpressionPtr otherwise;
};

struct Statement {
  enum class Kind {
    text,          // text
    output,        // expression
    condition,     // expressions[0]: body, otherwise: otherwise
    loop,          // for names in expression if filter: body, when it is empty: otherwise
    set,           // names = expression; or names[0].attribute = expression
    set_block,     // names[0] = body, through expression's filters where it is not null
    macro,         // text(parameters): body
    call_block,    // expression is a call; its caller(parameters) is body
    filter_block,  // body through expression's filters
    scope,         // with: names[i] = expressions[i] in body
    body,          // generation blocks: body
    break_loop,
    continue_loop,
  };
  Kind kind = Kind::text;
  int line = 0;
  std::string text;
  std::string attribute;
  std::vector<std::string> names;
  ExpressionPtr expression;
  ExpressionPtr filter;
  std::vector<ExpressionPtr> expressions;
  std::vector<Parameter> parameters;
  bool recursive = false;
  Body body;
  Body otherwise;
};

// Throws InvalidProgram naming the line.
Body parse(std::string_view source);

}  // namespace graft::text::jinja
