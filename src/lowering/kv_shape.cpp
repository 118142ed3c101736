#include "lowering/kv_shape.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/rethrow.h"
#include "kernel/attention/attention_vec.h"

namespace graft {
namespace {

constexpr std::string_view kTypeNames[] = {"computed", "f32", "f16", "bf16", "q8_0", "q4_0"};

}  // namespace

std::string_view name(KvType type) { return kTypeNames[static_cast<std::size_t>(type)]; }

KvType kv_type_named(std::string_view name) try {
  const auto found = std::ranges::find(kTypeNames, name);
  GRAFT_CHECK(InvalidArgument, found != std::end(kTypeNames),
              "a cache's type must be computed, f32, f16, bf16, q8_0 or q4_0, got '", name, "'");
  return static_cast<KvType>(found - std::begin(kTypeNames));
} catch (...) {
  rethrow_typed();
}

std::int64_t ring_slots(std::int64_t window, const KvOptions& kv) {
  return window > 0 && window - 1 + kv.window_slack < kv.length ? window - 1 + kv.window_slack : 0;
}

TensorDesc state_desc(const ir::State& state, const KvOptions& kv) {
  Shape shape = state.shape;
  if (state.kind == ir::StateKind::plain) return {state.dtype, shape};
  shape[0] = kv.rows;
  if (state.kind != ir::StateKind::kv && state.kind != ir::StateKind::kv_encoder) return {state.dtype, shape};
  const std::int64_t ring = state.windows.empty() ? 0 : ring_slots(state.windows[0], kv);
  shape[2] = state.kind == ir::StateKind::kv_encoder ? kv.encoder_length : ring > 0 ? ring : kv.length;
  switch (kv.type) {
    case KvType::computed:
      return {state.dtype, shape};
    case KvType::f32:
      return {DType::f32, shape};
    case KvType::f16:
      return {DType::f16, shape};
    case KvType::bf16:
      return {DType::bf16, shape};
    case KvType::q8_0:
    case KvType::q4_0:
      break;
  }
  GRAFT_CHECK(InvalidArgument, shape[3] % simd::kBlock == 0, "state '", state.fqn, "' has rows of ", shape[3],
              " elements; a ", name(kv.type), " cache needs a multiple of ", simd::kBlock);
  shape[3] = simd::row_bytes(kv.type == KvType::q8_0 ? simd::RowType::q8_0 : simd::RowType::q4_0, shape[3]);
  return {DType::u8, shape};
}

}  // namespace graft
