#pragma once

#include <array>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "graft/graft.h"

namespace graft {

// How a method runs. Each option may be set at export (a compile spec), for the process, and for one load; the later
// of these wins.
struct DelegateOption {
  std::string_view name;
  bool is_number;
  std::string_view meaning;
};
inline constexpr std::array<DelegateOption, 7> kDelegateOptions = {{
    {"threads", true, "0: GRAFT_THREADS, else the CPUs this process may use"},
    {"device", false, "a name of devices(); empty: GRAFT_DEVICE, else the CPU"},
    {"seed", true, "of random numbers, as bits"},
    {"kv_rows", true, "KvOptions::rows"},
    {"kv_length", true, "KvOptions::length"},
    {"kv_encoder_length", true, "KvOptions::encoder_length"},
    {"kv_type", false, "KvOptions::type"},
}};

class DelegateOptions {
 public:
  using Value = std::variant<int, std::string>;

  // Throw InvalidArgument or NotFound naming the option; 0 and "" unset it.
  void set(std::string_view name, Value value);
  void set_text(std::string_view name, std::string_view value);  // numbers in decimal
  // 0 or "" for one that is not set. Throws InvalidArgument for a name that is none.
  Value get(std::string_view name) const;
  // Options that are set in `later` replace those here.
  void update(const DelegateOptions& later);

  std::string device() const { return std::get<std::string>(get("device")); }
  SessionOptions session() const;

 private:
  int number(std::string_view name) const { return std::get<int>(get(name)); }

  std::map<std::string, Value, std::less<>> values_;
};

// Those of the process.
class SharedDelegateOptions {
 public:
  DelegateOptions get() const {
    const std::lock_guard lock(mutex_);
    return options_;
  }
  void set(DelegateOptions options) {
    const std::lock_guard lock(mutex_);
    options_ = std::move(options);
  }

 private:
  mutable std::mutex mutex_;
  DelegateOptions options_;
};

}  // namespace graft
