#include "weight/adapter_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "weight/gguf.h"

namespace graft {
namespace {

constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kWeightsName = "adapter_model.safetensors";
constexpr std::string_view kGgufMagic = "GGUF";

// --- adapter_config.json ---

// Patterns are tried in the order of the file, as peft does.
bool is_unset(const OrderedJson& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) || (value.is_structured() && value.empty()) ||
         is_text(value, "none") || is_text(value, "");
}

class Config {
 public:
  explicit Config(const std::string& path) : path_(path) {
    const std::vector<std::byte> text = MappedFile::read_whole(path);
    try {
      JsonRules rules;
      rules.max_members = 10'000;
      rules.refuse = [&](const std::string& message) { throw InvalidProgram(str("'", path, "' ", message)); };
      json_ = read_json<OrderedJson>({reinterpret_cast<const char*>(text.data()), text.size()}, rules);
    } catch (const Json::exception&) {
      throw InvalidProgram(str("'", path, "' is not JSON"));
    }
    GRAFT_CHECK(InvalidProgram, json_.is_object(), "'", path, "' must be a JSON object");
    check_plain();
    rank_ = number(json_, "r");
    alpha_ = number(json_, "lora_alpha");
    rslora_ = !is_unset(at("use_rslora"));
    ranks_ = patterns("rank_pattern");
    alphas_ = patterns("alpha_pattern");
  }

  // Of a module whose matrices have this rank.
  double scale(const std::string& module, std::int64_t rank) const {
    const double stated = of(ranks_, module, rank_), alpha = of(alphas_, module, alpha_);
    GRAFT_CHECK(InvalidArgument, static_cast<double>(rank) == stated, "'", path_, "': layer '", module, "' has rank ",
                rank, ", the configuration states ", stated);
    return rslora_ ? alpha / std::sqrt(stated) : alpha / stated;
  }

 private:
  using Patterns = std::vector<std::pair<ModulePattern, double>>;

  OrderedJson at(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() ? OrderedJson() : *found;
  }

  // What else than matrices A and B the adapter has, or needs of its base model.
  void check_plain() const {
    const OrderedJson type = at("peft_type");
    GRAFT_CHECK(Unsupported, is_text(type, "LORA"), "'", path_, "' has the peft_type ", shown(type), ", expected LORA");
    constexpr const char* others[] = {"use_dora",
                                      "bias",
                                      "modules_to_save",
                                      "lora_bias",
                                      "trainable_token_indices",
                                      "target_parameters",
                                      "layer_replication",
                                      "use_qalora",
                                      "use_bdlora",
                                      "alora_invocation_tokens",
                                      "arrow_config",
                                      "velora_config",
                                      "monteclora_config",
                                      "kasa_config",
                                      "megatron_config"};
    for (const char* key : others) {
      const OrderedJson value = at(key);
      GRAFT_CHECK(Unsupported, is_unset(value), "'", path_, "' has ", key, " = ", shown(value),
                  ": only plain LoRA, of matrices A and B, is run without merging");
    }
    const OrderedJson made = at("init_lora_weights");
    if (!made.is_string()) return;
    const auto& text = made.get_ref<const std::string&>();
    for (const char* const changes : {"pissa", "olora", "corda", "loftq", "lora_ga"})
      GRAFT_CHECK(Unsupported, !text.starts_with(changes), "'", path_, "' has init_lora_weights = ", shown(made),
                  ", which changes the weights of the base model; save it converted to plain LoRA");
  }

  static std::string shown(const OrderedJson& value) {
    return value.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  }

  double number(const OrderedJson& owner, const char* key) const {
    const auto found = owner.find(key);
    GRAFT_CHECK(InvalidProgram, found != owner.end() && found->is_number(), "'", path_, "': '", key,
                "' must be a number, found ", found == owner.end() ? "none" : shown(*found));
    return found->get<double>();
  }

  Patterns patterns(const char* key) const {
    const OrderedJson value = at(key);
    Patterns out;
    if (is_unset(value)) return out;
    GRAFT_CHECK(InvalidProgram, value.is_object(), "'", path_, "': '", key, "' must be an object, found ",
                shown(value));
    for (const auto& [pattern, entry] : value.items())
      out.emplace_back(ModulePattern(pattern), number(value, pattern.c_str()));
    return out;
  }

  static double of(const Patterns& patterns, const std::string& module, double otherwise) {
    for (const auto& [pattern, value] : patterns)
      if (pattern.matches(module)) return value;
    return otherwise;
  }

