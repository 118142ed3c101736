#include "graft/adapter.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/number_at.h"
#include "base/rethrow.h"
#include "base/sha256.h"
#include "load/adapter_impl.h"
#include "load/program_impl.h"
#include "weight/adapter_file.h"

namespace graft {
namespace {

using Layer = AdapterLayers::Layer;

const ProgramImpl& with_adapters(const std::shared_ptr<const Program>& program) {
  GRAFT_CHECK(InvalidArgument, program, "an adapter needs a program");
  const ProgramImpl& impl = Internal::of(*program);
  GRAFT_CHECK(Unsupported, impl.adapters, impl.source,
              " was loaded without adapters: LoadOptions::max_adapter_rank (--max-adapter-rank) is 0");
  return impl;
}

// The layer with this name: or the one whose name ends with it, or ends it, from a dot on, as wrappers of modules add
// names in front.
std::optional<std::size_t> find_layer(const std::vector<Layer>& layers, std::string_view module) {
  std::optional<std::size_t> found;
  std::size_t count = 0;
  const auto ends = [](std::string_view whole, std::string_view end) {
    return whole.size() > end.size() + 1 && whole.ends_with(end) && whole[whole.size() - end.size() - 1] == '.';
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].module == module) return i;
    if (!ends(layers[i].module, module) && !ends(module, layers[i].module)) continue;
    found = i;
    ++count;
  }
  return count == 1 ? found : std::nullopt;
}

[[noreturn]] void throw_unknown(const std::vector<Layer>& layers, const std::string& source,
                                const std::string& module) {
  std::vector<std::string_view> names;
  for (const Layer& layer : layers) names.push_back(layer.module);
  const std::string close = close_names(module, names);
  throw InvalidArgument(str("the adapter changes '", module, "', ", source, " has no such linear layer",
                            close.empty() ? std::string() : "; similar are " + close));
}

// GGUF's names of the layers of a block, and those of transformers' models; the first that a program has is meant.
constexpr std::pair<std::string_view, std::array<std::string_view, 4>> kGgufNames[] = {
    {"attn_q", {"self_attn.q_proj"}},
    {"attn_k", {"self_attn.k_proj"}},
    {"attn_v", {"self_attn.v_proj"}},
    {"attn_qkv", {"self_attn.qkv_proj", "attn.c_attn", "self_attention.query_key_value", "attention.query_key_value"}},
    {"attn_output", {"self_attn.o_proj", "attn.c_proj", "self_attn.dense", "attention.dense"}},
    {"ffn_gate", {"mlp.gate_proj", "feed_forward.w1"}},
    {"ffn_up", {"mlp.up_proj", "mlp.gate_up_proj", "mlp.c_fc", "mlp.fc1"}},
    {"ffn_down", {"mlp.down_proj", "mlp.c_proj", "mlp.fc2", "mlp.dense_4h_to_h"}}};

// "blk.0.attn_q": that layer of the program.
std::optional<std::size_t> find_gguf_layer(const std::vector<Layer>& layers, std::string_view name) {
  if (name == "output") return find_layer(layers, "lm_head");
  constexpr std::string_view block = "blk.";
  const std::size_t dot = name.find('.', block.size());
  if (!name.starts_with(block) || dot == std::string_view::npos) return std::nullopt;
  const std::string number(name.substr(block.size(), dot - block.size()));
  for (const auto& [gguf, modules] : kGgufNames) {
    if (name.substr(dot + 1) != gguf) continue;
    for (const std::string_view module : modules) {
      if (module.empty()) break;
      for (const std::string_view list : {"layers.", "h."})
        if (const auto found = find_layer(layers, str(list, number, ".", module))) return found;
    }
  }
  return std::nullopt;
}

// Rows of queries and keys are in pairs (0, n/2, 1, n/2 + 1, ...) in GGUF files of this architecture; a program has
// them as transformers has them, and so B must be. Returns the size of a head.
std::int64_t size_of_heads(const ProgramImpl& program, const std::string& path) {
  for (const StateInfo& state : program.states)
    if (state.state.kind == ir::StateKind::kv && state.state.fqn.ends_with(".key")) return state.state.shape[3];
  throw Unsupported(str("'", path, "' has rows of queries and keys in the order of llama.cpp; ", program.source,
                        " has no cache of keys and values, and so does not say how large heads are"));
}

}  // namespace

struct Adapter::Impl {
  struct Numbers {
    std::vector<float> a, b;
    std::int64_t rank = 0;
  };
  std::shared_ptr<const AdapterLayers> layers;
  std::vector<Numbers> numbers;  // by layer of the program
  std::vector<LowRank> list;
  std::size_t changed = 0;
  std::int64_t rank = 0;
  std::uint64_t bytes = 0, id = 0;
};

namespace {

// Collects the layers of one adapter.
class AdapterBuilder {
 public:
  explicit AdapterBuilder(const std::shared_ptr<const Program>& program)
      : program_(with_adapters(program)), numbers_(program_.adapters->list().size()) {}

