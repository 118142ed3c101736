#include "kernel/quantized/quantized.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/ceil_div.h"
#include "kernel/matmul/matmul_vec.h"
#include "kernel/quantized/quantized_weight.h"

namespace graft {
namespace {

using i64 = std::int64_t;

// Rows of the input multiplied with a panel of the weight while that is in the cache.
constexpr i64 kRowsPerUnit = 64;

simd::Epilogue epilogue_of(const KernelContext& ctx, int bias) {
  const TensorDesc& out = ctx.out();
  simd::Epilogue e;
  e.out = ctx.outputs[0];
  e.out_r = out.strides[0];
  e.out_j = out.strides[1];
  if (bias >= 0) {
    e.bias = ctx.inputs[bias];
    e.bias_dtype = ctx.in(bias).dtype;
    e.bias_r = ctx.in(bias).strides[0];
    e.bias_j = ctx.in(bias).strides[1];
  }
  return e;
}

// Offsets in the scratch memory of the integer product.
struct IntegerScratch {
  i64 stride, zero, scale, sum, total;
  IntegerScratch(i64 rows, i64 depth, i64 groups, bool sums) {
    stride = simd::quantized_stride(depth);
    zero = align_64(rows * stride);
    scale = zero + align_64(rows * 4);
    sum = scale + align_64(rows * 4);
    total = sum + (sums ? align_64(rows * groups * 4) : 0);
  }
};

class IntegerProduct {
 public:
  IntegerProduct(const KernelContext& ctx, const QuantizedAttrs& attrs)
      : ctx_(ctx),
        operands_(ctx, attrs, ctx.in(0).shape[1]),
        rows_(ctx.in(0).shape[0]),
        depth_(ctx.in(0).shape[1]),
        columns_(ctx.out().shape[1]),
        scratch_(rows_, depth_, operands_.weight().groups(), operands_.weight().zero != nullptr) {}

  void run() const { ctx_.phase == 0 ? prepare() : multiply(); }

 private:
  template <typename T>
  T* at(i64 offset) const {
    return reinterpret_cast<T*>(ctx_.scratch_bytes + offset);
  }

  void prepare() const {
    const auto [begin, end] = ctx_.range(rows_);
    const i64 groups = operands_.weight().groups();
    for (i64 r = begin; r < end; ++r) {
      std::uint8_t* row = at<std::uint8_t>(r * scratch_.stride);
      copy_as_unsigned(ctx_.input<std::byte>(0) + r * depth_, ctx_.in(0).dtype, depth_, row);
      std::memset(row + depth_, 0, static_cast<std::size_t>(scratch_.stride - depth_));
      at<std::int32_t>(scratch_.zero)[r] = operands_.input_zero(r);
      at<float>(scratch_.scale)[r] = operands_.input_scale(r);
      if (operands_.weight().zero != nullptr)
        sum_groups(row, depth_, operands_.weight().group, at<std::int32_t>(scratch_.sum) + r * groups);
    }
  }

  void multiply() const {
    const simd::QuantizedInput x{at<std::uint8_t>(0), scratch_.stride, at<std::int32_t>(scratch_.zero),
                                 operands_.weight().zero != nullptr ? at<std::int32_t>(scratch_.sum) : nullptr};
    const i64 width = simd::matmul().panel_width, blocks = ceil_div(rows_, kRowsPerUnit);
    const auto [begin, end] = ctx_.range(ceil_div(columns_, width) * blocks);
    for (i64 unit = begin; unit < end; ++unit) {
      const i64 j0 = unit / blocks * width, r0 = unit % blocks * kRowsPerUnit;
      const int count = static_cast<int>(std::min(width, columns_ - j0));
      for (i64 r = r0; r < std::min(r0 + kRowsPerUnit, rows_); r += kQuantizedRows) {
        const int rows = static_cast<int>(std::min<i64>(kQuantizedRows, rows_ - r));
        ctx_.out().dtype == DType::i32 ? write_integers(x, r, rows, j0, count) : write_floats(x, r, rows, j0, count);
      }
    }
  }

  void write_floats(const simd::QuantizedInput& x, i64 r0, int rows, i64 j0, int count) const {
    alignas(64) float sums[kQuantizedRows * kMostPanelColumns];
    const i64 width = simd::matmul().panel_width;
    simd::quantized_products().product(x, operands_.weight(), r0, rows, j0, count, sums, width);
    for (int r = 0; r < rows; ++r) {
      const float scale = at<float>(scratch_.scale)[r0 + r];
      for (int j = 0; j < count; ++j) sums[r * width + j] *= scale;
    }
    simd::matmul().finish(epilogue_of(ctx_, operands_.bias()), sums, r0, rows, j0, count);
  }

  void write_integers(const simd::QuantizedInput& x, i64 r0, int rows, i64 j0, int count) const {
    alignas(64) std::int32_t sums[kQuantizedRows * kMostPanelColumns];
    simd::quantized_products().integers(x, operands_.weight(), r0, rows, j0, count, sums, kMostPanelColumns);
    const TensorDesc& out = ctx_.out();
    for (int r = 0; r < rows; ++r)
      for (int j = 0; j < count; ++j)
        ctx_.output<std::int32_t>()[(r0 + r) * out.strides[0] + (j0 + j) * out.strides[1]] =
            sums[r * kMostPanelColumns + j];
  }

