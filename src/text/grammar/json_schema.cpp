#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/json.h"
#include "text/grammar/json_numbers.h"
#include "text/grammar/sources.h"
#include "text/json.h"

namespace graft::text::grammar {
namespace {

using Schema = OrderedJson;

constexpr std::size_t kMostDepth = 300;       // values are read by recursion
constexpr std::int64_t kMostLength = 20'000;  // of minLength and the like

// Of what a format means, texts that everybody agrees on.
const std::map<std::string, const char*, std::less<>> kFormats = {
    {"date", R"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8]))"},
    {"time", R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"},
    {"date-time",
     R"(\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"},
    {"duration", R"(P(\d{1,9}W|\d{1,9}D(T(\d{1,9}H)?(\d{1,9}M)?\d{1,9}S)?|T\d{1,9}[HMS]))"},
    {"email", R"([A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+)"},
    {"hostname", R"([A-Za-z0-9]{1,63}(-[A-Za-z0-9]{1,20})?(\.[A-Za-z0-9]{1,63}(-[A-Za-z0-9]{1,20})?){0,3})"},
    {"ipv4", R"(((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"},
    {"ipv6", R"(([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4})"},
    {"uuid", R"([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})"},
    {"uri", R"([A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:\d{1,4})?(/[A-Za-z0-9._~-]*)*)"},
};

// Say nothing about which values are right.
const std::set<std::string, std::less<>> kAnnotations = {"title", "description", "default",  "examples",  "$schema",
                                                         "$id",   "$comment",    "readOnly", "writeOnly", "deprecated",
                                                         "$defs", "definitions", "$anchor"};

class Converter {
 public:
  Converter(const Schema& document, Rules& rules) : document_(document), rules_(rules) {}

  ExprPtr value(const Schema& schema, const std::string& path) {
    GRAFT_CHECK(Unsupported, nesting_ < kMostDepth, "the JSON schema is nested deeper than ", kMostDepth,
                ", references included");
    ++nesting_;
    ExprPtr made = value_of(schema, path);
    --nesting_;
    return made;
  }

  ExprPtr any() {
    if (any_) return rule(*any_);
    any_ = rules_.add("JSON value");
    rules_.bodies[*any_] = choice({map_of(rule(*any_)), array(Schema::object(), ""), string_of(0, -1), number(),
                                   bytes("true"), bytes("false"), bytes("null")});
    return rule(*any_);
  }

  ExprPtr any_object() { return map_of(any()); }

 private:
  ExprPtr value_of(const Schema& schema, const std::string& path) {
    if (schema.is_boolean()) {
      GRAFT_CHECK(Unsupported, schema.get<bool>(), "the JSON schema has false at ", path, ", which no value satisfies");
      return any();
    }
    GRAFT_CHECK(InvalidArgument, schema.is_object(), "the JSON schema is wrong at ", path,
                ": expected an object or a boolean, found ", schema.dump().substr(0, 80));
    if (schema.contains("$ref")) {
      only(schema, path, {"$ref"});
      return reference(schema["$ref"], path);
    }
    for (const char* combined : {"anyOf", "allOf", "oneOf"})
      if (schema.contains(combined)) return combination(schema, combined, path);
    if (schema.contains("const")) {
      only(schema, path, {"const", "type"});
      return values(schema, Schema::array({schema["const"]}), path);
    }
    if (schema.contains("enum")) {
      only(schema, path, {"enum", "type"});
      GRAFT_CHECK(InvalidArgument, schema["enum"].is_array() && !schema["enum"].empty(), "the JSON schema is wrong at ",
                  path, ".enum: expected an array of values");
      return values(schema, schema["enum"], path);
    }
    const std::vector<std::string> types = types_of(schema, path);
    if (types.empty()) {
      only(schema, path, {});
      return any();
    }
    known_for(schema, types, path);
    std::vector<ExprPtr> all;
    for (const std::string& type : types) all.push_back(of_type(schema, type, path));
    return all.size() == 1 ? all[0] : choice(std::move(all));
  }

  ExprPtr white_space() {
    if (!white_space_)
      white_space_ = rules_.add(
          "white space",
          optional(choice({bytes(" "), sequence({bytes("\n"), repeat(chars({{' ', ' '}, {'\t', '\t'}}), 0, 20)})})));
    return rule(*white_space_);
  }

  [[noreturn]] static void unsupported(const std::string& keyword, const std::string& path, const char* why = "") {
    throw Unsupported(str("the keyword '", keyword, "' of the JSON schema, at ", path, ", is not supported", why));
  }

  static void only(const Schema& schema, const std::string& path, const std::set<std::string, std::less<>>& known) {
    for (const auto& [name, ignored] : schema.items())
      if (!known.contains(name) && !kAnnotations.contains(name)) unsupported(name, path, " here");
  }

  static std::vector<std::string> types_of(const Schema& schema, const std::string& path) {
    static const std::set<std::string, std::less<>> known = {"object", "array",   "string", "integer",
                                                             "number", "boolean", "null"};
    std::vector<std::string> types;
    const auto add = [&](const Schema& type) {
      const bool good = type.is_string() && known.contains(type.get_ref<const std::string&>());
      GRAFT_CHECK(InvalidArgument, good, "the JSON schema is wrong at ", path, ".type: found ",
                  type.dump().substr(0, 80));
      types.push_back(type.get<std::string>());
    };
    if (const auto found = schema.find("type"); found != schema.end()) {
      if (!found->is_array()) {
        add(*found);
      } else {
        GRAFT_CHECK(InvalidArgument, !found->empty(), "the JSON schema is wrong at ", path, ".type: it names no type");
        for (const Schema& type : *found) add(type);
      }
      return types;
    }
    // Without a type keywords hold for the values that they are about: those are a part of what is right.
    for (const auto& [type, keywords] : keywords_of())
      for (const std::string& keyword : keywords)
        if (schema.contains(keyword)) return {type};
    return {};
  }

  static const std::map<std::string, std::set<std::string>>& keywords_of() {
    static const std::set<std::string> bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                 "multipleOf"};
    static const std::map<std::string, std::set<std::string>> all = {
        {"object", {"properties", "required", "additionalProperties"}},
        {"array", {"items", "prefixItems", "minItems", "maxItems"}},
        {"string", {"minLength", "maxLength", "pattern", "format"}},
        {"number", bounds},
        {"integer", bounds}};
    return all;
  }

  static void known_for(const Schema& schema, const std::vector<std::string>& types, const std::string& path) {
    for (const auto& [name, ignored] : schema.items()) {
      if (name == "type" || kAnnotations.contains(name)) continue;
      const bool known = std::ranges::any_of(types, [&, n = name](const std::string& type) {
        const auto found = keywords_of().find(type);
        return found != keywords_of().end() && found->second.contains(n);
      });
      // A keyword about values of another type than those that are allowed says nothing of these.
      const bool of_others =
          std::ranges::any_of(keywords_of(), [&, n = name](const auto& other) { return other.second.contains(n); });
      if (!known && !of_others) unsupported(name, path);
    }
  }

  ExprPtr of_type(const Schema& schema, const std::string& type, const std::string& path) {
    if (type == "null") return bytes("null");
    if (type == "boolean") return choice({bytes("true"), bytes("false")});
    if (type == "string") return string(schema, path);
    if (type == "integer" || type == "number") {
      const bool bounded =
          std::ranges::any_of(keywords_of().at("number"), [&](const std::string& k) { return schema.contains(k); });
      if (type == "number" && !bounded) return number();
      if (schema.contains("multipleOf")) return multiple(schema, type == "integer", path);
      return bounded_number(schema, type == "integer", path);
    }
    if (type == "array") return array(schema, path);
    return object(schema, path);
  }

  ExprPtr reference(const Schema& given, const std::string& path) {
    GRAFT_CHECK(InvalidArgument, given.is_string(), "the JSON schema is wrong at ", path, ".$ref: expected a string");
    const auto& name = given.get_ref<const std::string&>();
    GRAFT_CHECK(Unsupported, name.starts_with("#") && (name.size() == 1 || name[1] == '/'), "the reference '", name,
                "' of the JSON schema, at ", path, ", is not supported: only '#' and '#/...' are");
    if (const auto found = references_.find(name); found != references_.end()) return rule(found->second);
    const Schema* target = nullptr;
    try {
      target = &document_.at(Schema::json_pointer(name.substr(1)));
    } catch (const Schema::exception&) {
      throw InvalidArgument(str("the JSON schema has no '", name, "', which ", path, ".$ref names"));
    }
    const std::size_t index = rules_.add(name);
    references_.emplace(name, index);
    rules_.bodies[index] = value(*target, name);
    return rule(index);
  }

  ExprPtr combination(const Schema& schema, const std::string& keyword, const std::string& path) {
    only(schema, path, {keyword});
    const Schema& parts = schema[keyword];
    GRAFT_CHECK(InvalidArgument, parts.is_array() && !parts.empty(), "the JSON schema is wrong at ", path, '.', keyword,
                ": expected an array of schemas");
    if (keyword != "anyOf" && parts.size() > 1) unsupported(keyword, path, keyword == "oneOf" ? "; anyOf is" : "");
    std::vector<ExprPtr> all;
    for (std::size_t i = 0; i < parts.size(); ++i) all.push_back(value(parts[i], str(path, '.', keyword, '[', i, ']')));
    return choice(std::move(all));
  }

  static bool has_type(const Schema& value, const std::string& type) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (type == "number") return value.is_number();
    return value.is_number_integer();
  }

