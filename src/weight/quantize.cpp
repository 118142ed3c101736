#include "graft/quantize.h"

#include <ggml.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/ggml_cpu.h"
#include "base/parallel.h"
#include "base/rethrow.h"
#include "weight/panels.h"
#include "weight/stored.h"

namespace graft {
namespace {

// Elements converted to f32 at a time, because the quantizers read only f32.
constexpr std::int64_t kElementsAtOnce = 1 << 16;

bool is_readable(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

ggml_type type_of(DType dtype) {
  return dtype == DType::f32 ? GGML_TYPE_F32 : dtype == DType::f16 ? GGML_TYPE_F16 : GGML_TYPE_BF16;
}

Stored stored_of(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    if (name == graft::name(dtype)) return Stored::as(dtype);
  if (const std::optional<BlockType> type = find_block_type(name)) {
    GRAFT_CHECK(InvalidArgument, !ggml_quantize_requires_imatrix(static_cast<ggml_type>(*type)), "type ", name,
                " cannot be quantized to without data about importance");
    return Stored::as_blocks(*type);
  }
  throw InvalidArgument(str("type '", name, "' is not known; there are f16, bf16, q8_0, q4_0, q4_K, q6_K and others"));
}

void check_blocks(const Stored& stored, const Shape& shape) {
  if (stored.is_plain()) return;
  const std::string refusal = refuse_blocks(stored.block, shape);
  GRAFT_CHECK(InvalidArgument, refusal.empty(), "a tensor ", shape.str(), " cannot be stored as ", stored.str(), ": ",
              refusal);
}

// Rows [begin, end) of `depth` elements; false if one is infinite or NaN, which blocks cannot hold.
bool quantize_rows(const TensorView& tensor, ggml_type type, std::int64_t begin, std::int64_t end, std::int64_t depth,
                   std::byte* out) {
  const auto* from = static_cast<const std::byte*>(tensor.data);
  const std::size_t row_bytes = ggml_row_size(type, depth);
  const auto to_float = ggml_get_type_traits(type_of(tensor.dtype))->to_float;
  const std::int64_t at_once = std::clamp<std::int64_t>(kElementsAtOnce / depth, 1, end - begin);
  std::vector<float> values(static_cast<std::size_t>(at_once * depth));
  for (std::int64_t row = begin; row < end; row += at_once) {
    const std::int64_t rows = std::min(at_once, end - row);
    const std::byte* at = from + static_cast<std::size_t>(row * depth) * byte_size(tensor.dtype);
    std::byte* to = out + static_cast<std::size_t>(row) * row_bytes;
    if (tensor.dtype == DType::f32) {
      std::memcpy(values.data(), at, static_cast<std::size_t>(rows * depth) * sizeof(float));
    } else {
      to_float(at, values.data(), rows * depth);
    }
    const auto last = values.begin() + rows * depth;
    if (ggml_is_quantized(type) && !std::all_of(values.begin(), last, [](float v) { return std::isfinite(v); }))
      return false;
    ggml_quantize_chunk(type, values.data(), to, 0, rows, depth, nullptr);
  }
  return true;
}

}  // namespace

std::string storable_type(std::string_view wanted, const Shape& shape) try {
  const Stored stored = stored_of(wanted);
  if (stored.is_plain()) return stored.str();
  GRAFT_CHECK(InvalidArgument, shape.rank() > 0, "a number cannot be stored as ", wanted);
  if (refuse_blocks(stored.block, shape).empty()) return stored.str();
  // Formats of 256-element blocks with fewer than five bits per element fall back to four bits.
  const double bits = 8.0 * static_cast<double>(block_row_bytes(stored.block, block_elements(stored.block))) /
                      static_cast<double>(block_elements(stored.block));
  const BlockType small = *find_block_type(bits < 5 ? "q4_0" : "q8_0");
  if (refuse_blocks(small, shape).empty()) return std::string(block_type_name(small));
  return std::string(name(DType::f16));
} catch (...) {
  rethrow_typed();
}

std::uint64_t stored_byte_count(std::string_view type, const Shape& shape) try {
  const Stored stored = stored_of(type);
  check_blocks(stored, shape);
  return stored_bytes(stored, shape);
} catch (...) {
  rethrow_typed();
}

void quantize(const TensorView& tensor, std::string_view type, std::span<std::byte> out, int threads) try {
  const Stored stored = stored_of(type);
  GRAFT_CHECK(InvalidArgument, is_readable(tensor.dtype), "a tensor to be quantized must be f32, f16 or bf16, got ",
              name(tensor.dtype));
  GRAFT_CHECK(InvalidArgument, threads > 0, "threads must be positive, got ", threads);
  const std::uint64_t bytes = stored_byte_count(type, tensor.shape);
  GRAFT_CHECK(InvalidArgument, out.size() == bytes, tensor.shape.str(), " stored as ", stored.str(), " takes ", bytes,
              " bytes, the output has ", out.size());
  if (bytes == 0) return;
  GRAFT_CHECK(InvalidArgument, tensor.data, "the tensor to be quantized is null");
  const std::int64_t depth = tensor.shape.rank() == 0 ? 1 : tensor.shape[tensor.shape.rank() - 1];
  const std::int64_t rows = tensor.shape.numel() / depth;
  const ggml_type target = stored.is_plain() ? type_of(stored.dtype) : static_cast<ggml_type>(stored.block);
  ggml_quantize_init(target);
  ggml_cpu();  // initializes the tables for conversions from f16
  const std::int64_t parts = std::min<std::int64_t>(threads, rows);
  std::atomic<bool> finite = true;
  in_parallel(static_cast<int>(parts), [&](std::int64_t i) {
    if (!quantize_rows(tensor, target, rows * i / parts, rows * (i + 1) / parts, depth, out.data())) finite = false;
  });
  GRAFT_CHECK(InvalidArgument, finite, "a tensor with infinite values or NaN cannot be stored as ", stored.str());
} catch (...) {
  rethrow_typed();
}

std::uint64_t packed_byte_count(std::string_view type, const Shape& shape) try {
  const Stored stored = stored_of(type);
  if (stored.is_plain() || !refuse_panels(stored.block, shape).empty()) return 0;
  return stored_bytes({Stored::Kind::panels, DType::f32, stored.block}, shape);
} catch (...) {
  rethrow_typed();
}

void pack_blocks(std::span<const std::byte> blocks, std::string_view type, const Shape& shape,
                 std::span<std::byte> out) try {
  const std::uint64_t packed = packed_byte_count(type, shape), bytes = stored_byte_count(type, shape);
  GRAFT_CHECK(InvalidArgument, packed > 0 && blocks.size() == bytes && out.size() == packed, shape.str(), " in ", type,
              " takes ", bytes, " bytes and packed ", packed, ", got ", blocks.size(), " and an output of ",
              out.size());
  const auto [rows, depth] = matrix_size(shape);
  pack_panels(*panel_format_of(*find_block_type(type)), blocks.data(), rows, depth, out.data(), 1);
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
