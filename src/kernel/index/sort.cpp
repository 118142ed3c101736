#include "kernel/index/sort.h"

#include <algorithm>
#include <bit>

#include "kernel/strided.h"

namespace graft {
namespace {

using Int = std::int64_t;
using simd::BlockClass;

// A key whose unsigned order is the requested one, and the element's index.
struct Entry {
  std::uint64_t key;
  Int place;
  bool operator<(const Entry& other) const { return key != other.key ? key < other.key : place < other.place; }
};

bool by_key(const Entry& a, const Entry& b) { return a.key < b.key; }

constexpr std::uint64_t kSign = std::uint64_t{1} << 63;

std::uint64_t key_of(double x) {
  if (x != x) return ~std::uint64_t{0};
  const auto bits = std::bit_cast<std::uint64_t>(x == 0 ? 0.0 : x);  // -0 equals 0
  return bits & kSign ? ~bits : bits | kSign;
}

std::uint64_t key_of(Int x) { return static_cast<std::uint64_t>(x) ^ kSign; }

template <typename T>
void fill_entries(const std::byte* from, Int stride, Int n, bool descending, simd::LoadFn load, Entry* entries) {
  T block[kBlock];
  for (Int i = 0; i < n; i += kBlock) {
    const Int count = std::min(kBlock, n - i);
    load(from + i * stride, stride, count, block);
    for (Int j = 0; j < count; ++j) {
      const std::uint64_t key = key_of(block[j]);
      entries[i + j] = {descending ? ~key : key, i + j};
    }
  }
}

// A model that picks among equal scores (zeros of a ReLU, say) gives PyTorch's result only where the same ones are
// taken: these are its calls, and the order of equal entries is what libstdc++ leaves in both.
void select(Entry* entries, Int kept, Int n, bool sorted) {
  if (kept * 64 <= n) {
    std::partial_sort(entries, entries + kept, entries + n, by_key);
    return;
  }
  std::nth_element(entries, entries + kept - 1, entries + n, by_key);
  if (sorted) std::sort(entries, entries + kept - 1, by_key);
}

void sort(const KernelContext& ctx) noexcept {
  const auto attrs = ctx.attrs<SortAttrs>();
  const TensorDesc& x = ctx.in(0);
  const auto outputs = static_cast<int>(ctx.output_descs.size());
  const TensorDesc& places = ctx.out(outputs - 1);
  const bool scalar = x.rank() == 0;
  const auto dim = static_cast<std::size_t>(attrs.dim);
  const Int n = scalar ? 1 : x.shape[attrs.dim], kept = scalar ? 1 : places.shape[attrs.dim];
  const auto size = static_cast<Int>(byte_size(x.dtype));

  // Iterates over everything but the sorted dimension.
  TensorDesc lines[3] = {x, ctx.out(0), places};
  const TensorDesc* operands[3];
  Int steps[3] = {};
  for (int k = 0; k < 3; ++k) {
    if (!scalar) {
      steps[k] = lines[k].strides[dim] * static_cast<Int>(byte_size(lines[k].dtype));
      lines[k].shape[attrs.dim] = 1;
    }
    operands[k] = &lines[k];
  }
  const Walk walk = make_walk(operands);
  const Int users = std::min<Int>(ctx.tasks, walk.total);
  if (n == 0 || kept == 0 || ctx.task >= users) return;

  const auto type = is_float(x.dtype) ? BlockClass::f64 : BlockClass::i64;
  const simd::LoadFn load = simd::elementwise().convert->load[static_cast<int>(type)][static_cast<int>(x.dtype)];
  auto* entries = reinterpret_cast<Entry*>(ctx.scratch_bytes) + ctx.task * n;
  Cursor cursor(walk);
  for (Int line = walk.total * ctx.task / users, end = walk.total * (ctx.task + 1) / users; line < end; ++line) {
    cursor.seek(line);
    const std::byte* from = ctx.input<std::byte>(0) + cursor.offset(0);
    if (type == BlockClass::f64) {
      fill_entries<double>(from, steps[0], n, attrs.descending, load, entries);
    } else {
      fill_entries<Int>(from, steps[0], n, attrs.descending, load, entries);
    }
    if (attrs.topk) {
      select(entries, kept, n, attrs.topk_sorted);
    } else {
      std::sort(entries, entries + n);
    }
    std::byte* to = ctx.output<std::byte>(outputs - 1) + cursor.offset(2);
    for (Int i = 0; i < kept; ++i) std::memcpy(to + i * steps[2], &entries[i].place, sizeof(Int));
    if (attrs.indices_only) continue;
    std::byte* values = ctx.output<std::byte>(0) + cursor.offset(1);
    for (Int i = 0; i < kept; ++i)
      std::memcpy(values + i * steps[1], from + entries[i].place * steps[0], static_cast<std::size_t>(size));
  }
}

}  // namespace

const Kernel kSort{"sort", sort};

std::int64_t sort_scratch_bytes(std::int64_t lines, std::int64_t size, int max_threads) {
  return std::min<Int>(lines, max_threads) * size * static_cast<Int>(sizeof(Entry));
}

}  // namespace graft
