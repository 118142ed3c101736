#pragma once

#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "graft/graft.h"
#include "ir/scalar.h"
#include "lowering/kv_shape.h"
#include "lowering/launch.h"
#include "lowering/tasks.h"

namespace graft {

// What a device other than the CPU can do, which operators query while they are lowered.
class DeviceOps {
 public:
  virtual ~DeviceOps() = default;
  // Whether the device supports this launch of a ggml op with exactly these dtypes, sizes and strides.
  virtual bool supports(const Launch& launch) const = 0;
  // Whether ggml's CPU backend supports it, so that it may run beside graft's kernels instead.
  virtual bool host_supports(const Launch& launch) const = 0;
  // Whether a weight or a state may be used there.
  virtual bool holds(const Buffer&) const { return true; }
  // The CPU itself: ggml's ops are preferred to graft's kernels, and run among them.
  virtual bool is_cpu() const { return false; }
  // Whether sines and cosines are as exact as the CPU's, for angles of any size.
  virtual bool computes_angles() const { return false; }
  // Whether products of f32 and halves are those of f32, unless they may round.
  virtual bool multiplies_halves() const { return false; }
  // Whether attention rounds its operands to f16.
  virtual bool rounds_attention() const { return false; }
  virtual std::int64_t alignment() const = 0;        // of tensors in its memory, bytes
  virtual std::size_t streams() const { return 1; }  // that may run side by side, with events between them
};

// Limits of a plan (LoadOptions::max_plan_bytes and max_plan_launches).
struct PlanLimits {
  std::int64_t bytes = INT64_MAX;
  std::int64_t launches = std::int64_t{1} << 20;
};

// Collects the launches of a plan while operators are lowered. Throws Unsupported beyond the limits.
class Lowering {
 public:
  // `max_threads`: for scratch sizes, the most threads of a run. `device`: null for the CPU.
  explicit Lowering(int max_threads, const DeviceOps* device = nullptr, const KvOptions& kv = {},
                    const PlanLimits& limits = {}, MatmulPrecision matmul_precision = MatmulPrecision::highest,
                    const KvExtent& kv_extent = {})
      : max_threads_(max_threads),
        device_(device),
        kv_(kv),
        kv_extent_(kv_extent),
        limits_(limits),
        matmul_precision_(matmul_precision) {}

  // A new contiguous arena tensor, uninitialized.
  Tensor allocate(DType dtype, const Shape& shape);
  // The same with the order of dimensions in memory of `like`, which has the shape and is dense.
  Tensor allocate_like(DType dtype, const Tensor& like);

  // Launches one of graft's kernels. `inplace` is a bit mask of the inputs whose memory output 0 may take over when
  // nothing reads them later: only for kernels that read each element before they write the one at the same position.
  template <typename Attrs>
  void launch(const Kernel& kernel, std::vector<Tensor> inputs, std::vector<Tensor> outputs, const Attrs& attrs,
              std::int64_t scratch_bytes = 0, std::uint32_t inplace = 0) {
    static_assert(std::is_trivially_copyable_v<Attrs>);
    std::vector<std::byte> bytes(sizeof(Attrs));
    std::memcpy(bytes.data(), &attrs, sizeof(Attrs));
    launch_bytes(kernel, std::move(inputs), std::move(outputs), std::move(bytes), scratch_bytes, inplace);
  }
  void launch(const Kernel& kernel, std::vector<Tensor> inputs, std::vector<Tensor> outputs);

  // Launches a ggml op on the plan's device: false, and nothing launched, when there is no device or it lacks the op.
  // The operator must have checked that ggml's op computes what PyTorch does; it falls back to one of graft's kernels.
  // Operands have rank at most 4 and are passed with their sizes reversed, as ggml orders them.
  bool launch_device(int ggml_op, std::vector<Tensor> inputs, const Tensor& output,
                     const std::array<std::int32_t, 16>& params = {}, std::uint32_t inplace = 0);
  // Whether it would be launched.
  bool device_has(int ggml_op, std::vector<Tensor> inputs, const Tensor& output,
                  const std::array<std::int32_t, 16>& params = {});
  // Whether the device has room for a weight or a state.
  bool device_holds(const Tensor& tensor) const { return device_->holds(sequence_.buffers[tensor.buffer]); }
  bool device_rounds_attention() const { return device_->rounds_attention(); }
  // A state that is the device's: every launch that touches it is there, and it stays there between runs. `all` is its
  // memory there, which may be more than on the host.
  void keep_on_device(const Tensor& all);
  bool has_device() const { return device_ != nullptr; }
  bool plain() const { return device_ && device_->is_cpu(); }
  // Records why ggml's op refuses the node (static storage) in the next launches of graft's kernels for it. Always
  // false.
  bool refused(std::string_view reason) {
    refusal_ = reason;
    return false;
  }