  const ProgramImpl& program() const { return program_; }
  const std::vector<Layer>& layers() const { return program_.adapters->list(); }

  struct Matrix {
    const std::byte* data;
    DType dtype;
    Shape shape;
  };
  // `head`: of B's rows in pairs; 0: they are in order.
  void add(std::size_t index, const Matrix& a, const Matrix& b, double scale, std::int64_t head = 0) {
    const Layer& layer = layers()[index];
    const std::int64_t rank = a.shape.rank() == 2 ? a.shape[0] : 0, most = program_.adapters->most_rank();
    GRAFT_CHECK(InvalidArgument, a.shape.rank() == 2 && a.shape[1] == layer.in, "layer '", layer.module, "' takes ",
                layer.in, " numbers, the adapter's A has shape ", a.shape.str(), ", expected [rank, ", layer.in, "]");
    GRAFT_CHECK(InvalidArgument, rank > 0, "layer '", layer.module, "': the adapter has rank 0");
    GRAFT_CHECK(InvalidArgument, rank <= most, "layer '", layer.module, "': the adapter has rank ", rank,
                ", the program was loaded for at most ", most, " (max_adapter_rank)");
    GRAFT_CHECK(InvalidArgument, b.shape == Shape({layer.out, rank}), "layer '", layer.module, "' gives ", layer.out,
                " numbers, the adapter's B has shape ", b.shape.str(), ", expected [", layer.out, ", ", rank, "]");
    GRAFT_CHECK(InvalidArgument, numbers_[index].rank == 0, "the adapter changes layer '", layer.module, "' twice");
    GRAFT_CHECK(InvalidArgument, head == 0 || (head % 2 == 0 && layer.out % head == 0), "layer '", layer.module,
                "' gives ", layer.out, " numbers, which are no heads of ", head);
    AdapterAccess::Impl::Numbers& to = numbers_[index];
    to.rank = rank;
    to.a.resize(static_cast<std::size_t>(rank * layer.in));
    to.b.resize(static_cast<std::size_t>(rank * layer.out));
    const std::size_t a_size = byte_size(a.dtype), b_size = byte_size(b.dtype);
    for (std::size_t i = 0; i < to.a.size(); ++i) to.a[i] = static_cast<float>(number_at(a.data + i * a_size, a.dtype));
    for (std::int64_t j = 0; j < layer.out; ++j) {
      const std::int64_t within = head == 0 ? 0 : j % head;
      const std::int64_t from = head == 0 ? j : j - within + within % (head / 2) * 2 + within / (head / 2);
      for (std::int64_t q = 0; q < rank; ++q)
        to.b[static_cast<std::size_t>(q * layer.out + j)] =
            static_cast<float>(scale * number_at(b.data + static_cast<std::size_t>(from * rank + q) * b_size, b.dtype));
    }
  }

  std::unique_ptr<const AdapterAccess::Impl> finish();

 private:
  const ProgramImpl& program_;
  std::vector<AdapterAccess::Impl::Numbers> numbers_;  // by layer of the program
};

std::unique_ptr<const AdapterAccess::Impl> AdapterBuilder::finish() {
  auto out = std::make_unique<AdapterAccess::Impl>();
  out->layers = program_.adapters;
  out->numbers = std::move(numbers_);
  Sha256 hash;
  for (std::size_t i = 0; i < out->numbers.size(); ++i) {
    const AdapterAccess::Impl::Numbers& layer = out->numbers[i];
    out->list.push_back({layer.a.data(), layer.b.data(), layer.rank});
    if (layer.rank == 0) continue;
    ++out->changed;
    out->rank = std::max(out->rank, layer.rank);
    out->bytes += (layer.a.size() + layer.b.size()) * sizeof(float);
    const std::string head = str(layers()[i].module, '\n', layer.rank, '\n');
    hash.add(std::as_bytes(std::span(head)));
    hash.add(std::as_bytes(std::span(layer.a)));
    hash.add(std::as_bytes(std::span(layer.b)));
  }
  GRAFT_CHECK(InvalidArgument, out->changed > 0, "the adapter changes no layer");
  const auto digest = hash.digest();
  std::memcpy(&out->id, digest.data(), sizeof(out->id));
  out->id = std::max<std::uint64_t>(out->id, 1);
  return out;
}

}  // namespace

std::span<const LowRank> AdapterAccess::list(const Adapter& adapter) { return adapter.impl_->list; }

bool AdapterAccess::is_of(const Adapter& adapter, const AdapterLayers& layers) {
  const AdapterLayers& own = *adapter.impl_->layers;
  const auto same = [](const Layer& a, const Layer& b) {
    return a.module == b.module && a.in == b.in && a.out == b.out;
  };
  return &own == &layers ||
         (adapter.rank() <= layers.most_rank() && std::ranges::equal(own.list(), layers.list(), same));
}

std::shared_ptr<const Adapter> AdapterAccess::make(std::unique_ptr<const Impl> impl) {
  return std::shared_ptr<const Adapter>(new Adapter(std::move(impl)));
}

