#include "kernel/matmul/matmul.h"

#include <algorithm>
#include <type_traits>

#include "base/ceil_div.h"

namespace graft {
namespace {

using simd::MatrixView;
using i64 = std::int64_t;

// Packed panels beyond this size no longer stay in the caches; larger operands are packed chunk by chunk.
constexpr i64 kPackedBytes = i64{8} << 20;
// With at most this many rows of S, packing V costs more than reading it with its row gaps.
constexpr i64 kInPlaceRows = 24;
// In shorter dot products, adding up the lanes takes as long as the products.
constexpr i64 kLongSum = 256;

// The last two dims of a tensor as a matrix, and its batch dims.
struct Operand {
  const TensorDesc& desc;
  i64 rows, cols, row, col;

  explicit Operand(const TensorDesc& d)
      : desc(d),
        rows(d.shape[d.rank() - 2]),
        cols(d.shape[d.rank() - 1]),
        row(d.strides[static_cast<std::size_t>(d.rank() - 2)]),
        col(d.strides[static_cast<std::size_t>(d.rank() - 1)]) {
    // The stride of a dimension of size 1 is arbitrary.
    if (rows == 1) row = cols;
    if (cols == 1) col = 1;
    if (cols == 1 && rows > 1 && row == 1) col = rows;
  }
  i64 batch_offset(i64 index) const {
    i64 offset = 0;
    for (int d = desc.rank() - 3; d >= 0; --d) {
      offset += index % desc.shape[d] * desc.strides[static_cast<std::size_t>(d)];
      index /= desc.shape[d];
    }
    return offset;
  }
};

const void* at(const void* base, DType dtype, i64 index) {
  return static_cast<const std::byte*>(base) + index * static_cast<i64>(byte_size(dtype));
}
void* at(void* base, DType dtype, i64 index) {
  return static_cast<std::byte*>(base) + index * static_cast<i64>(byte_size(dtype));
}

// How a product is computed: depends on the operands only.
struct Schedule {
  enum class Mode { nothing, no_sum, dot, tiles };
  Mode mode = Mode::nothing;
  i64 batch = 1, m = 0, n = 0, k = 0;
  bool skinny_is_b = false;   // dot: the small operand is b, its rows are columns of b
  bool widen_skinny = false;  // dot: the small operand is copied to scratch as f32
  bool a_is_vector = false;   // tiles: V is a transposed, S is b transposed
  bool pairs = false;         // tiles: in bf16
  bool packed = false;        // tiles: V is packed
  i64 group = 1;              // tiles: batches packed at once
  i64 panels = 0;             // tiles: panels packed at once
  i64 scratch_bytes = 0;

