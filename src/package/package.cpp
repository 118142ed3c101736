#include "package/package.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/plant.h"
#include "base/sha256.h"
#include "package/compose.h"
#include "package/container.h"

namespace graft {
namespace {

// How many methods of the size of the whole file one blob may serve.
constexpr std::size_t kMaxBlobReuse = 64;

std::string hex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (std::uint8_t b : bytes) {
    out += digits[b >> 4];
    out += digits[b & 15];
  }
  return out;
}

// Whether two initial values are the same; null means zeros. Equal content may have a key per method.
bool same_values(const ir::Weight* a, const ir::Weight* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->key == b->key || (!a->sha256.empty() && a->sha256 == b->sha256);
}

}  // namespace

std::shared_ptr<const Package> Package::open(const std::string& path, std::span<const std::string> data_files) {
  std::shared_ptr<Package> package(new Package());
  package->read(path, data_files);
  return package;
}

void Package::read(const std::string& path, std::span<const std::string> data_files) {
  const PteFile pte(path);
  files_.push_back(pte.file());
  for (const NamedBytes& named : pte.named_data()) add(named.key, named.bytes, 0);
  for (const std::string& data_file : data_files) {
    const PtdFile ptd(data_file);
    files_.push_back(ptd.file());
    for (const NamedBytes& named : ptd.named_data()) add(named.key, named.bytes, files_.size() - 1);
  }
  // Plans may share a blob. Decoding it for each of them is linear in the file only when that is bounded.
  std::size_t budget = pte.file()->bytes().size() * kMaxBlobReuse;
  const PlanSurroundings around{
      pte,
      [&](const et::BackendDelegate& delegate) {
        const std::span<const std::byte> blob = pte.processed(delegate);
        GRAFT_CHECK(InvalidProgram, blob.size() <= budget, "its methods share delegate data beyond reason");
        budget -= blob.size();
        return blob;
      },
      [this](std::string_view key, std::span<const std::byte> bytes) {
        // Two methods may hold the same constant; a file may not claim one of these keys for something else.
        const auto known = find(key);
        if (!known || known->bytes.data() != bytes.data() || known->bytes.size() != bytes.size()) add(key, bytes, 0);
      }};
  try {
    if (const auto* plans = pte.program().execution_plan()) {
      for (const et::ExecutionPlan* plan : *plans) {
        methods_.push_back(compose(*plan, around));
        const std::string& name = methods_.back().name;
        GRAFT_CHECK(InvalidProgram,
                    std::none_of(methods_.begin(), methods_.end() - 1, [&](const auto& m) { return m.name == name; }),
                    "method '", name, "' appears twice");
      }
    }
    if (GRAFT_PLANT("missing-weights-are-zeros"))
      for (const PackageMethod& m : methods_)
        for (const ir::Weight& w : m.program.weights)
          data_.try_emplace(w.key, PackageData{{new std::byte[w.byte_size]{}, w.byte_size}, 0, 0});
    check_weights();
    check_methods_agree();
  } catch (const InvalidProgram& error) {
    throw InvalidProgram(str("'", path, "': ", error.what()));
  } catch (const NotFound& error) {
    throw NotFound(str("'", path, "': ", error.what()));
  }
}

void Package::add(std::string_view key, std::span<const std::byte> bytes, std::size_t file) {
  const auto offset = static_cast<std::uint64_t>(bytes.empty() ? 0 : bytes.data() - files_[file]->bytes().data());
  const auto [it, fresh] = data_.try_emplace(std::string(key), PackageData{bytes, file, offset});
  GRAFT_CHECK(InvalidProgram, fresh, "data '", key, "' is in '", files_[it->second.file]->path(), "' and again in '",
              files_[file]->path(), "'");
}

std::optional<PackageData> Package::find(std::string_view key) const {
  const auto it = data_.find(key);
  if (it == data_.end()) return std::nullopt;
  return it->second;
}

PackageData Package::data(std::string_view key) const {
  const auto found = find(key);
  if (!found) {
    std::string searched;
    for (const auto& file : files_) searched += (searched.empty() ? "'" : ", '") + file->path() + "'";
    throw NotFound(str("no data '", key, "' in ", searched, "; give the .ptd file that holds it"));
  }
  return *found;
}

void Package::check_weights() const {
  for (const PackageMethod& method : methods_) {
    for (const ir::Weight& weight : method.program.weights) {
      const PackageData found = data(weight.key);
      GRAFT_CHECK(InvalidProgram, found.bytes.size() == weight.byte_size || GRAFT_PLANT("weight-size-unchecked"),
                  "method '", method.name, "': weight '", weight.key, "' (", weight.fqn, ") must have ",
                  weight.byte_size, " bytes, '", files_[found.file]->path(), "' has ", found.bytes.size());
    }
  }
}

// Methods share weights by key and states by name.
void Package::check_methods_agree() const {
  std::map<std::string_view, std::pair<const ir::Weight*, const PackageMethod*>> weights;
  struct SeenState {
    const ir::State* state;
    const ir::Weight* initial;
    const PackageMethod* method;
  };
  std::map<std::string_view, SeenState> states;
  for (const PackageMethod& method : methods_) {
    for (const ir::Weight& weight : method.program.weights) {
      const auto& [first, owner] = weights.try_emplace(weight.key, &weight, &method).first->second;
      GRAFT_CHECK(InvalidProgram, first->byte_size == weight.byte_size && first->sha256 == weight.sha256, "weight '",
                  weight.key, "' has ", first->byte_size, " bytes in method '", owner->name, "' and ", weight.byte_size,
                  " bytes, or other content, in method '", method.name, "'");
    }
    for (const ir::State& state : method.program.states) {
      const ir::Weight* initial =
          state.initial < 0 ? nullptr : &method.program.weights[static_cast<std::size_t>(state.initial)];
      const SeenState& first = states.try_emplace(state.fqn, SeenState{&state, initial, &method}).first->second;
      GRAFT_CHECK(InvalidProgram, first.state->dtype == state.dtype && first.state->shape == state.shape, "state '",
                  state.fqn, "' is ", name(first.state->dtype), first.state->shape.str(), " in method '",
                  first.method->name, "' and ", name(state.dtype), state.shape.str(), " in method '", method.name, "'");
      GRAFT_CHECK(InvalidProgram, same_values(first.initial, initial), "state '", state.fqn,
                  "' starts with other values in method '", method.name, "' than in method '", first.method->name, "'");
    }
  }
}

void Package::verify_hashes() const {
  std::set<std::string_view> done;
  for (const PackageMethod& method : methods_) {
    for (const ir::Weight& weight : method.program.weights) {
      if (weight.sha256.empty() || !done.insert(weight.key).second) continue;
      const PackageData found = data(weight.key);
      const auto digest = sha256(found.bytes);
      GRAFT_CHECK(InvalidProgram, std::equal(digest.begin(), digest.end(), weight.sha256.begin(), weight.sha256.end()),
                  "'", files_[found.file]->path(), "': weight '", weight.key, "' (", weight.fqn,
                  ") is not what was exported: its SHA-256 must be ", hex(weight.sha256), ", found ", hex(digest));
    }
  }
}

}  // namespace graft