  const KernelContext& ctx_;
  const QuantizedOperands operands_;
  const i64 rows_, depth_, columns_;
  const IntegerScratch scratch_;
};

// Dequantizes panels of the weight to f32 in the thread's own memory, then multiplies in f32.
class FloatProduct {
 public:
  FloatProduct(const KernelContext& ctx, const QuantizedAttrs& attrs)
      : ctx_(ctx), operands_(ctx, attrs, ctx.in(0).shape[1]) {}

  static i64 thread_bytes(i64 rows, i64 depth) {
    const i64 panel = align_64(simd::matmul().panel_width * depth * 4);
    return rows <= simd::kMaxDotRows ? panel : 2 * panel;
  }

  void run() const {
    const simd::MatmulTable& table = simd::matmul();
    const i64 rows = ctx_.in(0).shape[0], depth = ctx_.in(0).shape[1], columns = ctx_.out().shape[1];
    const i64 width = table.panel_width;
    std::byte* mine = ctx_.scratch_bytes + ctx_.task * thread_bytes(rows, depth);
    float* values = reinterpret_cast<float*>(mine);
    float* packed = reinterpret_cast<float*>(mine + align_64(width * depth * 4));
    const simd::Epilogue e = epilogue_of(ctx_, operands_.bias());
    const simd::MatrixView a{ctx_.inputs[0], DType::f32, depth, 1};
    const auto [begin, end] = ctx_.range(ceil_div(columns, width));
    for (i64 panel = begin; panel < end; ++panel) {
      const i64 j0 = panel * width, count = std::min(width, columns - j0);
      for (i64 j = 0; j < count; ++j) simd::affine().dequantize_row(operands_.weight(), j0 + j, values + j * depth);
      simd::Epilogue here = e;
      here.out = static_cast<float*>(e.out) + j0 * e.out_j;
      if (e.bias != nullptr) here.bias = static_cast<const float*>(e.bias) + j0 * e.bias_j;
      if (rows <= simd::kMaxDotRows) {
        // There r is the weight's row, and j the input's.
        std::swap(here.out_r, here.out_j);
        std::swap(here.bias_r, here.bias_j);
        table.dot(static_cast<const float*>(a.data), depth, static_cast<int>(rows), {values, DType::f32, depth, 1},
                  depth, 0, count, here);
        continue;
      }
      const simd::MatrixView v{values, DType::f32, 1, depth};
      table.pack(v, depth, count, 0, 0, depth, packed);
      table.tiles(a, v, packed, depth, count, 0, rows, 0, 1, here);
    }
  }

 private:
  const KernelContext& ctx_;
  const QuantizedOperands operands_;
};

void run_matmul(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<QuantizedAttrs>();
  if (ctx.in(0).dtype == DType::f32) return FloatProduct(ctx, attrs).run();
  IntegerProduct(ctx, attrs).run();
}

int matmul_phases(const KernelContext& ctx) noexcept { return ctx.in(0).dtype == DType::f32 ? 1 : 2; }

void pack_int4(const KernelContext& ctx) noexcept {
  constexpr i64 kHalf = simd::kNibbleBlock / 2;
  const auto [begin, end] = ctx.range(ctx.in(0).numel() / simd::kNibbleBlock);
  const std::int8_t* from = ctx.input<std::int8_t>(0);
  std::uint8_t* to = ctx.output<std::uint8_t>();
  for (i64 block = begin; block < end; ++block) {
    for (i64 i = 0; i < kHalf; ++i) {
      const int low = from[block * simd::kNibbleBlock + i], high = from[block * simd::kNibbleBlock + kHalf + i];
      if (std::min(low, high) < -8 || std::max(low, high) > 7)
        return ctx.fail("a weight of 4 bits has the value ", low < -8 || low > 7 ? low : high, ", expected -8 to 7");
      to[block * kHalf + i] = static_cast<std::uint8_t>((low + 8) | (high + 8) << 4);
    }
  }
}

}  // namespace

const Kernel kQuantizedMatmul = {
    "quantized_matmul", run_matmul, 0, matmul_phases, [](const KernelContext& ctx) {
      const std::string bits = std::to_string(ctx.attrs<QuantizedAttrs>().bits) + "-bit affine weight, ";
      return bits +
             (ctx.in(0).dtype == DType::f32 ? "input f32: products of f32" : "input quantized: products of integers");
    }};
const Kernel kPackInt4 = {"pack_int4", pack_int4};

i64 quantized_matmul_scratch_bytes(const QuantizedAttrs& attrs, const TensorDesc& a, int threads) {
  const i64 rows = a.shape[0], depth = a.shape[1];
  if (a.dtype == DType::f32) return threads * FloatProduct::thread_bytes(rows, depth);
  const bool zeros = attrs.has_weight_zero != 0 || attrs.weight_zero != 0;
  return IntegerScratch(rows, depth, depth / attrs.group, zeros).total;
}

}  // namespace graft
