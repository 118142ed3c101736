#include "text/chat_template.h"

#include "base/check.h"
#include "base/utf8.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/syntax.h"
#include "text/json.h"

namespace graft::text {
namespace {

OrderedJson parse_object(std::string_view text, const char* what) {
  GRAFT_CHECK(InvalidArgument, json_depth(text) <= kMaxJsonDepth, what, " are nested too deeply");
  OrderedJson out;
  try {
    out = read_json<OrderedJson>(text);
  } catch (const OrderedJson::exception& error) {
    throw InvalidArgument(str(what, " are not valid JSON: ", error.what()));
  }
  GRAFT_CHECK(InvalidArgument, out.is_object(), what, " should be a JSON object, found a ", out.type_name());
  return out;
}

jinja::Value value_of(const OrderedJson& json) {
  using Type = OrderedJson::value_t;
  switch (json.type()) {
    case Type::boolean:
      return json.get<bool>();
    case Type::number_integer:
      return json.get<std::int64_t>();
    case Type::number_unsigned: {
      const auto n = json.get<std::uint64_t>();
      GRAFT_CHECK(InvalidArgument, n <= INT64_MAX, "the number ", n, " is too large for a template");
      return static_cast<std::int64_t>(n);
    }
    case Type::number_float:
      return json.get<double>();
    case Type::string:
      return json.get<std::string>();
    case Type::array: {
      jinja::Values items;
      for (const auto& item : json) items.push_back(value_of(item));
      return jinja::Value::list(std::move(items));
    }
    case Type::object: {
      jinja::Dict dict;
      for (const auto& [key, value] : json.items()) {
        auto& entry = dict.entries.emplace_back();
        entry.first = jinja::Value(key);
        entry.second = value_of(value);
      }
      return dict;
    }
    default:
      return jinja::None{};
  }
}

// A message's reasoning goes by three names: copied to those that templates read.
OrderedJson with_reasoning(const OrderedJson& message) {
  if (!message.is_object()) return message;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (found == message.end() || found->is_null()) continue;
    OrderedJson out = OrderedJson::object();
    out["thinking"] = *found;
    for (const auto& [key, value] : message.items()) out[key] = value;
    out["reasoning_content"] = *found;
    return out;
  }
  return message;
}

}  // namespace

std::string render_chat_template(std::string_view source, std::string_view variables_json,
                                 std::string_view defaults_json, const TextLimits& limits) {
  GRAFT_CHECK(InvalidProgram, is_utf8(source), "the chat template is not UTF-8");
  const OrderedJson given = parse_object(variables_json, "the variables of the chat template");
  OrderedJson all = OrderedJson::object();
  all["tools"] = all["documents"] = nullptr;
  all["add_generation_prompt"] = false;
  all.update(parse_object(defaults_json, "the special tokens"));
  all.update(given);
  GRAFT_CHECK(InvalidArgument, !all.contains("messages") || all["messages"].is_array(),
              "'messages' should be an array of messages");
  jinja::Named variables;
  for (auto& [name, value] : all.items()) {
    if (name == "messages")
      for (OrderedJson& message : value) message = with_reasoning(message);
    variables.emplace_back(name, value_of(value));
  }
  const jinja::Body body = jinja::parse(source);
  return jinja::Interpreter(variables, limits).render(body);
}

}  // namespace graft::text
