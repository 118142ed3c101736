#include "serve/openai/structured.h"

#include "serve/api_error.h"

namespace graft::serve {
namespace {

constexpr std::size_t kMostChoices = 10'000;

// A schema as an object, or as the text of one.
std::string schema_text(const Json& schema, const std::string& path) {
  if (schema.is_string()) return schema.get<std::string>();
  if (!schema.is_object() && !schema.is_boolean())
    bad_request(path, "'", path, "' must be a JSON schema, found ", kind_of(schema));
  return schema.dump();
}

class Reader {
 public:
  Reader(Fields& fields, const ServedModel& model) : fields_(fields), model_(model) {}

  std::shared_ptr<const Grammar> read() {
    if (const Json* format = fields_.object("response_format")) response_format(*format);
    if (const Json* outputs = fields_.object("structured_outputs")) structured_outputs(*outputs);
    if (const Json* schema = fields_.find("json_schema")) json_schema(*schema, fields_.path("json_schema"));
    if (const auto grammar = fields_.text("grammar"); grammar && !grammar->empty())
      ebnf(*grammar, fields_.path("grammar"));
    return found_;
  }

 private:
  void set(const std::string& path, const std::string& key, const Grammars::Make& make) {
    if (!path_.empty())
      bad_request(path, "'", path_, "' and '", path, "' both say what form the text has: one of them is allowed");
    path_ = path;
    found_ = grammar_named(model_, key, path, make);
  }

  void json_schema(const Json& given, const std::string& path) {
    const std::string schema = schema_text(given, path);
    set(path, "schema:" + schema, [&](auto vocabulary) { return Grammar::json_schema(schema, vocabulary); });
  }

  void json_object(const std::string& path) {
    set(path, "object", [](auto vocabulary) { return Grammar::json_object(vocabulary); });
  }

  void ebnf(const std::string& rules, const std::string& path) {
    set(path, "rules:" + rules, [&](auto vocabulary) { return Grammar::ebnf(rules, vocabulary); });
  }

  void lark(const std::string& rules, const std::string& path) {
    set(path, "lark:" + rules, [&](auto vocabulary) { return Grammar::lark(rules, vocabulary); });
  }

  void response_format(const Json& format) {
    Fields inner(format, "response_format.");
    const std::string type = inner.need_text("type");
    if (type == "json_object") {
      if (const Json* schema = inner.find("schema"))
        json_schema(*schema, inner.path("schema"));
      else
        json_object("response_format");
    } else if (type == "json_schema") {
      Fields named(inner.need_object("json_schema"), "response_format.json_schema.");
      named.text("name");
      named.text("description");
      named.boolean("strict");  // it is always
      json_schema(named.need("schema"), named.path("schema"));
      named.end();
    } else if (type != "text") {
      throw ApiError(400, "'response_format.type' is '" + type + "': text, json_object and json_schema are supported",
                     "response_format", "unsupported_parameter");
    }
    inner.end();
  }

  void structured_outputs(const Json& outputs) {
    Fields inner(outputs, "structured_outputs.");
    if (const Json* schema = inner.find("json")) json_schema(*schema, inner.path("json"));
    if (inner.boolean("json_object").value_or(false)) json_object(inner.path("json_object"));
    if (const auto expression = inner.text("regex"))
      set(inner.path("regex"), "regex:" + *expression,
          [&](auto vocabulary) { return Grammar::regex(*expression, vocabulary); });
    if (const auto rules = inner.text("grammar")) {
      if (rules->find("::=") != std::string::npos)
        ebnf(*rules, inner.path("grammar"));
      else
        lark(*rules, inner.path("grammar"));
    }
    if (const Json* choices = inner.array("choice")) {
      const std::string path = inner.path("choice");
      if (choices->empty() || choices->size() > kMostChoices)
        bad_request(path, "'", path, "' must have from 1 to ", kMostChoices, " strings, found ", choices->size());
      std::vector<std::string> texts;
      for (const Json& text : *choices) {
        if (!text.is_string()) bad_request(path, "'", path, "' must hold strings, found ", kind_of(text));
        texts.push_back(text.get<std::string>());
      }
      set(path, "choice:" + choices->dump(), [&](auto vocabulary) { return Grammar::choice(texts, vocabulary); });
    }
    inner.end();
    if (path_.empty()) bad_request("structured_outputs", "'structured_outputs' says no form of the text");
  }

  Fields& fields_;
  const ServedModel& model_;
  std::string path_;
  std::shared_ptr<const Grammar> found_;
};

}  // namespace

std::shared_ptr<const Grammar> grammar_named(const ServedModel& model, const std::string& key, const std::string& path,
                                             const Grammars::Make& make) {
  try {
    return model.grammars->get(key, make);
  } catch (const InvalidArgument& error) {
    throw ApiError(400, "'" + path + "': " + error.what(), path);
  } catch (const Unsupported& error) {
    throw ApiError(400, "'" + path + "': " + error.what(), path, "unsupported_parameter");
  }
}

std::shared_ptr<const Grammar> structure_of(Fields& fields, const ServedModel& model) {
  return Reader(fields, model).read();
}

}  // namespace graft::serve
