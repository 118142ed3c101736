#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "graft/limits.h"
#include "text/jinja/syntax.h"
#include "text/jinja/value.h"

namespace graft::text::jinja {

// Names and their values, and the scope around.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> around = nullptr) : parent(std::move(around)) {}
  std::unordered_map<std::string, Value> names;
  std::shared_ptr<Scope> parent;
};
using ScopePtr = std::shared_ptr<Scope>;

// Runs one template once. The template must live as long as this.
class Interpreter {
 public:
  // `variables` become names; the globals of transformers' templates are added to them.
  explicit Interpreter(const Named& variables, const TextLimits& limits = {});
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws InvalidArgument naming the line when rendering fails.
  std::string render(const Body& body);

  // For filters that apply others: map("upper"), select("defined").
  Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
  bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);

  // value.name and value[key] in templates; undefined where there is no such attribute or item.
  static Value attribute(const Value& value, const std::string& name);
  static Value item(const Value& value, const Value& key);

 private:
  enum class Flow { next, stop, again };
  class Level;

  Flow run(const Body& body, const ScopePtr& scope, std::string& out);
  Flow run(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow run_statement(const Statement& statement, const ScopePtr& scope, std::string& out);
  void run_loop(const Statement& statement, const Value& over, const ScopePtr& scope, std::string& out,
                std::int64_t depth);
  void run_set(const Statement& statement, const ScopePtr& scope);
  std::string captured(const Body& body, const ScopePtr& scope);
  Value filtered(const Expression* filters, Value value, const ScopePtr& scope);
  Value make_macro(std::string name, const std::vector<Parameter>& parameters, const Body& body, const ScopePtr& scope);
  Value call_macro(const std::string& name, const std::vector<Parameter>& parameters, const Body& body,
                   const ScopePtr& scope, const Arguments& given);
  Value loop_object(const Statement& statement, const Values& items, std::size_t index, const ScopePtr& scope,
                    std::int64_t depth, const std::shared_ptr<Value>& changed);
  void assign(const std::vector<std::string>& names, const Value& value, const ScopePtr& scope);

  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value evaluate_node(const Expression& expression, const ScopePtr& scope);
  Value evaluate_binary(const Expression& expression, const ScopePtr& scope);
  Value evaluate_compare(const Expression& expression, const ScopePtr& scope);
  Value evaluate_slice(const Expression& expression, const ScopePtr& scope);
  Value evaluate_call(const Expression& expression, const ScopePtr& scope, const Value* caller);
  Arguments evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope);
  Value lookup(const std::string& name, const ScopePtr& scope) const;
  void check_size(const std::string& out) const;
  // One step, and one more for every 64 bytes or items.
  void count_steps(std::size_t size);

  std::unordered_map<std::string, Value> globals_;
  // All namespaces: templates can link them into cycles, so they are freed here and not by their last user.
  std::vector<std::shared_ptr<Namespace>> spaces_;
  TextLimits limits_;
  std::int64_t steps_ = 0;
  int level_ = 0;  // calls and expressions inside each other
};

// Python's operators on values.
Value add(const Value& left, const Value& right);
Value arithmetic(const std::string& sign, const Value& left, const Value& right);
bool contains(const Value& container, const Value& value);
// "..." % values
std::string format_percent(const std::string& format, const Values& values);

// Methods of strings and dicts; undefined where the type has none of that name.
Value method(const Value& value, const std::string& name);

// Null for a name that is not known.
using Filter = Value (*)(Interpreter&, const Value&, const Arguments&);
using Test = bool (*)(const Value&, const Arguments&);
Filter find_filter(const std::string& name);
Filter find_text_filter(const std::string& name);
Test find_test(const std::string& name);

// namespace(): a new one with these attributes.
std::shared_ptr<Namespace> make_namespace(const Arguments& given);
// range(), raise_exception() and the like.
std::unordered_map<std::string, Value> global_functions();

}  // namespace graft::text::jinja