  i64 panel_bytes(const simd::MatmulTable& table) const {
    return table.panel_width * 4 * (pairs ? ceil_div(k, 2) : k);  // a pair is as large as an f32
  }
};

bool fits_bf16(const TensorDesc& desc, const MatmulAttrs& attrs) {
  return desc.dtype == DType::bf16 || (attrs.in_bf16 != 0 && desc.dtype == DType::f32);
}

Schedule schedule_of(const MatmulAttrs& attrs, const TensorDesc& a_desc, const TensorDesc& b_desc,
                     const MatmulKernels& kernels) {
  const simd::MatmulTable& table = kernels.table;
  const Operand a(a_desc), b(b_desc);
  Schedule s;
  s.m = a.rows;
  s.n = b.cols;
  s.k = a.cols;
  for (int d = 0; d + 2 < a_desc.rank(); ++d) s.batch *= a_desc.shape[d];
  if (s.batch * s.m * s.n == 0) return s;
  if (s.k == 0) {
    s.mode = Schedule::Mode::no_sum;
    return s;
  }
  const bool a_rows = a.col == 1 || s.k == 1;  // rows of a are contiguous
  const bool b_cols = b.row == 1 || s.k == 1;  // columns of b are
  s.pairs = kernels.pairs != nullptr && fits_bf16(a_desc, attrs) && fits_bf16(b_desc, attrs);
  const auto most_rows = [&](DType wide) {
    return byte_size(wide) == 2 && !s.pairs && s.k >= kLongSum ? table.half_dot_rows : simd::kMaxDotRows;
  };
  const bool few_rows = s.m <= most_rows(b_desc.dtype) && b_cols;
  if (few_rows || (s.n <= most_rows(a_desc.dtype) && a_rows)) {
    s.mode = Schedule::Mode::dot;
    s.skinny_is_b = !few_rows;
    s.pairs = false;
    const bool in_place = s.skinny_is_b ? b_desc.dtype == DType::f32 && b_cols : a_desc.dtype == DType::f32 && a_rows;
    s.widen_skinny = !in_place;
    if (s.widen_skinny) s.scratch_bytes = s.batch * (s.skinny_is_b ? s.n : s.m) * s.k * 4;
    return s;
  }
  s.mode = Schedule::Mode::tiles;
  // Transposing the smaller operand is cheaper. A b with contiguous rows is packed without transposing.
  s.a_is_vector = b_cols && (!a_rows || s.m <= s.n);
  const i64 columns = s.a_is_vector ? s.m : s.n;
  const i64 rows = s.a_is_vector ? s.n : s.m;
  const i64 panels = ceil_div(columns, table.panel_width);
  const i64 v_col = s.a_is_vector ? a.row : b.col;
  const DType v_dtype = s.a_is_vector ? a_desc.dtype : b_desc.dtype;
  s.packed = s.pairs || !(rows <= kInPlaceRows && v_dtype == DType::f32 && v_col == 1);
  s.panels = panels;
  if (!s.packed) {
    s.group = s.batch;
    return s;
  }
  const i64 panel_bytes = s.panel_bytes(table);
  s.panels = std::clamp<i64>(kPackedBytes / panel_bytes, std::min<i64>(panels, 8), panels);
  s.group = s.panels < panels ? 1 : std::clamp<i64>(kPackedBytes / (panel_bytes * panels), 1, s.batch);
  s.scratch_bytes = s.group * s.panels * panel_bytes;
  return s;
}

// Divides batch x units work items among the threads; calls f(batch, first, last) for each run of them in one batch.
template <typename F>
void for_units(const KernelContext& ctx, i64 batch, i64 units, F f) {
  const auto [begin, end] = ctx.range(batch * units);
  for (i64 i = begin; i < end;) {
    const i64 item = i / units;
    const i64 last = std::min(end, (item + 1) * units);
    f(item, i - item * units, last - item * units);
    i = last;
  }
}

class Product {
 public:
  Product(const KernelContext& ctx, const MatmulKernels& kernels)
      : ctx_(ctx),
        table_(kernels.table),
        pairs_(kernels.pairs),
        attrs_(ctx.attrs<MatmulAttrs>()),
        s_(schedule_of(attrs_, ctx.in(0), ctx.in(1), kernels)) {}

  // Operands that are widened or packed take two phases: packing each chunk, and its products.
  int phases() const {
    if (s_.mode == Schedule::Mode::dot) return s_.widen_skinny ? 2 : 1;
    if (s_.mode != Schedule::Mode::tiles || !s_.packed) return 1;
    return static_cast<int>(2 * ceil_div(s_.batch, s_.group) * chunks_per_group());
  }

  void run() const {
    switch (s_.mode) {
      case Schedule::Mode::nothing:
        return;
      case Schedule::Mode::no_sum:
        return no_sum();
      case Schedule::Mode::dot:
        return dot();
      case Schedule::Mode::tiles:
        return tiles();
    }
  }

 private:
  // The epilogue of batch `item`. r is the row of the output, or its column when `transposed`.
  simd::Epilogue epilogue(i64 item, bool transposed) const {
    const Operand out(ctx_.out());
    simd::Epilogue e;
    e.alpha = attrs_.alpha;
    e.beta = attrs_.beta;
    e.activation = attrs_.activation;
    e.out_dtype = ctx_.out().dtype;
    e.out = at(ctx_.outputs[0], e.out_dtype, out.batch_offset(item));
    e.out_r = transposed ? out.col : out.row;
    e.out_j = transposed ? out.row : out.col;
    if (attrs_.has_bias != 0) {
      const TensorDesc& desc = ctx_.in(2);
      const Operand bias(desc);
      // The true strides here: that of a dimension of size 1 does not matter, and 0 must stay 0.
      const i64 row = desc.strides[static_cast<std::size_t>(desc.rank() - 2)];
      const i64 col = desc.strides[static_cast<std::size_t>(desc.rank() - 1)];
      e.bias_dtype = desc.dtype;
      e.bias = at(ctx_.inputs[2], e.bias_dtype, bias.batch_offset(item));
      e.bias_r = transposed ? col : row;
      e.bias_j = transposed ? row : col;
    }
    return e;
  }

