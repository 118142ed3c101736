#include "text/jinja/interpreter.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "text/unicode.h"

namespace graft::text::jinja {
namespace {

constexpr int kMaxLevel = 1500;

// Errors that name their line already begin with this.
constexpr std::string_view kPlaced = "chat template";

const ExpressionPtr& child(const Expression& expression, std::size_t i) { return expression.children[i]; }

}  // namespace

class Interpreter::Level {
 public:
  explicit Level(Interpreter& interpreter) : interpreter_(interpreter) {
    GRAFT_CHECK(InvalidArgument, ++interpreter_.level_ <= kMaxLevel, "calls and expressions are nested too deeply");
  }
  ~Level() { --interpreter_.level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Interpreter& interpreter_;
};

Interpreter::Interpreter(const Named& variables, const TextLimits& limits)
    : globals_(global_functions()), limits_(limits) {
  globals_["namespace"] = Callable{"namespace",
                                   [this](const Arguments& given) -> Value {
                                     spaces_.push_back(make_namespace(given));
                                     return spaces_.back();
                                   },
                                   {}};
  for (const auto& [name, value] : variables) globals_[name] = value;
}

Interpreter::~Interpreter() {
  for (const auto& space : spaces_) space->attributes.clear();
}

std::string Interpreter::render(const Body& body) {
  std::string out;
  run(body, std::make_shared<Scope>(), out);
  return out;
}

// --- statements ---

Interpreter::Flow Interpreter::run(const Body& body, const ScopePtr& scope, std::string& out) {
  for (const auto& statement : body)
    if (const Flow flow = run(*statement, scope, out); flow != Flow::next) return flow;
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const Statement& statement, const ScopePtr& scope, std::string& out) {
  try {
    count_steps(0);
    const Flow flow = run_statement(statement, scope, out);
    check_size(out);
    return flow;
  } catch (const InvalidArgument& error) {
    if (std::string_view(error.what()).starts_with(kPlaced)) throw;
    throw InvalidArgument(graft::str(kPlaced, ", line ", statement.line, ": ", error.what()));
  }
}

void Interpreter::check_size(const std::string& out) const {
  GRAFT_CHECK(InvalidArgument, static_cast<std::int64_t>(out.size()) <= limits_.max_template_bytes, "the text has ",
              out.size(), " bytes, at most ", limits_.max_template_bytes, " are allowed (max_template_bytes)");
}

void Interpreter::count_steps(std::size_t size) {
  constexpr std::size_t kPerStep = 64;
  steps_ += static_cast<std::int64_t>(1 + size / kPerStep);
  GRAFT_CHECK(InvalidArgument, steps_ <= limits_.max_template_steps, "it takes ", steps_, " steps, at most ",
              limits_.max_template_steps, " are allowed (max_template_steps)");
}

Interpreter::Flow Interpreter::run_statement(const Statement& s, const ScopePtr& scope, std::string& out) {
  using Kind = Statement::Kind;
  switch (s.kind) {
    case Kind::text:
      out += s.text;
      return Flow::next;
    case Kind::output:
      out += evaluate(*s.expression, scope).str();
      return Flow::next;
    case Kind::condition:
      return run(evaluate(*s.expressions[0], scope).truth() ? s.body : s.otherwise, scope, out);
    case Kind::loop:
      run_loop(s, evaluate(*s.expression, scope), scope, out, 0);
      return Flow::next;
    case Kind::set:
      run_set(s, scope);
      return Flow::next;
    case Kind::set_block:
      scope->names[s.names[0]] = filtered(s.expression.get(), captured(s.body, scope), scope);
      return Flow::next;
    case Kind::macro:
      scope->names[s.text] = make_macro(s.text, s.parameters, s.body, scope);
      return Flow::next;
    case Kind::call_block: {
      const Value caller = make_macro("caller", s.parameters, s.body, scope);
      out += evaluate_call(*s.expression, scope, &caller).str();
      return Flow::next;
    }
    case Kind::filter_block:
      out += filtered(s.expression.get(), captured(s.body, scope), scope).str();
      return Flow::next;
    case Kind::scope: {
      const auto inner = std::make_shared<Scope>(scope);
      for (std::size_t i = 0; i < s.names.size(); ++i) inner->names[s.names[i]] = evaluate(*s.expressions[i], scope);
      return run(s.body, inner, out);
    }
    case Kind::body:
      return run(s.body, std::make_shared<Scope>(scope), out);
    case Kind::break_loop:
      return Flow::stop;
    case Kind::continue_loop:
      return Flow::again;
  }
  return Flow::next;
}

std::string Interpreter::captured(const Body& body, const ScopePtr& scope) {
  std::string out;
  run(body, std::make_shared<Scope>(scope), out);
  return out;
}

Value Interpreter::filtered(const Expression* filters, Value value, const ScopePtr& scope) {
  if (filters == nullptr) return value;
  const Level level(*this);
  const Value inner = filtered(child(*filters, 0).get(), std::move(value), scope);
  return apply_filter(filters->text, inner, evaluate_arguments(filters->arguments, scope));
}

void Interpreter::assign(const std::vector<std::string>& names, const Value& value, const ScopePtr& scope) {
  if (names.size() == 1) {
    scope->names[names[0]] = value;
    return;
  }
  const Values items = value.iterate();
  GRAFT_CHECK(InvalidArgument, items.size() == names.size(), "expected ", names.size(), " values to take apart, found ",
              items.size());
  for (std::size_t i = 0; i < names.size(); ++i) scope->names[names[i]] = items[i];
}

void Interpreter::run_set(const Statement& s, const ScopePtr& scope) {
  const Value value = evaluate(*s.expression, scope);
  if (s.attribute.empty()) return assign(s.names, value, scope);
  const Value target = lookup(s.names[0], scope);
  Namespace* space = target.space();
  GRAFT_CHECK(InvalidArgument, space != nullptr, "cannot set an attribute of '", s.names[0],
              "', which is no namespace");
  GRAFT_CHECK(InvalidArgument, !s.attribute.starts_with('_'), "cannot set the attribute '", s.attribute,
              "' of a namespace: it begins with an underscore");
  for (auto& [name, held] : space->attributes)
    if (name == s.attribute) {
      held = value;
      return;
    }
  space->attributes.emplace_back(s.attribute, value);
}

void Interpreter::run_loop(const Statement& s, const Value& over, const ScopePtr& scope, std::string& out,
                           std::int64_t depth) {
  const Level level(*this);
  Values items = over.iterate();
  if (s.filter) {
    const auto inner = std::make_shared<Scope>(scope);
    std::erase_if(items, [&](const Value& item) {
      assign(s.names, item, inner);
      return !evaluate(*s.filter, inner).truth();
    });
  }
  const auto changed = std::make_shared<Value>();
  for (std::size_t i = 0; i < items.size(); ++i) {
    count_steps(0);  // the body may be empty
    const auto inner = std::make_shared<Scope>(scope);
    assign(s.names, items[i], inner);
    inner->names["loop"] = loop_object(s, items, i, scope, depth, changed);
    if (run(s.body, inner, out) == Flow::stop) break;
  }
  if (items.empty()) run(s.otherwise, scope, out);
}

Value Interpreter::loop_object(const Statement& s, const Values& items, std::size_t index, const ScopePtr& scope,
                               std::int64_t depth, const std::shared_ptr<Value>& changed) {
  const std::size_t count = items.size();
  Callable out{"loop", nullptr, {}};
  out.attributes = {{"index", index + 1},
                    {"index0", index},
                    {"revindex", count - index},
                    {"revindex0", count - index - 1},
                    {"first", index == 0},
                    {"last", index + 1 == count},
                    {"length", count},
                    {"depth", depth + 1},
                    {"depth0", depth},
                    {"previtem", index > 0 ? items[index - 1] : Value::undefined("there is no previous item")},
                    {"nextitem", index + 1 < count ? items[index + 1] : Value::undefined("there is no next item")}};
  out.attributes.emplace_back("cycle", Callable{"cycle",
                                                [index](const Arguments& given) {
                                                  GRAFT_CHECK(InvalidArgument, !given.positional.empty(),
                                                              "loop.cycle() needs values");
                                                  return given.positional[index % given.positional.size()];
                                                },
                                                {}});
  out.attributes.emplace_back(
      "changed", Callable{"changed",
                          [weak = std::weak_ptr<Value>(changed)](const Arguments& given) -> Value {
                            const auto before = weak.lock();
                            GRAFT_CHECK(InvalidArgument, before, "loop.changed() is called behind its loop");
                            Value now = Value::list(given.positional);
                            const bool differs = !(*before == now);
                            *before = std::move(now);
                            return differs;
                          },
                          {}});
  out.call = [this, &s, weak = std::weak_ptr<Scope>(scope), depth](const Arguments& given) -> Value {
    GRAFT_CHECK(InvalidArgument, s.recursive && given.positional.size() == 1, "loop() is for recursive loops");
    const ScopePtr outer = weak.lock();
    GRAFT_CHECK(InvalidArgument, outer, "loop() is called where its surroundings are gone");
    std::string text;
    run_loop(s, given.positional[0], outer, text, depth + 1);
    return text;
  };
  return out;
}

Value Interpreter::make_macro(std::string name, const std::vector<Parameter>& parameters, const Body& body,
                              const ScopePtr& scope) {
  auto call = [this, name, &parameters, &body, weak = std::weak_ptr<Scope>(scope)](const Arguments& given) {
    const ScopePtr outer = weak.lock();
    GRAFT_CHECK(InvalidArgument, outer, "the macro '", name, "' is called where its surroundings are gone");
    return call_macro(name, parameters, body, outer, given);
  };
  return Callable{name, std::move(call), {{"name", name}}};
}

Value Interpreter::call_macro(const std::string& name, const std::vector<Parameter>& parameters, const Body& body,
                              const ScopePtr& scope, const Arguments& given) {
  const Level level(*this);
  const auto inner = std::make_shared<Scope>(scope);
  Values more;
  for (std::size_t i = parameters.size(); i < given.positional.size(); ++i) more.push_back(given.positional[i]);
  Dict more_named;
  for (const auto& [key, value] : given.named) {
    const bool known =
        std::any_of(parameters.begin(), parameters.end(),
                    [&, wanted = &key](const Parameter& parameter) { return parameter.name == *wanted; });
    if (key == "caller")
      inner->names["caller"] = value;
    else if (!known)
      more_named.set(key, value);
  }
  inner->names["varargs"] = Value::list(std::move(more), Sequence::Kind::tuple);
  inner->names["kwargs"] = std::move(more_named);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Value* value = given.get(i, parameters[i].name);
    inner->names[parameters[i].name] =
        value != nullptr ? *value
        : parameters[i].otherwise
            ? evaluate(*parameters[i].otherwise, inner)
            : Value::undefined("the parameter '" + parameters[i].name + "' of " + name + "() was not given");
  }
  std::string out;
  run(body, inner, out);
  return out;
}

// --- expressions ---

Value Interpreter::lookup(const std::string& name, const ScopePtr& scope) const {
  for (const Scope* at = scope.get(); at != nullptr; at = at->parent.get())
    if (const auto found = at->names.find(name); found != at->names.end()) return found->second;
  const auto found = globals_.find(name);
  return found != globals_.end() ? found->second : Value::undefined("'" + name + "' is undefined");
}

Value Interpreter::evaluate(const Expression& expression, const ScopePtr& scope) {
  const Level level(*this);
  Value value = evaluate_node(expression, scope);
  const std::string* text = value.text();
  const Sequence* items = expression.kind == Expression::Kind::name ? nullptr : value.sequence();
  count_steps(text != nullptr ? text->size() : items != nullptr ? items->items.size() : 0);
  return value;
}

Value Interpreter::evaluate_node(const Expression& e, const ScopePtr& scope) {
  using Kind = Expression::Kind;
  const auto value_of = [&](std::size_t i) { return evaluate(*child(e, i), scope); };
  switch (e.kind) {
    case Kind::constant:
      return e.value;
    case Kind::name:
      return lookup(e.text, scope);
    case Kind::list:
    case Kind::tuple: {
      Values items;
      for (std::size_t i = 0; i < e.children.size(); ++i) items.push_back(value_of(i));
      return Value::list(std::move(items), e.kind == Kind::list ? Sequence::Kind::list : Sequence::Kind::tuple);
    }
    case Kind::dict: {
      Dict out;
      for (std::size_t i = 0; i < e.children.size(); i += 2) out.set(value_of(i), value_of(i + 1));
      return out;
    }
    case Kind::attribute:
      return attribute(value_of(0), e.text);
    case Kind::item:
      return item(value_of(0), value_of(1));
    case Kind::slice:
      return evaluate_slice(e, scope);
    case Kind::call:
      return evaluate_call(e, scope, nullptr);
    case Kind::filter:
      return apply_filter(e.text, value_of(0), evaluate_arguments(e.arguments, scope));
    case Kind::test:
      return apply_test(e.text, value_of(0), evaluate_arguments(e.arguments, scope));
    case Kind::unary: {
      const Value value = value_of(0);
      if (e.text == "not") return !value.truth();
      GRAFT_CHECK(InvalidArgument, value.is_number(), "a value of type ", value.type_name(), " has no sign");
      if (value.is_integer()) return e.text == "-" ? arithmetic("-", std::int64_t{0}, value) : value.integer();
      return e.text == "-" ? -value.real() : value.real();
    }
    case Kind::binary:
      return evaluate_binary(e, scope);
    case Kind::compare:
      return evaluate_compare(e, scope);
    case Kind::conditional:
      if (value_of(1).truth()) return value_of(0);
      return child(e, 2) ? value_of(2) : Value::undefined("the condition was false and there was no else");
  }
  return {};
}

Value Interpreter::evaluate_binary(const Expression& e, const ScopePtr& scope) {
  Value left = evaluate(*child(e, 0), scope);
  if (e.text == "and") return left.truth() ? evaluate(*child(e, 1), scope) : left;
  if (e.text == "or") return left.truth() ? left : evaluate(*child(e, 1), scope);
  const Value right = evaluate(*child(e, 1), scope);
  if (e.text == "~") return left.str() + right.str();
  for (const Value* side : {static_cast<const Value*>(&left), &right})
    if (const auto* undefined = side->as<Undefined>()) throw InvalidArgument(undefined->name);
  return e.text == "+" ? add(left, right) : arithmetic(e.text, left, right);
}

Value Interpreter::evaluate_compare(const Expression& e, const ScopePtr& scope) {
  Value left = evaluate(*child(e, 0), scope);
  for (std::size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*child(e, i + 1), scope);
    const std::string& sign = e.operators[i];
    const bool holds = sign == "=="   ? left == right
                       : sign == "!=" ? !(left == right)
                       : sign == "<"  ? left < right
                       : sign == ">"  ? right < left
                       : sign == "<=" ? left < right || left == right
                       : sign == ">=" ? right < left || left == right
                       : sign == "in" ? contains(right, left)
                                      : !contains(right, left);
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_slice(const Expression& e, const ScopePtr& scope) {
  const Value value = evaluate(*child(e, 0), scope);
  const auto part = [&](std::size_t i) -> std::optional<std::int64_t> {
    if (!child(e, i)) return std::nullopt;
    const Value given = evaluate(*child(e, i), scope);
    return given.is_none() ? std::nullopt : std::optional(given.integer());
  };
  const Sequence* sequence = value.sequence();
  const bool sliced = value.text() != nullptr || (sequence != nullptr && sequence->kind != Sequence::Kind::generator);
  if (!sliced) return Value::undefined(graft::str("a value of type ", value.type_name(), " cannot be sliced"));
  const Values items = value.iterate();
  const auto count = static_cast<std::int64_t>(items.size());
  const std::int64_t step = part(3).value_or(1);
  GRAFT_CHECK(InvalidArgument, step != 0, "the step of a slice is zero");
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? count : count - 1;
  const auto bound = [&](std::optional<std::int64_t> given, std::int64_t missing) {
    if (!given) return missing;
    return std::clamp(*given < 0 ? *given + count : *given, low, high);
  };
  const std::int64_t begin = bound(part(1), step > 0 ? low : high);
  const std::int64_t end = bound(part(2), step > 0 ? high : low);
  Values out;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    out.push_back(items[static_cast<std::size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (sequence != nullptr) return Value::list(std::move(out), sequence->kind);
  std::string text;
  for (const Value& c : out) text += *c.text();
  return text;
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope) {
  Arguments out;
  for (const auto& value : arguments.positional) out.positional.push_back(evaluate(*value, scope));
  for (const auto& named : arguments.named) out.named.emplace_back(named.name, evaluate(*named.value, scope));
  return out;
}

Value Interpreter::evaluate_call(const Expression& e, const ScopePtr& scope, const Value* caller) {
  const Value called = evaluate(*child(e, 0), scope);
  if (const auto* undefined = called.as<Undefined>()) throw InvalidArgument(undefined->name);
  const Callable* callable = called.callable();
  GRAFT_CHECK(InvalidArgument, callable != nullptr && callable->call, "a value of type ", called.type_name(),
              " cannot be called");
  Arguments arguments = evaluate_arguments(e.arguments, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return callable->call(arguments);
}

Value Interpreter::apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  Filter filter = find_filter(name);
  if (filter == nullptr) filter = find_text_filter(name);
  GRAFT_CHECK(Unsupported, filter != nullptr, "chat template: there is no filter '", name, "'");
  return filter(*this, value, arguments);
}

bool Interpreter::apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  if (name == "filter" || name == "test") {
    const std::string wanted = value.str();
    return name == "test" ? find_test(wanted) != nullptr
                          : find_filter(wanted) != nullptr || find_text_filter(wanted) != nullptr;
  }
  const Test test = find_test(name);
  GRAFT_CHECK(Unsupported, test != nullptr, "chat template: there is no test '", name, "'");
  return test(value, arguments);
}

Value Interpreter::attribute(const Value& value, const std::string& name) {
  if (const auto* undefined = value.as<Undefined>()) throw InvalidArgument(undefined->name);
  if (const Namespace* space = value.space())
    for (const auto& [key, held] : space->attributes)
      if (key == name) return held;
  if (const Callable* callable = value.callable())
    for (const auto& [key, held] : callable->attributes)
      if (key == name) return held;
  if (Value found = method(value, name); !found.is_undefined()) return found;
  if (const Dict* dict = value.dict())
    if (const Value* found = dict->find(std::string_view(name))) return *found;
  return Value::undefined(graft::str("a value of type ", value.type_name(), " has no attribute '", name, "'"));
}

Value Interpreter::item(const Value& value, const Value& key) {
  if (const auto* undefined = value.as<Undefined>()) throw InvalidArgument(undefined->name);
  if (const Dict* dict = value.dict())
    if (const Value* found = dict->find(key)) return *found;
  const Sequence* sequence = value.sequence();
  const bool indexed = value.text() != nullptr || (sequence != nullptr && sequence->kind != Sequence::Kind::generator);
  if (indexed && key.is_integer()) {
    const auto count = static_cast<std::int64_t>(value.length());
    const std::int64_t at = key.integer() < 0 ? key.integer() + count : key.integer();
    if (at < 0 || at >= count) return Value::undefined(graft::str("there is no item ", key.integer(), " of ", count));
    return sequence != nullptr ? sequence->items[static_cast<std::size_t>(at)]
                               : value.iterate()[static_cast<std::size_t>(at)];
  }
  if (key.text() != nullptr && value.dict() == nullptr) return attribute(value, *key.text());
  if (key.text() != nullptr)
    if (Value found = method(value, *key.text()); !found.is_undefined()) return found;
  return Value::undefined(graft::str("a value of type ", value.type_name(), " has no item ", key.repr()));
}

}  // namespace graft::text::jinja
