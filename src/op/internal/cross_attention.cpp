// Cross-attention: keys and values of the encoder output for each decoder layer, stored once and read by each run of
// the decoder. The exporter's custom ops, and the ops that src/pass/graph/encoder_cache.cpp makes of them.
#include <vector>

#include "base/check.h"
#include "kernel/attention/cross_attention.h"
#include "lowering/lowering.h"
#include "op/operator.h"

namespace graft {
namespace {

bool has_kernel(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

Refusal refuse_heads(const ir::Value& v, std::string_view argument) {
  if (!has_kernel(v.dtype)) return str(argument, " is ", name(v.dtype), ", expected f32, f16 or bf16");
  if (v.rank() != 4) return str(argument, " has rank ", v.rank(), ", expected 4");
  if (!v.dims[1].is_static() || !v.dims[3].is_static())
    return str(argument, " is ", v.str(), ", expected heads and their size to be known");
  if (v.dims[3].max > simd::kMaxHeadSize)
    return str(argument, " has heads of size ", v.dims[3].max, ", at most ", simd::kMaxHeadSize);
  return {};
}

Refusal refuse_layer(const NodeView& node) {
  const auto layer = node.constant("layer");
  return layer && *layer >= 0 ? Refusal() : Refusal("layer must be known at export and not negative");
}

Refusal refuse_store(const NodeView& node) {
  const ir::Value &key = node.tensor("key"), &value = node.tensor("value"), &position = node.tensor("position");
  for (const std::string_view argument : {"key", "value"})
    if (const Refusal reason = refuse_heads(node.tensor(argument), argument); !reason.empty()) return reason;
  if (key.dtype != value.dtype || key.dims[1].min != value.dims[1].min || key.dims[3].min != value.dims[3].min)
    return str("key is ", key.str(), " and value ", value.str(), ", expected the same heads");
  if (position.dtype != DType::i64 || position.rank() != 2) return str("position is ", position.str());
  return refuse_layer(node);
}

std::vector<Shape> store_shape(const Call& call) {
  const Shape &k = call.tensor("key").shape(), &v = call.tensor("value").shape();
  const Shape& position = call.tensor("position").shape();
  GRAFT_CHECK(InvalidArgument, k == v && Shape({k[0], k[2]}) == position, "key ", k.str(), ", value ", v.str(),
              " and position ", position.str(), " have different sizes");
  return {position};
}

Refusal refuse_attention(const NodeView& node) {
  const ir::Value& query = node.tensor("query");
  if (const Refusal reason = refuse_heads(query, "query"); !reason.empty()) return reason;
  const auto shared = node.constant("kv_heads");
  if (!shared || *shared <= 0 || query.dims[1].min % *shared != 0)
    return str(query.dims[1].min, " query heads cannot be divided among kv_heads");
  if (node.has("ranges")) {
    const ir::Value& ranges = node.tensor("ranges");
    if (ranges.dtype != DType::i64 || ranges.rank() != 3)
      return str("ranges are ", ranges.str(), ", expected i64 [B, T, 2]");
  }
  return refuse_layer(node);
}

std::vector<Shape> attention_shape(const Call& call) {
  const Shape& q = call.tensor("query").shape();
  if (call.has("ranges"))
    GRAFT_CHECK(InvalidArgument, call.tensor("ranges").shape() == Shape({q[0], q[2], 2}), "ranges have size ",
                call.tensor("ranges").shape().str(), ", expected a first and a last position for each token of query ",
                q.str());
  return {Shape{q[0], q[2], q[1], q[3]}};
}

std::vector<Tensor> lower_without_cache(const Call&, std::span<const Shape>, Lowering&) {
  throw InvalidProgram("what an encoder hands over is stored in the cache that loading gives it");
}

void check_rows(std::int64_t batch, const Tensor& cache) {
  GRAFT_CHECK(InvalidArgument, batch <= cache.size(0), "a batch of ", batch,
              " needs as many rows of the cache, the session has ", cache.size(0));
}

std::vector<Shape> positions_shape(const Call& call) {
  return {call.tensor("position").shape(), call.tensor("length").shape()};
}

std::vector<Tensor> lower_positions(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor& length = call.tensor("length");
  check_rows(shapes[0][0], length);
  const std::vector<Tensor> out = {lowering.allocate(DType::i64, shapes[0]), lowering.allocate(DType::i64, shapes[1])};
  lowering.launch(kSourcePositions, {lowering.contiguous(call.tensor("position"))},
                  {out[0], out[1], length, call.tensor("decoder_length")},
                  SourcePositionsAttrs{lowering.kv().encoder_length, call.boolean("append") ? 1 : 0});
  return out;
}

std::vector<Tensor> lower_store(const Call& call, std::span<const Shape>, Lowering& lowering) {
  const Tensor& position = call.tensor("position");
  check_rows(position.size(0), call.tensor("key_cache"));
  lowering.launch(kStoreEncoderKv,
                  {lowering.with_contiguous_rows(call.tensor("key")),
                   lowering.with_contiguous_rows(call.tensor("value")), lowering.contiguous(position)},
                  {call.tensor("key_cache"), call.tensor("value_cache")}, 0);
  return {position};
}

std::vector<Tensor> lower_attention(const Call& call, std::span<const Shape> shapes, Lowering& lowering) {
  const Tensor out = lowering.allocate(call.output_dtype(), shapes[0]);
  check_rows(shapes[0][0], call.tensor("key_cache"));
  if (out.numel() == 0) return {out};
  std::vector<Tensor> inputs = {lowering.with_contiguous_rows(call.tensor("query")), call.tensor("length"),
                                call.tensor("key_cache"), call.tensor("value_cache")};
  SourceAttentionAttrs attrs{static_cast<float>(call.real("scale"))};
  if (call.has("ranges")) {
    attrs.has_ranges = 1;
    inputs.push_back(lowering.contiguous(call.tensor("ranges")));
  }
  lowering.launch(kCrossAttention, std::move(inputs), {out}, attrs);
  return {out};
}

}  // namespace

std::span<const Operator> cross_attention_operators() {
  static constexpr Operator kOperators[] = {
      {"graft.store_source.default", refuse_store, store_shape, lower_without_cache},
      {"graft.source_attention.default", refuse_attention, attention_shape, lower_without_cache},
      {"graft.source_positions", nullptr, positions_shape, lower_positions},
      {"graft.stored_source", refuse_store, store_shape, lower_store},
      {"graft.stored_source_attention", refuse_attention, attention_shape, lower_attention},
  };
  return kOperators;
}

}  // namespace graft