  ExprPtr values(const Schema& schema, const Schema& list, const std::string& path) {
    const std::vector<std::string> types =
        schema.contains("type") ? types_of(schema, path) : std::vector<std::string>{};
    std::vector<std::string> all;
    for (const Schema& one : list) {
      const bool right =
          types.empty() || std::ranges::any_of(types, [&](const auto& type) { return has_type(one, type); });
      if (right) all.push_back(one.dump());
    }
    GRAFT_CHECK(InvalidArgument, !all.empty(), "the JSON schema is wrong at ", path, ": no value of it has its type");
    return one_of(std::move(all));
  }

  static std::int64_t count(const Schema& schema, const char* keyword, std::int64_t missing, const std::string& path) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) return missing;
    GRAFT_CHECK(InvalidArgument, found->is_number_integer() && *found >= 0, "the JSON schema is wrong at ", path, '.',
                keyword, ": expected a count, found ", found->dump().substr(0, 80));
    GRAFT_CHECK(Unsupported, *found <= kMostLength, "the JSON schema has at ", path, '.', keyword, " more than ",
                kMostLength);
    return found->get<std::int64_t>();
  }

  // least > most would allow nothing.
  static void check_counts(std::int64_t least, std::int64_t most, const std::string& path) {
    GRAFT_CHECK(InvalidArgument, most < 0 || least <= most, "the JSON schema is wrong at ", path, ": at least ", least,
                ", at most ", most);
  }

  static ExprPtr character() {
    static const ExprPtr one = [] {
      const CodeRanges hex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
      const ExprPtr digit = chars(hex);
      const ExprPtr not_surrogate =
          choice({sequence({chars({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), digit}),
                  sequence({chars({{'D', 'D'}, {'d', 'd'}}), chars({{'0', '7'}})})});
      const ExprPtr high =
          sequence({chars({{'D', 'D'}, {'d', 'd'}}), chars({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), digit, digit});
      const ExprPtr low = sequence({chars({{'D', 'D'}, {'d', 'd'}}), chars({{'C', 'F'}, {'c', 'f'}}), digit, digit});
      return choice({chars(complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})),
                     sequence({bytes("\\"), choice({chars({{'"', '"'},
                                                           {'\\', '\\'},
                                                           {'/', '/'},
                                                           {'b', 'b'},
                                                           {'f', 'f'},
                                                           {'n', 'n'},
                                                           {'r', 'r'},
                                                           {'t', 't'}}),
                                                    sequence({bytes("u"), not_surrogate, digit, digit}),
                                                    sequence({bytes("u"), high, bytes("\\u"), low})})})});
    }();
    return one;
  }

  ExprPtr string_of(std::int64_t least, std::int64_t most) {
    if (least == 0 && most < 0) {
      if (!string_)
        string_ = rules_.add("JSON string", sequence({bytes("\""), repeat(character(), 0, -1), bytes("\"")}));
      return rule(*string_);
    }
    if (!character_) character_ = rules_.add("character of a JSON string", character());
    return sequence({bytes("\""), repeat(rule(*character_), least, most), bytes("\"")});
  }

  ExprPtr string(const Schema& schema, const std::string& path) {
    const std::int64_t least = count(schema, "minLength", 0, path), most = count(schema, "maxLength", -1, path);
    check_counts(least, most, path);
    const bool pattern = schema.contains("pattern"), format = schema.contains("format");
    if (!pattern && !format) return string_of(least, most);
    if (pattern && format) unsupported("format", path, " beside a pattern");
    for (const char* keyword : {"minLength", "maxLength"})
      if (schema.contains(keyword)) unsupported(keyword, path, " beside a pattern or a format");
    const Schema& given = schema[pattern ? "pattern" : "format"];
    GRAFT_CHECK(InvalidArgument, given.is_string(), "the JSON schema is wrong at ", path,
                pattern ? ".pattern" : ".format", ": expected a string");
    std::string expression = given.get<std::string>();
    if (format) {
      const auto known = kFormats.find(expression);
      if (known == kFormats.end()) unsupported("format", path, str(" with the value '", expression, "'").c_str());
      expression = known->second;
    }
    try {
      return sequence({bytes("\""), parse_regex(expression, Writing::json, pattern), bytes("\"")});
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(str("the JSON schema is wrong at ", path, ".pattern: ", error.what()));
    } catch (const Unsupported& error) {
      throw Unsupported(str("the keyword 'pattern' of the JSON schema, at ", path, ": ", error.what()));
    }
  }

  // A bound of a number: an integer, which may be written 1.0.
  static std::optional<double> bound(const Schema& schema, const char* keyword, const std::string& path) {
    const auto found = schema.find(keyword);
    if (found == schema.end()) return std::nullopt;
    GRAFT_CHECK(InvalidArgument, found->is_number(), "the JSON schema is wrong at ", path, '.', keyword,
                ": expected a number, found ", found->dump().substr(0, 80));
    return found->get<double>();
  }

  // Calls take(keyword, value, lower, excluded) for those that are there.
  template <typename Take>
  static void each_bound(const Schema& schema, const std::string& path, const Take& take) {
    for (const auto& [keyword, lower, excluded] : {std::tuple("minimum", true, false),
                                                   {"exclusiveMinimum", true, true},
                                                   {"maximum", false, false},
                                                   {"exclusiveMaximum", false, true}})
      if (const auto value = bound(schema, keyword, path)) take(keyword, *value, lower, excluded);
  }

  static ExprPtr bounded_number(const Schema& schema, bool integer, const std::string& path) {
    NumberBounds bounds;
    each_bound(schema, path, [&](const char* keyword, double value, bool lower, bool excluded) {
      if (!integer && value != std::floor(value)) unsupported(keyword, path, " with a fraction");
      if (lower)
        bounds.at_least(value, excluded, integer);
      else
        bounds.at_most(value, excluded, integer);
    });
    const ExprPtr all = integer ? integers_in(bounds) : numbers_in(bounds);
    GRAFT_CHECK(InvalidArgument, all, "the JSON schema is wrong at ", path, ": no number is in its bounds");
    return all;
  }

  ExprPtr multiple(const Schema& schema, bool integer, const std::string& path) {
    const double of = *bound(schema, "multipleOf", path);
    GRAFT_CHECK(InvalidArgument, of > 0, "the JSON schema is wrong at ", path, ".multipleOf: expected more than 0");
    MultiplesBounds bounds;
    double scale = 1;  // 10^decimals
    while (std::round(of * scale) / scale != of) {
      if (integer || ++bounds.decimals > MultiplesBounds::kMostDecimals)
        unsupported("multipleOf", path, integer ? " with a fraction for integers" : " with more than 9 decimals");
      scale *= 10;
    }
    if (of * scale > static_cast<double>(MultiplesBounds::kMostModulus))
      unsupported("multipleOf", path, " with more than 400 in its last decimal");
    bounds.modulus = std::llround(of * scale);
    each_bound(schema, path, [&](const char*, double value, bool lower, bool excluded) {
      const auto largest = static_cast<double>(MultiplesBounds::kLargest);
      double limit = value * scale;
      // A bound with as many decimals is a whole number here, but for how it is rounded.
      if (std::round(limit) / scale == value) limit = std::round(limit);
      if (excluded && limit == std::floor(limit)) limit += lower ? 1 : -1;
      limit = std::clamp(lower ? std::ceil(limit) : std::floor(limit), -largest - 1, largest + 1);
      if (lower)
        bounds.least = std::max(bounds.least, static_cast<std::int64_t>(limit));
      else
        bounds.most = std::min(bounds.most, static_cast<std::int64_t>(limit));
    });
    const ExprPtr all = multiples_in(bounds, rules_);
    GRAFT_CHECK(InvalidArgument, all, "the JSON schema is wrong at ", path, ": no number is in its bounds");
    return all;
  }

  ExprPtr between(ExprPtr before, ExprPtr inner, ExprPtr after) {
    return sequence({std::move(before), white_space(), std::move(inner), white_space(), std::move(after)});
  }

  ExprPtr array(const Schema& schema, const std::string& path) {
    std::vector<ExprPtr> first;
    auto items = schema.find("items");
    // Before 2020-12 prefixItems had the name items.
    const bool older = items != schema.end() && items->is_array();
    const std::string name = older ? ".items" : ".prefixItems";
    if (const auto prefix = older ? items : schema.find("prefixItems"); prefix != schema.end()) {
      GRAFT_CHECK(InvalidArgument, prefix->is_array() && !prefix->empty(), "the JSON schema is wrong at ", path, name,
                  ": expected an array of schemas");
      GRAFT_CHECK(InvalidArgument, !older || !schema.contains("prefixItems"), "the JSON schema is wrong at ", path,
                  ".items: expected a schema beside prefixItems");
      for (std::size_t i = 0; i < prefix->size(); ++i)
        first.push_back(value((*prefix)[i], str(path, name, '[', i, ']')));
    }
    if (older) items = schema.end();
    const bool closed = items != schema.end() && items->is_boolean() && !items->get<bool>();
    const auto fixed = static_cast<std::int64_t>(first.size());
    std::int64_t least = count(schema, "minItems", 0, path), most = count(schema, "maxItems", -1, path);
    check_counts(least, most, path);
    if (closed) most = most < 0 ? fixed : std::min(most, fixed);
    check_counts(least, most, path);
    const ExprPtr comma = sequence({bytes(","), white_space()});
    const ExprPtr empty = sequence({bytes("["), white_space(), bytes("]")});
    if (most == 0) return empty;
    if (fixed == 0) {
      const ExprPtr item = items == schema.end() ? any() : value(*items, path + ".items");
      const std::size_t index = rules_.add(path + ".items", item);
      const ExprPtr list =
          between(bytes("["),
                  sequence({rule(index), repeat(sequence({comma, rule(index)}), std::max<std::int64_t>(least - 1, 0),
                                                most < 0 ? -1 : most - 1)}),
                  bytes("]"));
      return least > 0 ? list : choice({empty, list});
    }
    // Of a tuple all places are written: fewer would be right too.
    GRAFT_CHECK(Unsupported, most < 0 || most >= fixed, "the keyword 'maxItems' of the JSON schema, at ", path,
                ", is not supported below the number of prefixItems");
    std::vector<ExprPtr> parts;
    for (std::int64_t i = 0; i < fixed; ++i) {
      if (i > 0) parts.push_back(comma);
      parts.push_back(first[static_cast<std::size_t>(i)]);
    }
    if (!closed && (items != schema.end() || least > fixed)) {
      const ExprPtr item = items == schema.end() ? any() : value(*items, path + ".items");
      parts.push_back(
          repeat(sequence({comma, item}), std::max<std::int64_t>(least - fixed, 0), most < 0 ? -1 : most - fixed));
    }
    return between(bytes("["), sequence(std::move(parts)), bytes("]"));
  }

  ExprPtr map_of(const ExprPtr& one) {
    const ExprPtr pair = sequence({string_of(0, -1), bytes(":"), white_space(), one});
    const std::size_t index = rules_.add("member", pair);
    return choice(
        {sequence({bytes("{"), white_space(), bytes("}")}),
         between(bytes("{"), sequence({rule(index), repeat(sequence({bytes(","), white_space(), rule(index)}), 0, -1)}),
                 bytes("}"))});
  }

  ExprPtr object(const Schema& schema, const std::string& path) {
    std::set<std::string> required;
    if (const auto names = schema.find("required"); names != schema.end()) {
      GRAFT_CHECK(InvalidArgument, names->is_array(), "the JSON schema is wrong at ", path,
                  ".required: expected an array");
      for (const Schema& name : *names) {
        GRAFT_CHECK(InvalidArgument, name.is_string(), "the JSON schema is wrong at ", path, ".required: found ",
                    name.dump().substr(0, 80));
        required.insert(name.get<std::string>());
      }
    }
    Schema properties = Schema::object();
    if (const auto found = schema.find("properties"); found != schema.end()) {
      GRAFT_CHECK(InvalidArgument, found->is_object(), "the JSON schema is wrong at ", path,
                  ".properties: expected an object");
      properties = *found;
    }
    const auto more = schema.find("additionalProperties");
    const bool closed = more != schema.end() && more->is_boolean() && !more->get<bool>();
    for (const std::string& name : required)
      if (!properties.contains(name)) {
        GRAFT_CHECK(InvalidArgument, !closed, "the JSON schema is wrong at ", path, ": '", name,
                    "' is required and no property");
        properties[name] = more == schema.end() ? Schema(true) : *more;
      }
    if (properties.empty()) {
      if (closed) return sequence({bytes("{"), white_space(), bytes("}")});
      return map_of(more == schema.end() ? any() : value(*more, path + ".additionalProperties"));
    }
    std::vector<ExprPtr> pairs;
    std::vector<bool> needed;
    for (const auto& [name, one] : properties.items()) {
      const std::string where = path + '.' + name;
      pairs.push_back(
          rule(rules_.add(where, sequence({bytes(Schema(name).dump() + ":"), white_space(), value(one, where)}))));
      needed.push_back(required.contains(name));
    }
    // rest[i]: from property i on, where one stands before.
    std::vector<ExprPtr> rest(pairs.size() + 1, sequence({}));
    for (std::size_t i = pairs.size(); i-- > 0;) {
      const ExprPtr with = sequence({bytes(","), white_space(), pairs[i], rest[i + 1]});
      rest[i] = rule(rules_.add(path, needed[i] ? with : choice({with, rest[i + 1]})));
    }
    std::vector<ExprPtr> beginnings;
    bool may_be_empty = true;
    for (std::size_t i = 0; i < pairs.size() && may_be_empty; ++i) {
      beginnings.push_back(sequence({pairs[i], rest[i + 1]}));
      may_be_empty = !needed[i];
    }
    const ExprPtr filled = between(bytes("{"), choice(std::move(beginnings)), bytes("}"));
    return may_be_empty ? choice({sequence({bytes("{"), white_space(), bytes("}")}), filled}) : filled;
  }

  static ExprPtr number() { return any_number(); }

  const Schema& document_;
  Rules& rules_;
  std::map<std::string, std::size_t> references_;
  std::size_t nesting_ = 0;
  std::optional<std::size_t> any_, white_space_, string_, character_;
};

}  // namespace

ExprPtr parse_json_schema(std::string_view text, Rules& rules) {
  GRAFT_CHECK(InvalidArgument, json_depth(text) <= kMaxJsonDepth, "the JSON schema is nested too deeply");
  Schema document;
  try {
    document = read_json<Schema>(text);
  } catch (const Schema::exception& error) {
    throw InvalidArgument(str("the JSON schema is not valid JSON: ", error.what()));
  }
  return Converter(document, rules).value(document, "#");
}

ExprPtr any_json_object(Rules& rules) {
  const Schema none;
  return Converter(none, rules).any_object();
}

}  // namespace graft::text::grammar
