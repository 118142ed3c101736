#include "executorch/loaded_program.h"

#include <executorch/runtime/executor/merged_data_map.h>

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"

namespace graft {
namespace {

using executorch::runtime::NamedDataMap;

// Name of data in each package that delegates find their program by (python/graft/exporter/backend.py).
constexpr std::string_view kSessionKey = "graft.session";

// What tells two loaded programs apart. ExecuTorch gives a delegate no handle of its program; it gives a data map.
//   - That of a .pte alone belongs to the program.
//   - One that merges a .pte with data files belongs to the method. The addresses of its keys do not: keys are read
//     where the headers of the program and the files lie. Programs that are loaded from the same memory have the same
//     header, but headers of data files of their own.
struct Identity {
  const void* session_key;
  const void* first;
  const void* last;
  auto operator<=>(const Identity&) const = default;
};

std::optional<Identity> identity_of(const NamedDataMap& data) {
  const auto count = data.get_num_keys();
  if (!count.ok() || *count == 0) return {};
  for (std::uint32_t i = 0; i < *count; ++i) {
    const auto key = data.get_key(i);
    if (!key.ok()) return {};
    if (std::string_view(*key) != kSessionKey) continue;
    if (!dynamic_cast<const executorch::runtime::internal::MergedDataMap*>(&data)) return Identity{*key, &data, &data};
    const auto first = data.get_key(0), last = data.get_key(*count - 1);  // one is of the .pte, one of the files
    if (!first.ok() || !last.ok()) return {};
    return Identity{*key, *first, *last};
  }
  return {};
}

struct Registry {
  std::mutex mutex;
  std::map<Identity, std::weak_ptr<LoadedProgram>> programs;
};

// Never destroyed: delegates may be destroyed while the process ends.
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

}  // namespace

std::shared_ptr<LoadedProgram> LoadedProgram::of(const NamedDataMap* data) {
  const std::optional<Identity> identity = data ? identity_of(*data) : std::nullopt;
  if (!identity) return std::make_shared<LoadedProgram>();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  // A program that is gone may have had the same addresses.
  std::erase_if(all.programs, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<LoadedProgram>& entry = all.programs[*identity];
  std::shared_ptr<LoadedProgram> found = entry.lock();
  if (!found) entry = found = std::make_shared<LoadedProgram>();
  return found;
}

std::string LoadedProgram::name(const NamedDataMap* data) {
  std::set<std::string> keys;
  const auto count = data ? data->get_num_keys() : executorch::runtime::Result<std::uint32_t>(0U);
  for (std::uint32_t i = 0; count.ok() && i < *count; ++i)
    if (const auto key = data->get_key(i); key.ok()) keys.emplace(*key);
  std::string all = str(keys.size());
  for (const std::string& key : keys) all += str(" ", key.size(), ":", key);
  return all;
}

LoadedProgram::~LoadedProgram() {
  for (auto& [key, buffer] : weights_) buffer.Free();
}

std::span<const std::byte> LoadedProgram::weight(const NamedDataMap* data, std::string_view key) {
  GRAFT_CHECK(NotFound, data, "weight '", key, "': the program holds no named data");
  const std::lock_guard lock(mutex_);
  auto known = weights_.find(key);
  if (known == weights_.end()) {
    auto buffer = data->get_data(key);
    GRAFT_CHECK(NotFound, buffer.ok(), "weight '", key, "' is neither in the program nor in the data files given");
    known = weights_.emplace(std::string(key), std::move(*buffer)).first;
  }
  return {static_cast<const std::byte*>(known->second.data()), known->second.size()};
}

}  // namespace graft