  MatrixView a(i64 item, bool transposed) const { return view(0, item, transposed); }
  MatrixView b(i64 item, bool transposed) const { return view(1, item, transposed); }
  MatrixView view(int i, i64 item, bool transposed) const {
    const Operand x(ctx_.in(i));
    const DType dtype = ctx_.in(i).dtype;
    const void* data = at(ctx_.inputs[i], dtype, x.batch_offset(item));
    return transposed ? MatrixView{data, dtype, x.col, x.row} : MatrixView{data, dtype, x.row, x.col};
  }

  // K = 0: the tile kernel still has to run the epilogue, so it gets a single step with a zero operand.
  void no_sum() const {
    static constexpr float kZero[simd::kMaxDotRows] = {};
    for_units(ctx_, s_.batch, s_.m, [&](i64 item, i64 first, i64 last) {
      simd::Epilogue e = epilogue(item, false);
      for (i64 j = 0; j < s_.n; ++j) {
        simd::Epilogue column = e;
        column.out = at(e.out, e.out_dtype, j * e.out_j);
        if (e.bias != nullptr) column.bias = at(e.bias, e.bias_dtype, j * e.bias_j);
        table_.dot(kZero, 1, 1, MatrixView{kZero, DType::f32, 0, 1}, 1, first, last, column);
      }
    });
  }

  void dot() const {
    const int skinny_rows = static_cast<int>(s_.skinny_is_b ? s_.n : s_.m);
    const i64 wide_rows = s_.skinny_is_b ? s_.m : s_.n;
    float* scratch = reinterpret_cast<float*>(ctx_.scratch_bytes);
    const auto skinny_of = [&](i64 item) { return s_.skinny_is_b ? b(item, true) : a(item, false); };
    if (s_.widen_skinny && ctx_.phase == 0) {
      for_units(ctx_, s_.batch, skinny_rows, [&](i64 item, i64 first, i64 last) {
        const MatrixView skinny = skinny_of(item);
        for (i64 r = first; r < last; ++r) {
          table_.widen(at(skinny.data, skinny.dtype, r * skinny.row), skinny.dtype, skinny.col, s_.k,
                       scratch + (item * skinny_rows + r) * s_.k);
        }
      });
      return;
    }
    // Whole blocks of dot(): 8 columns for one row, else 6 or 3.
    const i64 unit = skinny_rows == 1 ? 8 : 12;
    for_units(ctx_, s_.batch, ceil_div(wide_rows, unit), [&](i64 item, i64 first, i64 last) {
      MatrixView skinny = skinny_of(item);
      if (s_.widen_skinny) skinny = {scratch + item * skinny_rows * s_.k, DType::f32, s_.k, 1};
      MatrixView wide = s_.skinny_is_b ? a(item, false) : b(item, true);
      wide.col = 1;
      table_.dot(static_cast<const float*>(skinny.data), skinny.row, skinny_rows, wide, s_.k, first * unit,
                 std::min(last * unit, wide_rows), epilogue(item, !s_.skinny_is_b));
    });
  }

  i64 columns() const { return s_.a_is_vector ? s_.m : s_.n; }
  i64 chunks_per_group() const { return ceil_div(ceil_div(columns(), table_.panel_width), s_.panels); }

  void tiles() const {
    const i64 rows = s_.a_is_vector ? s_.n : s_.m;
    const i64 width = table_.panel_width;
    const i64 chunk = s_.packed ? ctx_.phase / 2 : 0;
    const i64 item = chunk / chunks_per_group() * s_.group;
    const i64 panel = chunk % chunks_per_group() * s_.panels;
    const i64 group = std::min(s_.group, s_.batch - item);
    const i64 panels = std::min(s_.panels, ceil_div(columns(), width) - panel);
    const i64 chunk_columns = std::min(columns() - panel * width, panels * width);
    if (s_.packed && ctx_.phase % 2 == 0) return pack(item, group, panel, panels, chunk_columns);
    compute(item, group, panel, panels, chunk_columns, rows);
  }

  // V of batch `item` from column panel * width on.
  MatrixView vector_operand(i64 item, i64 panel) const {
    MatrixView v = s_.a_is_vector ? a(item, true) : b(item, false);
    v.data = at(v.data, v.dtype, panel * table_.panel_width * v.col);
    return v;
  }

  // The packed panels of the x-th batch of its group.
  std::byte* packed_at(i64 x) const { return ctx_.scratch_bytes + x * s_.panels * s_.panel_bytes(table_); }