  std::string path_;
  OrderedJson json_;
  double rank_ = 0, alpha_ = 0;
  bool rslora_ = false;
  Patterns ranks_, alphas_;
};

// --- tensors ---

// Both matrices of each module, by the ends of their names.
struct Halves {
  const StoredTensor* a = nullptr;
  const StoredTensor* b = nullptr;
};

bool is_number(const StoredTensor& tensor) {
  if (!tensor.stored || !tensor.stored->is_plain()) return false;
  const DType dtype = tensor.stored->dtype;
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

void check_tensor(const std::string& path, const std::string& name, const StoredTensor& tensor) {
  GRAFT_CHECK(Unsupported, is_number(tensor), "'", path, "': tensor '", name, "' is ", tensor.type,
              ", expected f32, f16 or bf16");
  GRAFT_ASSERT(tensor.shape.has_value());
}

// Without the sizes of 1 that GGUF has in front.
Shape matrix_of(const Shape& shape) {
  Shape out;
  int first = 0;
  while (shape.rank() - first > 2 && shape[first] == 1) ++first;
  for (int d = first; d < shape.rank(); ++d) out.push_back(shape[d]);
  return out;
}

AdapterFileLayer layer_of(const std::string& path, const std::string& module, const Halves& halves) {
  GRAFT_CHECK(InvalidProgram, halves.a != nullptr && halves.b != nullptr, "'", path, "': layer '", module,
              "' has only one of its matrices A and B");
  AdapterFileLayer layer{module, *halves.a, *halves.b, 1};
  for (StoredTensor* tensor : {&layer.a, &layer.b}) {
    tensor->shape = matrix_of(*tensor->shape);
    GRAFT_CHECK(InvalidArgument, tensor->shape->rank() == 2, "'", path, "': layer '", module,
                "' has a tensor of shape ", tensor->shape->str(), ", expected a matrix");
  }
  GRAFT_CHECK(InvalidArgument, (*layer.a.shape)[0] == (*layer.b.shape)[1], "'", path, "': layer '", module, "' has A ",
              layer.a.shape->str(), " and B ", layer.b.shape->str(), ", whose ranks differ");
  return layer;
}

AdapterFile of_peft(const std::string& weights, const std::string& config_path) {
  const Config config(config_path);
  AdapterFile out;
  out.file = MappedFile::read_in(weights);
  const WeightFile read = naming_file(weights, [&] { return read_safetensors(out.file); });
  std::map<std::string, Halves> modules;
  for (const auto& [name, tensor] : read.tensors) {
    constexpr std::string_view prefix = "base_model.model.", a = ".lora_A.weight", b = ".lora_B.weight";
    GRAFT_CHECK(Unsupported, !name.ends_with("lora_magnitude_vector"), "'", weights, "' has '", name,
                "': DoRA is not run without merging");
    const bool is_a = name.ends_with(a), is_b = name.ends_with(b);
    GRAFT_CHECK(Unsupported, is_a || is_b, "'", weights, "' has '", name,
                "': only matrices of linear layers (lora_A, lora_B) are run without merging");
    check_tensor(weights, name, tensor);
    std::string_view module = std::string_view(name).substr(0, name.size() - a.size());
    if (module.starts_with(prefix)) module.remove_prefix(prefix.size());
    Halves& halves = modules[std::string(module)];
    (is_a ? halves.a : halves.b) = &tensor;
  }
  for (const auto& [module, halves] : modules) {
    out.layers.push_back(layer_of(weights, module, halves));
    out.layers.back().scale = config.scale(module, (*out.layers.back().a.shape)[0]);
  }
  return out;
}

AdapterFile of_gguf(const std::string& path, std::shared_ptr<const MappedFile> file) {
  AdapterFile out;
  out.file = std::move(file);
  out.gguf = true;
  const GgufFile read = naming_file(path, [&] { return gguf_of(out.file); });
  double alpha = 0;
  std::string type, kind;
  for (const auto& [key, value] : read.pairs) {
    const auto* text = std::get_if<std::string>(&value);
    if (key == "general.type" && text != nullptr) type = *text;
    if (key == "adapter.type" && text != nullptr) kind = *text;
    if (key == "general.architecture" && text != nullptr) out.architecture = *text;
    const auto* number = std::get_if<double>(&value);
    if (key == "adapter.lora.alpha" && number != nullptr) alpha = *number;
    GRAFT_CHECK(Unsupported, !key.starts_with("adapter.alora."), "'", path, "' has ", key,
                ": an adapter that its invocation tokens turn on is not run");
  }
  GRAFT_CHECK(Unsupported, type == "adapter" && kind == "lora", "'", path, "' has general.type '", type,
              "' and adapter.type '", kind, "', expected 'adapter' and 'lora'");
  std::map<std::string, Halves> modules;
  for (const auto& [name, tensor] : read.weights.tensors) {
    constexpr std::string_view a = ".weight.lora_a", b = ".weight.lora_b";
    const bool is_a = name.ends_with(a), is_b = name.ends_with(b);
    GRAFT_CHECK(Unsupported, is_a || is_b, "'", path, "' has '", name,
                "': only matrices of linear layers (lora_a, lora_b) are run without merging");
    check_tensor(path, name, tensor);
    Halves& halves = modules[name.substr(0, name.size() - a.size())];
    (is_a ? halves.a : halves.b) = &tensor;
  }
  for (const auto& [module, halves] : modules) {
    out.layers.push_back(layer_of(path, module, halves));
    // As llama.cpp: without an alpha the product is taken as it is.
    const auto rank = static_cast<double>((*out.layers.back().a.shape)[0]);
    if (alpha != 0 && rank > 0) out.layers.back().scale = alpha / rank;
  }
  return out;
}

}  // namespace

ModulePattern::ModulePattern(std::string_view pattern) {
  const auto unsupported = [&](std::string_view what) {
    throw Unsupported(str("the pattern '", pattern, "' of modules has ", what,
                          "; characters, '.', classes and '*', '+' and '?' behind these are understood"));
  };
  if (pattern.size() > 512) unsupported("more than 512 characters");
  constexpr std::string_view digits = "0123456789";
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    Atom atom;
    if (c == '^' && i == 0) continue;
    if (c == '$' && i + 1 == pattern.size()) continue;
    if (c == '*' || c == '+' || c == '?') {
      if (atoms_.empty() || atoms_.back().repeats || atoms_.back().optional) unsupported("a repetition of nothing");
      atoms_.back().optional = c != '+';
      atoms_.back().repeats = c != '?';
      continue;
    }
    if (std::string_view("(){}|^$").find(c) != std::string_view::npos) unsupported(str("'", std::string(1, c), "'"));
    if (c == '\\') {
      if (++i == pattern.size()) unsupported("nothing behind its last '\\'");
      const bool letter = std::isalnum(static_cast<unsigned char>(pattern[i])) != 0;
      if (letter && pattern[i] != 'd') unsupported(str("'\\", std::string(1, pattern[i]), "'"));
      atom.any_of = letter ? std::string(digits) : std::string(1, pattern[i]);
    } else if (c == '[') {
      const std::size_t end = pattern.find(']', i + 2);
      if (end == std::string_view::npos) unsupported("a class without an end");
      std::string_view inside = pattern.substr(i + 1, end - i - 1);
      if (inside.starts_with('^')) {
        atom.negated = true;
        inside.remove_prefix(1);
      }
      for (std::size_t k = 0; k < inside.size(); ++k) {
        if (inside[k] == '\\' || inside[k] == '[') unsupported("a class in a class");
        const bool range = k + 2 < inside.size() && inside[k + 1] == '-';
        const int last = static_cast<unsigned char>(range ? inside[k + 2] : inside[k]);
        for (int each = static_cast<unsigned char>(inside[k]); each <= last; ++each)
          atom.any_of += static_cast<char>(each);
        if (range) k += 2;
      }
      if (atom.any_of.empty()) unsupported("an empty class");
      i = end;
    } else if (c != '.') {
      atom.any_of = std::string(1, c);
    }
    atoms_.push_back(std::move(atom));
  }
}

