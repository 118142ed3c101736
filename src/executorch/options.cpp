#include "executorch/options.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"

namespace graft {
namespace {

const DelegateOption& find(std::string_view name) {
  const auto found = std::ranges::find(kDelegateOptions, name, &DelegateOption::name);
  if (found != kDelegateOptions.end()) return *found;
  std::string known;
  for (const DelegateOption& option : kDelegateOptions)
    known += str(known.empty() ? "" : ", ", option.name, option.is_number ? " (int)" : " (text)");
  throw InvalidArgument(str("no option '", name, "'; there are ", known));
}

void check_device(const std::string& wanted) {
  std::string known;
  for (const DeviceInfo& info : devices()) {
    if (info.name == wanted) return;
    known += (known.empty() ? "" : ", ") + info.name;
  }
  throw NotFound(str("option 'device': no device '", wanted, "'; this machine has: ", known));
}

}  // namespace

void DelegateOptions::set(std::string_view name, Value value) {
  const DelegateOption& option = find(name);
  const int* number = std::get_if<int>(&value);
  GRAFT_CHECK(InvalidArgument, option.is_number == (number != nullptr), "option '", name, "' must be ",
              option.is_number ? "an int" : "text", ": ", option.meaning);
  if (number) {
    GRAFT_CHECK(InvalidArgument, *number >= 0 || name == "seed", "option '", name, "' must not be negative, got ",
                *number);
  } else if (const std::string& text = std::get<std::string>(value); !text.empty()) {
    if (name == "device") check_device(text);
    if (name == "kv_type") kv_type_named(text);
  }
  const bool unset = number ? *number == 0 : std::get<std::string>(value).empty();
  if (unset) {
    values_.erase(std::string(name));
  } else {
    values_.insert_or_assign(std::string(name), std::move(value));
  }
}

void DelegateOptions::set_text(std::string_view name, std::string_view value) {
  if (!find(name).is_number) return set(name, std::string(value));
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  GRAFT_CHECK(InvalidArgument, error == std::errc() && end == value.data() + value.size(), "option '", name,
              "' must be an int of 32 bits, got '", value, "'");
  set(name, number);
}

DelegateOptions::Value DelegateOptions::get(std::string_view name) const {
  const DelegateOption& option = find(name);
  if (const auto found = values_.find(name); found != values_.end()) return found->second;
  return option.is_number ? Value(0) : Value(std::string());
}

void DelegateOptions::update(const DelegateOptions& later) {
  for (const auto& [name, value] : later.values_) values_.insert_or_assign(name, value);
}

SessionOptions DelegateOptions::session() const {
  SessionOptions session;
  session.threads = number("threads");
  session.seed = static_cast<std::uint32_t>(number("seed"));
  if (const int rows = number("kv_rows")) session.kv.rows = rows;
  if (const int length = number("kv_length")) session.kv.length = length;
  if (const int length = number("kv_encoder_length")) session.kv.encoder_length = length;
  if (const std::string type = std::get<std::string>(get("kv_type")); !type.empty())
    session.kv.type = kv_type_named(type);
  return session;
}

}  // namespace graft