Adapter::Adapter(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Adapter::~Adapter() = default;

std::shared_ptr<const Adapter> Adapter::load(const std::shared_ptr<const Program>& program,
                                             const std::string& path) try {
  AdapterBuilder builder(program);
  const AdapterFile file = read_adapter(path);
  const bool pairs = file.gguf && file.architecture == "llama";
  for (const AdapterFileLayer& layer : file.layers) {
    const auto found =
        file.gguf ? find_gguf_layer(builder.layers(), layer.module) : find_layer(builder.layers(), layer.module);
    if (!found) throw_unknown(builder.layers(), builder.program().source, layer.module);
    const bool heads = pairs && (layer.module.ends_with(".attn_q") || layer.module.ends_with(".attn_k"));
    builder.add(*found, {layer.a.bytes.data(), layer.a.stored->dtype, *layer.a.shape},
                {layer.b.bytes.data(), layer.b.stored->dtype, *layer.b.shape}, layer.scale,
                heads ? size_of_heads(builder.program(), path) : 0);
  }
  return AdapterAccess::make(builder.finish());
} catch (const Error& error) {
  const std::string quoted = "'" + path + "'";
  if (std::string_view(error.what()).find(quoted) != std::string_view::npos) throw;
  rethrow_with(quoted + ": ", error);
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<const Adapter> Adapter::of(const std::shared_ptr<const Program>& program,
                                           std::span<const AdapterLayer> layers) try {
  AdapterBuilder builder(program);
  for (const AdapterLayer& layer : layers) {
    const auto found = find_layer(builder.layers(), layer.module);
    if (!found) throw_unknown(builder.layers(), builder.program().source, layer.module);
    for (const TensorView* view : {&layer.a, &layer.b}) {
      const bool number = view->dtype == DType::f32 || view->dtype == DType::f16 || view->dtype == DType::bf16;
      GRAFT_CHECK(InvalidArgument, number, "layer '", layer.module, "': the adapter has numbers of type ",
                  name(view->dtype), ", expected f32, f16 or bf16");
      GRAFT_CHECK(InvalidArgument, view->data != nullptr || view->shape.numel() == 0, "layer '", layer.module,
                  "': a matrix has no data");
    }
    builder.add(*found, {static_cast<const std::byte*>(layer.a.data), layer.a.dtype, layer.a.shape},
                {static_cast<const std::byte*>(layer.b.data), layer.b.dtype, layer.b.shape}, layer.scale);
  }
  return AdapterAccess::make(builder.finish());
} catch (...) {
  rethrow_typed();
}

std::size_t Adapter::layers() const { return impl_->changed; }
std::int64_t Adapter::rank() const { return impl_->rank; }
std::uint64_t Adapter::bytes() const { return impl_->bytes; }
std::uint64_t Adapter::id() const { return impl_->id; }

std::vector<std::string> adapter_modules(const Program& program) try {
  std::vector<std::string> out;
  if (const ProgramImpl& impl = Internal::of(program); impl.adapters)
    for (const Layer& layer : impl.adapters->list()) out.push_back(layer.module);
  return out;
} catch (...) {
  rethrow_typed();
}

Adapters::Adapters(std::shared_ptr<const Program> program) : program_(std::move(program)) {}

void Adapters::load(const std::string& name, const std::string& path) try {
  add(name, Adapter::load(program_, path));
} catch (...) {
  rethrow_typed();
}

void Adapters::add(const std::string& name, std::shared_ptr<const Adapter> adapter) try {
  GRAFT_CHECK(InvalidArgument, !name.empty(), "an adapter needs a name");
  GRAFT_CHECK(InvalidArgument, adapter, "adapter '", name, "' is null");
  GRAFT_CHECK(InvalidArgument, AdapterAccess::is_of(*adapter, *with_adapters(program_).adapters), "adapter '", name,
              "' is of another program");
  const std::lock_guard lock(mutex_);
  adapters_.insert_or_assign(name, std::move(adapter));
} catch (...) {
  rethrow_typed();
}

namespace {

[[noreturn]] void throw_unknown_name(
    std::string_view name, const std::map<std::string, std::shared_ptr<const Adapter>, std::less<>>& adapters) {
  std::string known;
  for (const auto& [each, adapter] : adapters) known += (known.empty() ? "'" : ", '") + each + "'";
  throw NotFound(str("there is no adapter '", name, "'; ", known.empty() ? "none is loaded" : "there are " + known));
}

}  // namespace

void Adapters::remove(std::string_view name) try {
  std::shared_ptr<const Adapter> removed;  // freed after the lock
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) throw_unknown_name(name, adapters_);
  removed = std::move(found->second);
  adapters_.erase(found);
} catch (...) {
  rethrow_typed();
}

std::shared_ptr<const Adapter> Adapters::find(std::string_view name) const try {
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) throw_unknown_name(name, adapters_);
  return found->second;
} catch (...) {
  rethrow_typed();
}

bool Adapters::has(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  return adapters_.contains(name);
}

std::vector<std::string> Adapters::names() const try {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [name, adapter] : adapters_) out.push_back(name);
  return out;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