// All places in the pattern that a prefix of the text leads to, at once: no text makes it slow.
bool ModulePattern::matches_whole(std::string_view text) const {
  std::vector<bool> at(atoms_.size() + 1, false), next(atoms_.size() + 1);
  const auto skip = [&](std::vector<bool>& places) {
    for (std::size_t i = 0; i < atoms_.size(); ++i)
      if (places[i] && atoms_[i].optional) places[i + 1] = true;
  };
  at[0] = true;
  skip(at);
  for (const char c : text) {
    std::fill(next.begin(), next.end(), false);
    for (std::size_t i = 0; i < atoms_.size(); ++i) {
      if (!at[i] || !atoms_[i].takes(c)) continue;
      next[i + 1] = true;
      if (atoms_[i].repeats) next[i] = true;
    }
    skip(next);
    at.swap(next);
  }
  return at.back();
}

bool ModulePattern::matches(std::string_view module) const {
  if (matches_whole(module)) return true;
  for (std::size_t dot = module.find('.'); dot != std::string_view::npos; dot = module.find('.', dot + 1))
    if (matches_whole(module.substr(dot + 1))) return true;
  return false;
}

AdapterFile read_adapter(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path given(path);
  if (fs::is_directory(given, error)) {
    const std::string weights = (given / kWeightsName).string(), config = (given / kConfigName).string();
    for (const std::string& file : {config, weights})
      GRAFT_CHECK(NotFound, fs::exists(file, error), "there is no '", file, "': the folder of an adapter has ",
                  kConfigName, " and ", kWeightsName);
    return of_peft(weights, config);
  }
  GRAFT_CHECK(NotFound, fs::exists(given, error), "there is no adapter '", path, "'");
  const std::shared_ptr<const MappedFile> file = MappedFile::read_in(path);
  const std::span<const std::byte> head = file->bytes().first(std::min(file->bytes().size(), kGgufMagic.size()));
  if (std::string_view(reinterpret_cast<const char*>(head.data()), head.size()) == kGgufMagic)
    return of_gguf(path, file);
  const std::string config = (given.parent_path() / kConfigName).string();
  GRAFT_CHECK(NotFound, fs::exists(config, error), "there is no '", config, "' beside '", path,
              "': it has the scale of the adapter");
  return of_peft(path, config);
}

}  // namespace graft
