// Attention over a KV cache: the exporter's custom op, and the ops that src/pass/graph/kv_cache.cpp makes of it.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "base/check.h"
#include "kernel/attention/cached_attention.h"
#include "lowering/kv_shape.h"
#include "lowering/lowering.h"
#include "op/ggml_ops.h"
#include "op/operator.h"

namespace graft {
namespace {

bool has_kernel(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

Refusal refuse_kv_attention(const NodeView& node) {
  const ir::Value& query = node.tensor("query");
  if (!has_kernel(query.dtype)) return str("query is ", name(query.dtype), ", expected f32, f16 or bf16");
  for (const std::string_view argument : {"query", "key", "value"}) {
    const ir::Value& v = node.tensor(argument);
    if (v.dtype != query.dtype) return str(argument, " is ", name(v.dtype), " but query is ", name(query.dtype));
    if (v.rank() != 4) return str(argument, " has rank ", v.rank(), ", expected 4");
    if (!v.dims[1].is_static() || !v.dims[3].is_static())
      return str(argument, " is ", v.str(), ", expected heads and their size to be known");
    if (v.dims[3].max > simd::kMaxHeadSize)
      return str(argument, " has heads of size ", v.dims[3].max, ", at most ", simd::kMaxHeadSize);
  }
  const std::int64_t heads = query.dims[1].min, shared = node.tensor("key").dims[1].min;
  if (shared <= 0 || heads % shared != 0) return str(heads, " query heads cannot be divided among ", shared);
  const ir::Value& position = node.tensor("cache_position");
  if (position.dtype != DType::i64 || position.rank() != 2) return str("cache_position is ", position.str());
  if (node.has("bias") && (node.tensor("bias").dtype != DType::f32 || node.tensor("bias").rank() != 2))
    return str("bias is ", node.tensor("bias").str(), ", expected f32 [heads, distances]");
  if (node.has("sinks") && node.tensor("sinks").dtype != DType::f32)
    return str("sinks are ", name(node.tensor("sinks").dtype), ", expected f32");
  if (node.has("blocks")) {
    const ir::Value& blocks = node.tensor("blocks");
    if (blocks.dtype != DType::i64 || blocks.rank() != 3)
      return str("blocks are ", blocks.str(), ", expected i64 [B, T, 2]");
    if (node.has("bias")) return "a bias depends on how far back a key is, and tokens of a block see those ahead";
    if (node.constant("chunk") != 0) return "tokens of a block would see others than those of their chunk";
  }
  for (const std::string_view argument : {"layer", "window", "chunk"}) {
    const auto value = node.constant(argument);
    if (!value || *value < 0) return str(argument, " must be known at export and not negative");
  }
  if (node.output().dtype != query.dtype) return str("the output is ", name(node.output().dtype));
  return {};
}

std::vector<Shape> kv_attention_shape(const Call& call) {
  const Shape& q = call.tensor("query").shape();
  const Shape& k = call.tensor("key").shape();
  const Shape& v = call.tensor("value").shape();
  GRAFT_CHECK(InvalidArgument, q.rank() == 4 && k.rank() == 4 && v.rank() == 4,
              "query, key and value must have rank 4");
  GRAFT_CHECK(InvalidArgument, q[3] == k[3] && k[1] == v[1] && k[1] > 0 && q[1] % k[1] == 0, "heads of query ", q.str(),
              ", key ", k.str(), " and value ", v.str(), " do not fit each other");
  const Shape tokens{q[0], q[2]};
  GRAFT_CHECK(
      InvalidArgument,
      Shape({k[0], k[2]}) == tokens && Shape({v[0], v[2]}) == tokens && call.tensor("cache_position").shape() == tokens,
      "query ", q.str(), ", key ", k.str(), ", value ", v.str(), " and cache_position ",
      call.tensor("cache_position").shape().str(), " have different batches or tokens");
  if (call.has("sinks"))
    GRAFT_CHECK(InvalidArgument, call.tensor("sinks").shape() == Shape{q[1]}, "sinks have size ",
                call.tensor("sinks").shape().str(), ", expected one per head of query ", q.str());
  if (call.has("bias"))
    GRAFT_CHECK(InvalidArgument, call.tensor("bias").size(0) == q[1] && call.tensor("bias").size(1) > 0,
                "bias has size ", call.tensor("bias").shape().str(), ", expected a row per head of query ", q.str());
  if (call.has("blocks"))
    GRAFT_CHECK(InvalidArgument, call.tensor("blocks").shape() == Shape({q[0], q[2], 2}), "blocks have size ",
                call.tensor("blocks").shape().str(), ", expected a first and a last position for each token of query ",
                q.str());
  return {Shape{q[0], q[2], q[1], v[3]}};
}

std::vector<Tensor> lower_without_cache(const Call&, std::span<const Shape>, Lowering&) {
  throw InvalidProgram("graft.attention is run with the cache that loading gives it");
}

std::vector<Tensor> lower_cached_attention(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  const Tensor& key_cache = call.tensor("key_cache");
  GRAFT_CHECK(InvalidArgument, shapes[0][0] <= key_cache.size(0), "a batch of ", shapes[0][0],
              " needs as many rows of the cache, the session has ", key_cache.size(0));
  if (out.numel() == 0) return {out};
  const std::int64_t ring_window = call.integer("ring_window"), tokens = shapes[0][1];
  CachedAttentionAttrs attrs;
  attrs.ring = ring_slots(ring_window, lowering.kv());
  attrs.staged = attrs.ring > 0 && tokens > lowering.kv().window_slack ? 1 : 0;
  attrs.history = ring_window - 1;
  attrs.scale = static_cast<float>(call.real("scale"));
  attrs.softcap = static_cast<float>(call.real("softcap"));
  attrs.window = call.integer("window");
  attrs.chunk = call.integer("chunk");
  std::optional<Tensor> blocks;
  if (call.has("blocks")) {
    blocks = lowering.contiguous(call.tensor("blocks"));
    attrs.has_blocks = 1;
    attrs.whole_blocks = call.has("whole_blocks") && call.boolean("whole_blocks") ? 1 : 0;
  }
  const device::CachedAttention there{call.tensor("query"),
                                      call.tensor("key"),
                                      call.tensor("value"),
                                      lowering.contiguous(call.tensor("cache_position")),
                                      key_cache,
                                      call.tensor("value_cache"),
                                      call.has("sinks") ? &call.tensor("sinks") : nullptr,
                                      blocks ? &*blocks : nullptr,
                                      attrs};
  if (!call.has("bias") && device::cached_attention(lowering, there, out)) return {out};
  std::vector<Tensor> inputs;
  for (const std::string_view argument : {"query", "key", "value"})
    inputs.push_back(lowering.with_contiguous_rows(call.tensor(argument)));
  inputs.push_back(lowering.contiguous(call.tensor("cache_position")));
  if (call.has("sinks")) {
    attrs.has_sinks = 1;
    inputs.push_back(lowering.contiguous(call.tensor("sinks")));
  }
  if (call.has("bias")) {
    attrs.has_bias = 1;
    inputs.push_back(lowering.contiguous(call.tensor("bias")));
  }
  if (blocks) inputs.push_back(*blocks);
  const Tensor& value_cache = call.tensor("value_cache");
  if (attrs.staged == 0) {
    lowering.launch(kCachedAttention, std::move(inputs), {out, key_cache, value_cache}, attrs);
    return {out};
  }
  std::vector<Tensor> staged;
  for (const Tensor& cache : {key_cache, value_cache}) {
    inputs.push_back(cache);
    staged.push_back(
        lowering.allocate(cache.dtype(), Shape{shapes[0][0], cache.size(1), attrs.history + tokens, cache.size(3)}));
  }
  const Tensor position = inputs[3];
  lowering.launch(kCachedAttention, std::move(inputs), {out, staged[0], staged[1]}, attrs);
  lowering.launch_at_end(kRingStore, {staged[0], staged[1], position}, {key_cache, value_cache}, 0);
  return {out};
}

std::vector<Shape> cache_positions_shape(const Call& call) {
  std::vector<Shape> shapes = {call.tensor("position").shape(), call.tensor("length").shape()};
  for (const std::string_view more : {"first", "half"})
    if (call.has(more)) shapes.push_back(call.tensor(more).shape());
  return shapes;
}

std::vector<Tensor> lower_cache_positions(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor &position = call.tensor("position"), &length = call.tensor("length");
  GRAFT_CHECK(InvalidArgument, shapes[0][0] <= length.size(0), "a batch of ", shapes[0][0],
              " needs as many rows of the cache, the session has ", length.size(0));
  CachePositionsAttrs attrs;
  attrs.capacity = lowering.kv().length;
  attrs.staged = shapes[0][1] > lowering.kv().window_slack ? 1 : 0;
  std::vector<Tensor> inputs = {lowering.contiguous(position), length}, states = {length}, out;
  for (const Shape& shape : shapes) out.push_back(lowering.allocate(DType::i64, shape));
  if (call.has("first")) {
    const std::vector<std::int64_t> windows = call.integers("windows");
    GRAFT_ASSERT(windows.size() <= attrs.window.size());
    attrs.windows = std::ssize(windows);
    for (std::size_t k = 0; k < windows.size(); ++k) {
      attrs.window[k] = windows[k];
      attrs.slots[k] = ring_slots(windows[k], lowering.kv());
    }
    inputs.push_back(call.tensor("first"));
    states.push_back(call.tensor("first"));
  }
  if (call.has("layer_length")) {
    attrs.layers = call.tensor("layer_length").size(1);
    inputs.push_back(call.tensor("layer_length"));
    states.push_back(call.tensor("layer_length"));
  }
  if (call.has("half")) {
    attrs.recurrent = 1;
    inputs.push_back(call.tensor("half"));
  }
  if (call.has("blocks")) {
    attrs.blocks = 1;
    inputs.push_back(lowering.contiguous(call.tensor("blocks")));
  }
  std::vector<Tensor> written = out;
  written.insert(written.end(), states.begin(), states.end());
  lowering.launch(kCachePositions, std::move(inputs), std::move(written), attrs);
  return out;
}

std::vector<Shape> layer_positions_shape(const Call& call) { return {call.tensor("position").shape()}; }

std::vector<Tensor> lower_layer_positions(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor& lengths = call.tensor("layer_length");
  const Tensor out = lowering.allocate(DType::i64, shapes[0]);
  const LayerPositionsAttrs attrs{call.integer("column"), call.integer("layer")};
  lowering.launch(kLayerPositions, {lowering.contiguous(call.tensor("position")), lengths}, {out, lengths}, attrs);
  return {out};
}

}  // namespace

std::span<const Operator> kv_attention_operators() {
  static constexpr Operator kOperators[] = {
      {"graft.attention.default", refuse_kv_attention, kv_attention_shape, lower_without_cache},
      {"graft.cached_attention", refuse_kv_attention, kv_attention_shape, lower_cached_attention},
      {"graft.cache_positions", nullptr, cache_positions_shape, lower_cache_positions},
      {"graft.layer_positions", nullptr, layer_positions_shape, lower_layer_positions},
  };
  return kOperators;
}

}  // namespace graft