  void pack(i64 item, i64 group, i64 panel, i64 panels, i64 columns) const {
    constexpr i64 kStep = 128;
    const i64 steps = ceil_div(s_.k, kStep);
    for_units(ctx_, group, panels * steps, [&](i64 x, i64 first, i64 last) {
      const MatrixView v = vector_operand(item + x, panel);
      for (i64 unit = first; unit < last; ++unit) {
        const i64 k = unit % steps * kStep, end = std::min(k + kStep, s_.k);
        if (s_.pairs) {
          pairs_->pack(v, s_.k, columns, unit / steps, k, end, reinterpret_cast<std::uint32_t*>(packed_at(x)));
        } else {
          table_.pack(v, s_.k, columns, unit / steps, k, end, reinterpret_cast<float*>(packed_at(x)));
        }
      }
    });
  }

  void compute(i64 item, i64 group, i64 panel, i64 panels, i64 columns, i64 rows) const {
    const i64 blocks = ceil_div(rows, table_.tile_rows);
    // Whole rows of tiles per task when there are enough of them, else single tiles.
    const bool by_tile = group * blocks < 2 * ctx_.tasks && ctx_.tasks > 1;
    for_units(ctx_, group, by_tile ? blocks * panels : blocks, [&](i64 x, i64 first, i64 last) {
      simd::Epilogue e = epilogue(item + x, s_.a_is_vector);
      e.out = at(e.out, e.out_dtype, panel * table_.panel_width * e.out_j);
      if (e.bias != nullptr) e.bias = at(e.bias, e.bias_dtype, panel * table_.panel_width * e.bias_j);
      const MatrixView s = s_.a_is_vector ? b(item + x, true) : a(item + x, false);
      const MatrixView v = vector_operand(item + x, panel);
      const std::byte* packed = s_.packed ? packed_at(x) : nullptr;
      const auto run = [&](i64 block0, i64 block1, i64 p0, i64 p1) {
        const i64 r0 = block0 * table_.tile_rows, r1 = std::min(block1 * table_.tile_rows, rows);
        if (s_.pairs) {
          pairs_->tiles(s, reinterpret_cast<const std::uint32_t*>(packed), s_.k, columns, r0, r1, p0, p1, e);
        } else {
          table_.tiles(s, v, reinterpret_cast<const float*>(packed), s_.k, columns, r0, r1, p0, p1, e);
        }
      };
      if (!by_tile) return run(first, last, 0, panels);
      for (i64 unit = first; unit < last; ++unit) {
        run(unit / panels, unit / panels + 1, unit % panels, unit % panels + 1);
      }
    });
  }

