#pragma once

#include <cstdint>

#include "kernel/kernel.h"
#include "kernel/matmul/low_rank_vec.h"

namespace graft {

// The largest rank: a launch has scratch for so many numbers per row.
inline constexpr std::int64_t kMaxAdapterRank = 4096;

struct AddAdapterAttrs {
  std::int64_t layer = 0;  // index into the lists of KernelContext::adapters
  std::int64_t most_rank = 0;
  std::int64_t batch = 0;  // rows of the batch that the operands' rows are of, equally many each; 0: not known
};

// What the adapters of a run add to a product. Inputs: the product [rows, out] and its operand [rows, in], f32, f16 or
// bf16, with contiguous rows. Output: the sum [rows, out], which may be the first input's memory; nothing is written
// then where no row has an adapter. Scratch: add_adapter_scratch_bytes().
extern const Kernel kAddAdapter;

inline std::int64_t add_adapter_scratch_bytes(const AddAdapterAttrs& attrs, std::int64_t rows) {
  return rows * attrs.most_rank * static_cast<std::int64_t>(sizeof(float));
}

// The same with the kernels of a given instruction set.
void run_add_adapter(const KernelContext& ctx, const simd::LowRankTable& table) noexcept;

}  // namespace graft