  // The same elements, contiguous in row-major order: the tensor itself when it is, else a copy (made once per tensor).
  Tensor contiguous(const Tensor& tensor);
  // The tensor itself when its last dimension is contiguous, as most kernels need it; else a contiguous copy.
  Tensor with_contiguous_rows(const Tensor& tensor);
  // The same values in another dtype by PyTorch's conversion rules; the tensor itself when it has that dtype.
  Tensor cast(const Tensor& tensor, DType dtype);
  // All bytes of the tensor's buffer, u8 [bytes]: for tensors stored in blocks or panels.
  Tensor bytes_of(const Tensor& tensor) const;
  // Copies `from` into `to` (same shape, any strides, dtype converted).
  void copy(const Tensor& from, const Tensor& to);
  // A new tensor filled with the value, converted as PyTorch converts a Python number.
  Tensor full(DType dtype, const Shape& shape, const Scalar& value);

  // A tensor with the elements of `tensor` that the node may partly overwrite: a copy, or, in a node that updates a
  // state in place, the state itself.
  Tensor writable(const Tensor& tensor);
  // True for a state's own memory. Before the launch that writes there, what it overwrites must be kept and
  // `sequence_.undo*` be called: a run that fails leaves every state as it was.
  bool in_state(const Tensor& tensor) const { return sequence_.buffers[tensor.buffer].memory == MemoryKind::state; }
  // The launch that restores the kept elements. Its operands live to the end of the run.
  template <typename Attrs>
  void undo(const Kernel& kernel, std::vector<Tensor> inputs, std::vector<Tensor> outputs, const Attrs& attrs) {
    const std::size_t mark = sequence_.launches.size();
    launch(kernel, std::move(inputs), std::move(outputs), attrs);
    take_undo(mark);
  }
  void undo_copy(const Tensor& kept, const Tensor& target);

  // A launch that writes states, at the end of the run, when nothing can fail any more.
  template <typename Attrs>
  void launch_at_end(const Kernel& kernel, std::vector<Tensor> inputs, std::vector<Tensor> outputs,
                     const Attrs& attrs) {
    const std::size_t mark = sequence_.launches.size();
    launch(kernel, std::move(inputs), std::move(outputs), attrs);
    hold_back(mark);
  }

  // The largest number of tasks of a phase of a launch; a kernel that steals work has one for each thread.
  int max_tasks() const { return graft::max_tasks(max_threads_); }
  int max_threads() const { return max_threads_; }
  MatmulPrecision matmul_precision() const { return matmul_precision_; }
  const KvOptions& kv() const { return kv_; }  // of the plan's session
  const KvExtent& kv_extent() const { return kv_extent_; }

  // --- used by the planner, not by operators ---
  void begin_node(std::uint32_t node_index, bool updates_state = false) {
    node_ = node_index;
    refusal_ = {};
    updates_state_ = updates_state;
  }
  BufferId add_buffer(const Buffer& buffer);
  // The launches so far.
  LaunchSequence& sequence() { return sequence_; }
  void launch_held_back();

 private:
  void launch_bytes(const Kernel& kernel, std::vector<Tensor> inputs, std::vector<Tensor> outputs,
                    std::vector<std::byte> attrs, std::int64_t scratch_bytes, std::uint32_t inplace);
  void add_launch(Launch launch);
  void take_undo(std::size_t mark);
  void hold_back(std::size_t mark);
  bool copy_on_device(const Tensor& from, const Tensor& to);

  LaunchSequence sequence_;
  std::vector<std::pair<Tensor, Tensor>> contiguous_copies_;  // (strided tensor, its copy)
  std::vector<Launch> held_back_;
  std::uint32_t node_ = 0;
  bool updates_state_ = false;
  int max_threads_;
  const DeviceOps* device_;
  std::string_view refusal_;
  KvOptions kv_;
  KvExtent kv_extent_;
  PlanLimits limits_;
  MatmulPrecision matmul_precision_;
};

// A copy by one of ggml's ops.
bool is_ggml_copy(const Launch& launch);
// Replaces it by graft's kernel, on the CPU.
void copy_on_host(Launch& launch);

// A weight stored as another float dtype, as a tensor of that dtype; any other tensor unchanged.
Tensor as_stored(const Tensor& tensor);

// The bytes that the tensor's elements span, relative to its offset: from the lowest to one past the highest.
struct ByteSpan {
  std::int64_t low = 0;
  std::int64_t high = 0;
};
ByteSpan byte_span(const TensorDesc& desc);

// No gaps and no overlaps, dimensions in any order.
bool is_dense(const TensorDesc& desc);

// View arithmetic on descriptors only; copies nothing, reads no data.
// The same elements with another shape when the strides allow it; nullopt when only a copy can do it.
std::optional<Tensor> try_reshape(const Tensor& tensor, const Shape& shape);
Tensor permuted(const Tensor& tensor,
                std::span<const int> dims);                 // output dim d is input dim dims[d], as torch.permute
Tensor expanded(const Tensor& tensor, const Shape& shape);  // broadcast to `shape`, stride 0 where a size grew
Tensor sliced(const Tensor& tensor, int dim, std::int64_t start, std::int64_t length, std::int64_t step = 1);
// Two tensors of one shape as the fewest dimensions (at least one) that walk both in the same order.
void merge_dims(Tensor& a, Tensor& b);

// Rows (matrices, ...) of the last dims collapsed: [prod of leading sizes, last sizes...]. Tensor must be contiguous.
Tensor collapsed(const Tensor& tensor, int keep_last);

}  // namespace graft