  const KernelContext& ctx_;
  const simd::MatmulTable& table_;
  const simd::PairProducts* pairs_;  // null unless Schedule::pairs
  const MatmulAttrs attrs_;
  const Schedule s_;
};

std::string explain_sums(const KernelContext& ctx) {
  const Schedule s = schedule_of(ctx.attrs<MatmulAttrs>(), ctx.in(0), ctx.in(1), MatmulKernels());
  const std::string types = std::string(name(ctx.in(0).dtype)) + " x " + std::string(name(ctx.in(1).dtype));
  switch (s.mode) {
    case Schedule::Mode::nothing:
    case Schedule::Mode::no_sum:
      return "nothing to add up";
    case Schedule::Mode::dot:
      return types + ", " + std::to_string(s.skinny_is_b ? s.n : s.m) + " rows: dot products, " + isa_name();
    case Schedule::Mode::tiles:
      break;
  }
  if (s.pairs) return types + ", products in bf16 of " + isa_name() + ", packed per run";
  return types + ", tiles of " + isa_name() + (s.packed ? ", packed per run" : ", read in place");
}

std::string explain_matmul(const KernelContext& ctx) {
  return explain_sums(ctx) + activation_text(ctx.attrs<MatmulAttrs>().activation);
}

i64 work(const KernelContext& ctx) { return ctx.out().numel() * ctx.in(0).shape[ctx.in(0).rank() - 1]; }

void run_matmul_here(const KernelContext& ctx) noexcept { run_matmul(ctx, MatmulKernels()); }
int phases_here(const KernelContext& ctx) noexcept { return matmul_phases(ctx, MatmulKernels()); }

template <typename T>
void plain(const KernelContext& ctx) {
  // Integers wrap as unsigned numbers do; 8 and 16 bits are computed wider and truncated.
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;
  const auto attrs = ctx.attrs<PlainMatmulAttrs>();
  const Operand a(ctx.in(0)), b(ctx.in(1)), out(ctx.out());
  Wide alpha, beta;
  if constexpr (std::is_floating_point_v<T>) {
    alpha = attrs.alpha;
    beta = attrs.beta;
  } else {
    alpha = static_cast<Wide>(attrs.integer_alpha);
    beta = static_cast<Wide>(attrs.integer_beta);
  }
  i64 batch = 1;
  for (int d = 0; d + 2 < ctx.out().rank(); ++d) batch *= ctx.out().shape[d];
  const i64 m = a.rows, n = b.cols, k = a.cols;
  if (m * n == 0) return;
  for_units(ctx, batch, m, [&](i64 item, i64 first, i64 last) {
    const T* ap = ctx.input<T>(0) + a.batch_offset(item);
    const T* bp = ctx.input<T>(1) + b.batch_offset(item);
    T* op = ctx.output<T>() + out.batch_offset(item);
    for (i64 r = first; r < last; ++r) {
      constexpr i64 kColumns = 64;
      for (i64 c0 = 0; c0 < n; c0 += kColumns) {
        const i64 width = std::min(kColumns, n - c0);
        Wide sums[kColumns] = {};
        for (i64 x = 0; x < k; ++x) {
          const Wide value = static_cast<Wide>(ap[r * a.row + x * a.col]);
          const T* row = bp + x * b.row + c0 * b.col;
          for (i64 c = 0; c < width; ++c) sums[c] += value * static_cast<Wide>(row[c * b.col]);
        }
        for (i64 c = 0; c < width; ++c) {
          Wide sum = alpha * sums[c];
          if (attrs.has_bias != 0) {
            const TensorDesc& desc = ctx.in(2);
            const i64 index = Operand(desc).batch_offset(item) +
                              r * desc.strides[static_cast<std::size_t>(desc.rank() - 2)] +
                              (c0 + c) * desc.strides[static_cast<std::size_t>(desc.rank() - 1)];
            sum += beta * static_cast<Wide>(ctx.input<T>(2)[index]);
          }
          op[r * out.row + (c0 + c) * out.col] = static_cast<T>(sum);
        }
      }
    }
  });
}

void run_plain_matmul(const KernelContext& ctx) noexcept {
  switch (ctx.out().dtype) {
    case DType::f64:
      return plain<double>(ctx);
    case DType::i8:
      return plain<std::int8_t>(ctx);
    case DType::u8:
      return plain<std::uint8_t>(ctx);
    case DType::i16:
      return plain<std::int16_t>(ctx);
    case DType::i32:
      return plain<std::int32_t>(ctx);
    case DType::i64:
      return plain<std::int64_t>(ctx);
    default:
      return ctx.fail("matmul: no kernel for this dtype");
  }
}

}  // namespace

std::string activation_text(simd::Activation activation) {
  switch (activation) {
    case simd::Activation::none:
      return "";
    case simd::Activation::relu:
      return ", relu in the epilogue";
    case simd::Activation::silu:
      return ", silu in the epilogue";
    case simd::Activation::gelu_erf:
    case simd::Activation::gelu_tanh:
      return ", gelu in the epilogue";
  }
  return "";
}

bool take_epilogue(MatmulAttrs& attrs, const Epilogue& epilogue) {
  if (epilogue.clamps || attrs.activation != simd::Activation::none) return false;
  attrs.activation = epilogue.activation;
  return true;
}

namespace {

constexpr Fusion kFusion = {.take_epilogue = take_epilogue_of<MatmulAttrs, take_epilogue>};

}  // namespace

const Kernel kMatmul = {.name = "matmul",
                        .run = run_matmul_here,
                        .parallel_from = kMinParallelProducts,
                        .phases = phases_here,
                        .explain = explain_matmul,
                        .work = work,
                        .fusion = &kFusion};
const Kernel kPlainMatmul = {"plain_matmul", run_plain_matmul, 0, nullptr, [](const KernelContext& ctx) {
                               return std::string(name(ctx.out().dtype)) + " has no vector products";
                             }};

std::int64_t matmul_scratch_bytes(const MatmulAttrs& attrs, const TensorDesc& a, const TensorDesc& b) {
  return matmul_scratch_bytes(attrs, a, b, MatmulKernels());
}

std::int64_t matmul_scratch_bytes(const MatmulAttrs& attrs, const TensorDesc& a, const TensorDesc& b,
                                  const MatmulKernels& kernels) {
  return schedule_of(attrs, a, b, kernels).scratch_bytes;
}

void run_matmul(const KernelContext& ctx, const MatmulKernels& kernels) noexcept { Product(ctx, kernels).run(); }

int matmul_phases(const KernelContext& ctx, const MatmulKernels& kernels) noexcept {
  return Product(ctx, kernels).phases();
}

}  // namespace graft
