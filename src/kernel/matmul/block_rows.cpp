#include "kernel/matmul/block_rows.h"

#include <ggml.h>

#include <string>

#include "kernel/matmul/block_matmul.h"

namespace graft {
namespace {

std::int64_t index_at(const KernelContext& ctx, std::int64_t i) {
  return ctx.in(1).dtype == DType::i32 ? ctx.input<std::int32_t>(1)[i] : ctx.input<std::int64_t>(1)[i];
}

void run_block_rows(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<BlockRowsAttrs>();
  const std::int64_t depth = ctx.out().shape[ctx.out().rank() - 1];
  const std::int64_t row_bytes = block_row_bytes(attrs.type, depth);
  const auto format = attrs.panels != 0 ? readable_panels(attrs.type) : std::nullopt;
  const auto to_float = ggml_get_type_traits(static_cast<ggml_type>(attrs.type))->to_float;
  const auto [begin, end] = ctx.range(ctx.in(1).numel());
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t index = index_at(ctx, i);
    if (index < 0 || index >= attrs.rows)
      return ctx.fail("index ", index, " is out of range for dimension 0 of size ", attrs.rows);
    float* to = ctx.output<float>() + i * depth;
    if (format) {
      unpack_row(*format, ctx.input<std::byte>(0), depth, index, to);
    } else {
      to_float(ctx.input<std::byte>(0) + index * row_bytes, to, depth);
    }
  }
}

}  // namespace

const Kernel kBlockRows = {"block_rows", run_block_rows, 0, nullptr, [](const KernelContext& ctx) {
                             const auto attrs = ctx.attrs<BlockRowsAttrs>();
                             return explain_blocks(attrs.type, attrs.panels != 0);
                           }};

}  // namespace graft
