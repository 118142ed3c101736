#include "kernel/index/embedding_bag.h"

#include <algorithm>
#include <string>

namespace graft {
namespace {

using i64 = std::int64_t;

template <typename T>
void run(const KernelContext& ctx) {
  const auto attrs = ctx.attrs<EmbeddingBagAttrs>();
  const i64 rows = ctx.in(0).shape[0], columns = ctx.in(0).shape[1], indices = ctx.in(1).shape[0];
  const i64 bags = ctx.out().shape[0];
  const i64 *index = ctx.input<i64>(1), *offset = ctx.input<i64>(2);
  const auto [begin, end] = ctx.range(bags);
  for (i64 bag = begin; bag < end; ++bag) {
    const bool last = bag + 1 == bags;
    const i64 first = offset[bag], past = !last || attrs.last_end ? offset[bag + 1] : indices;
    if ((bag == 0 && first != 0) || first < 0 || first > past || past > indices) {
      ctx.fail("offsets: bag ", bag, " is [", first, ", ", past, ") of ", indices, " indices");
      return;
    }
    T* to = ctx.output<T>() + bag * columns;
    std::fill_n(to, columns, T(0));
    i64 count = 0;
    for (i64 i = first; i < past; ++i) {
      if (index[i] < 0 || index[i] >= rows) {
        ctx.fail("index ", index[i], " is out of range for a table of ", rows, " rows");
        return;
      }
      if (index[i] == attrs.padding) continue;
      const T* from = ctx.input<T>(0) + index[i] * columns;
      if (attrs.mode == BagMode::max) {
        for (i64 c = 0; c < columns; ++c) to[c] = count == 0 || from[c] > to[c] ? from[c] : to[c];
      } else {
        const T weight = attrs.weighted ? ctx.input<T>(3)[i] : T(1);
        for (i64 c = 0; c < columns; ++c) to[c] += weight * from[c];
      }
      ++count;
    }
    if (last && attrs.last_end) count += indices - past;
    if (attrs.mode == BagMode::mean && count > 0)
      for (i64 c = 0; c < columns; ++c) to[c] /= static_cast<T>(count);
  }
}

void embedding_bag(const KernelContext& ctx) noexcept {
  ctx.out().dtype == DType::f64 ? run<double>(ctx) : run<float>(ctx);
}

}  // namespace

const Kernel kEmbeddingBag{"embedding_bag", embedding_bag, 2048};

}  // namespace graft
