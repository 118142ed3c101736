#include "package/package.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/check.h"
#include "package/compose.h"
#include "package/container.h"
#include "weight/stored_weight.h"

namespace graft {
namespace {

// Limits reuse of delegate blobs: the bytes decoded, as a multiple of the file's size.
constexpr std::size_t kMaxBlobReuse = 64;

// Whether two initial values are equal; null means zeros. Each method may have its own key for equal content.
bool same_values(const ir::Weight* a, const ir::Weight* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->key == b->key || (!a->sha256.empty() && a->sha256 == b->sha256);
}

// Reads execution plans of a .pte. Its errors do not name the file.
class Reader {
 public:
  explicit Reader(const std::shared_ptr<const MappedFile>& file)
      : pte_(file), data_{file, {}}, budget_(file->bytes().size() * kMaxBlobReuse) {}

  std::size_t count() const {
    const auto* plans = pte_.program().execution_plan();
    return plans == nullptr ? 0 : plans->size();
  }

  void read_named_data() {
    for (const NamedBytes& named : pte_.named_data()) add(named.key, named.bytes);
  }

  std::string_view name(std::size_t index) const {
    const auto* name = pte_.program().execution_plan()->Get(static_cast<flatbuffers::uoffset_t>(index))->name();
    return name == nullptr ? std::string_view() : name->string_view();
  }

  PackageMethod method(std::size_t index) {
    const PlanSurroundings around{pte_, [&](const et::BackendDelegate& delegate) { return blob(delegate); },
                                  [this](std::string_view key, std::span<const std::byte> bytes) {
                                    // Two methods may hold the same constant, but a file may not claim one of
                                    // these keys for other data.
                                    const auto known = data_.tensors.find(key);
                                    if (known == data_.tensors.end() || known->second.bytes.data() != bytes.data() ||
                                        known->second.bytes.size() != bytes.size())
                                      add(key, bytes);
                                  }};
    PackageMethod method =
        compose(*pte_.program().execution_plan()->Get(static_cast<flatbuffers::uoffset_t>(index)), around);
    method.index = index;
    return method;
  }

  WeightFile take_data() { return std::move(data_); }

 private:
  // Plans may share a blob. Decoding it for each of them takes linear time only if that is bounded.
  std::span<const std::byte> blob(const et::BackendDelegate& delegate) {
    const std::span<const std::byte> bytes = pte_.processed(delegate);
    GRAFT_CHECK(InvalidProgram, bytes.size() <= budget_, "its methods share delegate data too often");
    budget_ -= bytes.size();
    const MappedFile& file = *pte_.file();
    const std::span<const std::byte> all = file.bytes();
    const std::less<const std::byte*> before;
    if (file.is_memory() || bytes.empty() || before(bytes.data(), all.data()) ||
        !before(bytes.data(), all.data() + all.size()))
      return bytes;
    blob_ = file.read(static_cast<std::uint64_t>(bytes.data() - all.data()), bytes.size());
    return blob_;
  }

  void add(std::string_view key, std::span<const std::byte> bytes) {
    const bool fresh = data_.tensors.emplace(std::string(key), StoredTensor{bytes, {}, {}, {}}).second;
    GRAFT_CHECK(InvalidProgram, fresh, "data '", key, "' appears twice");
  }

  PteFile pte_;
  WeightFile data_;
  std::size_t budget_;
  std::vector<std::byte> blob_;
};

// Methods share weights by key and states by name.
void check_methods_agree(const Package& package) {
  std::map<std::string_view, std::pair<const ir::Weight*, const PackageMethod*>> weights;
  struct SeenState {
    const ir::State* state;
    const ir::Weight* initial;
    const PackageMethod* method;
  };
  std::map<std::string_view, SeenState> states;
  for (const PackageMethod& method : package.methods) {
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

}  // namespace

Package read_package(const std::shared_ptr<const MappedFile>& file, std::span<const std::string> methods) {
  return naming_file(file->path(), [&] {
    Reader reader(file);
    reader.read_named_data();
    Package out;
    for (std::size_t i = 0; i < reader.count(); ++i) {
      if (!methods.empty() && std::ranges::find(methods, reader.name(i)) == methods.end()) continue;
      PackageMethod method = reader.method(i);
      GRAFT_CHECK(
          InvalidProgram,
          std::none_of(out.methods.begin(), out.methods.end(), [&](const auto& m) { return m.name == method.name; }),
          "method '", method.name, "' appears twice");
      out.methods.push_back(std::move(method));
    }
    for (const std::string& wanted : methods)
      GRAFT_CHECK(NotFound, std::ranges::find(out.methods, wanted, &PackageMethod::name) != out.methods.end(),
                  "no method '", wanted, "' in '", file->path(), "'");
    out.data = reader.take_data();
    return out;
  });
}

PackageMethod read_method(const std::shared_ptr<const MappedFile>& file, std::size_t index) {
  return naming_file(file->path(), [&] {
    Reader reader(file);
    GRAFT_CHECK(InvalidProgram, index < reader.count(), "it has ", reader.count(), " methods, not ", index + 1);
    return reader.method(index);
  });
}

void verify(const Package& package, std::uint64_t max_graph_calls) {
  naming_file(package.data.file->path(), [&] {
    for (const PackageMethod& method : package.methods) {
      if (!method.fully_delegated) continue;
      try {
        ir::verify(method.program, max_graph_calls);
        verify_weights(method.program);
      } catch (const InvalidProgram& error) {
        throw InvalidProgram(str("method '", method.name, "': ", error.what()));
      }
    }
    check_methods_agree(package);
  });
}

}  // namespace graft
