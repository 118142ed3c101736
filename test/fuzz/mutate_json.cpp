#include "mutate_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace graft::fuzz {
namespace {

using Json = nlohmann::ordered_json;

class JsonMutator {
 public:
  JsonMutator(Json& document, Random& random, const JsonWords& words)
      : document_(document), random_(random), words_(words) {}

  void run() {
    for (std::size_t n = 1 + random_.below(3); n > 0; --n) {
      nodes_.clear();
      collect(document_, 0);
      change(*random_.of(nodes_));
    }
  }

 private:
  void collect(Json& node, int depth) {
    nodes_.push_back(&node);
    if (depth > 64 || nodes_.size() > 20000) return;
    if (node.is_structured())
      for (Json& child : node) collect(child, depth + 1);
  }

  Json fragment() { return Json::parse(words_.values[random_.below(words_.values.size())], nullptr, false); }

  void change(Json& node) {
    switch (random_.below(12)) {
      case 0:
        node = scalar();
        return;
      case 1:
        node = fragment();
        return;
      case 2: {
        const Json copy = *random_.of(nodes_);  // of itself, or of what holds it
        if (copy.dump(-1, ' ', false, Json::error_handler_t::replace).size() < 4096) node = copy;
        return;
      }
      case 3:
        nest(node);
        return;
      default:
        inside(node);
    }
  }

  void inside(Json& node) {
    if (node.is_number_float())
      node = random_.real(node.get<double>());
    else if (node.is_number())
      node = random_.integer(node.is_number_unsigned() ? static_cast<std::int64_t>(node.get<std::uint64_t>())
                                                       : node.get<std::int64_t>());
    else if (node.is_boolean())
      node = !node.get<bool>();
    else if (node.is_string())
      text(node);
    else if (node.is_object())
      object(node);
    else if (node.is_array())
      array(node);
    else
      node = random_.one_in(2) ? fragment() : scalar();
  }

  void text(Json& node) {
    std::string s = node.get<std::string>();
    if (random_.one_in(3)) {
      const Json& other = *random_.of(nodes_);
      if (other.is_string()) s = random_.one_in(2) ? other.get<std::string>() : s + other.get<std::string>();
    } else {
      random_.text(s);
    }
    if (s.size() < 4096) node = s;
  }

  void object(Json& node) {
    if (node.empty() || random_.one_in(4)) {
      node[words_.names[random_.below(words_.names.size())]] = random_.one_in(2) ? fragment() : scalar();
      return;
    }
    auto at = node.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random_.below(node.size())));
    const std::string name = at.key();
    if (random_.one_in(3)) {
      node.erase(name);
    } else {
      std::string other = name;
      random_.text(other);
      Json value = node[name];
      node[other] = std::move(value);
    }
  }

  void array(Json& node) {
    auto& items = node.get_ref<Json::array_t&>();
    if (!random_.rearrange(items) || random_.one_in(6)) items.push_back(random_.one_in(2) ? fragment() : scalar());
  }

  void nest(Json& node) {
    const bool deep = random_.one_in(8);
    Json value = node;
    if (value.dump(-1, ' ', false, Json::error_handler_t::replace).size() > 4096) return;
    for (std::size_t n = 1 + random_.below(deep ? 250 : 3); n > 0; --n) {
      Json outer = random_.one_in(2) ? Json::array() : Json::object();
      if (outer.is_array())
        outer.push_back(std::move(value));
      else
        outer[random_.one_in(2) ? "a" : words_.names[0]] = std::move(value);
      value = std::move(outer);
    }
    node = std::move(value);
  }

  Json scalar() {
    switch (random_.below(6)) {
      case 0:
        return nullptr;
      case 1:
        return random_.one_in(2);
      case 2:
        return random_.real(1);
      case 3:
        return "";
      case 4:
        return static_cast<std::uint64_t>(-1);
      default:
        return random_.integer(3);
    }
  }

  Json& document_;
  Random& random_;
  const JsonWords& words_;
  std::vector<Json*> nodes_;
};

std::size_t depth(std::string_view text) {
  std::size_t now = 0, most = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') most = std::max(most, ++now);
    if ((c == ']' || c == '}') && now > 0) --now;
  }
  return most;
}

}  // namespace

std::string mutate_json(const std::string& text, Random& random, const JsonWords& words) {
  if (random.one_in(25) || depth(text) > 500) return mutate_bytes_of(text, random);
  Json document = Json::parse(text, nullptr, false);
  if (document.is_discarded()) return mutate_bytes_of(text, random);
  JsonMutator(document, random, words).run();
  // Half of the strings that a mutation made are no UTF-8.
  const auto how = random.one_in(4) ? Json::error_handler_t::ignore : Json::error_handler_t::replace;
  std::string out = document.dump(-1, ' ', false, how);
  return out.size() <= kMaxText ? out : text;
}

}  // namespace graft::fuzz
