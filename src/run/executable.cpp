#include "run/executable.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "run/thread_pool.h"

namespace graft {
namespace {

ggml_type ggml_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return GGML_TYPE_F32;
    case DType::f16:
      return GGML_TYPE_F16;
    case DType::bf16:
      return GGML_TYPE_BF16;
    case DType::f64:
      return GGML_TYPE_F64;
    case DType::i16:
      return GGML_TYPE_I16;
    case DType::i32:
      return GGML_TYPE_I32;
    case DType::i64:
      return GGML_TYPE_I64;
    case DType::i8:
    case DType::u8:
    case DType::b8:
      return GGML_TYPE_I8;
  }
  GRAFT_ASSERT(false);
  return GGML_TYPE_COUNT;
}

// A tensor as ggml describes it: sizes innermost first, strides in bytes, always four of each.
struct GgmlLayout {
  ggml_type type;
  std::int64_t ne[GGML_MAX_DIMS];
  std::size_t nb[GGML_MAX_DIMS];
};

GgmlLayout ggml_layout(const TensorDesc& desc) {
  GgmlLayout out{ggml_type_of(desc.dtype), {1, 1, 1, 1}, {}};
  const std::size_t element = byte_size(desc.dtype);
  std::size_t next = element;
  for (int i = 0; i < GGML_MAX_DIMS; ++i) {
    const int d = desc.rank() - 1 - i;
    if (d >= 0) out.ne[i] = desc.shape[d];
    // The stride of a dimension of size 1 is free; ggml's checks want the row-major one.
    out.nb[i] =
        d >= 0 && out.ne[i] != 1 ? static_cast<std::size_t>(desc.strides[static_cast<std::size_t>(d)]) * element : next;
    next = out.nb[i] * static_cast<std::size_t>(out.ne[i]);
  }
  return out;
}

bool same_layout(const ggml_tensor& tensor, const GgmlLayout& layout) {
  return tensor.type == layout.type && std::equal(layout.ne, layout.ne + GGML_MAX_DIMS, tensor.ne) &&
         std::equal(layout.nb, layout.nb + GGML_MAX_DIMS, tensor.nb);
}

// As ggml stores the parameters of GGML_OP_CUSTOM (ggml_custom_op_params, internal to ggml; checked by a test).
struct CustomParams {
  ggml_custom_op_t fun;
  int n_tasks;
  void* userdata;
};
static_assert(sizeof(CustomParams) <= GGML_MAX_OP_PARAMS);

}  // namespace

bool RunControl::should_stop() {
  if (error.failed()) return true;
  if (cancel && cancel->load(std::memory_order_relaxed)) return true;
  if (has_deadline && std::chrono::steady_clock::now() >= deadline) {
    timed_out = true;
    return true;
  }
  return false;
}

// The userdata of one custom op.
struct Executable::KernelLaunch {
  const Launch* launch = nullptr;
  std::string_view node;
  std::vector<TensorDesc> inputs;
  std::vector<TensorDesc> outputs;
  // Bytes from the data pointer of the ggml tensor that carries the operand to element [0, 0, ...].
  std::vector<std::int64_t> input_deltas;
  std::vector<std::int64_t> output_deltas;
  void* scratch = nullptr;
  LaunchBarrier barrier;
  ErrorSlot* error = nullptr;
};

void Executable::run_kernel(ggml_tensor* dst, int thread, int threads, void* user) {
  auto& launch = *static_cast<KernelLaunch*>(user);
  const void* inputs[GGML_MAX_SRC] = {};
  void* outputs[GGML_MAX_SRC] = {};
  const std::size_t n_in = launch.inputs.size();
  for (std::size_t i = 0; i < n_in; ++i)
    inputs[i] = static_cast<const char*>(dst->src[i]->data) + launch.input_deltas[i];
  outputs[0] = static_cast<char*>(dst->data) + launch.output_deltas[0];
  for (std::size_t i = 1; i < launch.outputs.size(); ++i)
    outputs[i] = static_cast<char*>(dst->src[n_in + i - 1]->data) + launch.output_deltas[i];
  KernelContext context;
  context.thread = thread;
  context.threads = threads;
  context.input_descs = launch.inputs;
  context.output_descs = launch.outputs;
  context.inputs = inputs;
  context.outputs = outputs;
  context.attr_bytes = launch.launch->attrs.data();
  context.scratch_bytes = static_cast<std::byte*>(launch.scratch);
  context.launch_barrier = &launch.barrier;
  context.error = launch.error;
  context.node = launch.node;
  launch.launch->kernel->run(context);
}

// Turns the plan's launches into ggml tensors and a graph.
struct Executable::Builder {
  Executable& self;
  const Plan& plan;
  std::vector<std::vector<RefreshEntry>> by_allocation;
  // Per buffer: the tensor that last wrote it (or the leaf that stands for it) and where that tensor starts in it.
  struct Producer {
    ggml_tensor* tensor = nullptr;
    std::int64_t offset = 0;
    std::vector<std::pair<std::int64_t, ggml_tensor*>> views;  // by offset; valid for this producer
  };
  std::vector<Producer> producers;
  std::vector<ggml_tensor*> order;

  explicit Builder(Executable& executable)
      : self(executable),
        plan(*executable.plan_),
        by_allocation(plan.allocations.size()),
        producers(plan.buffers.size()) {}

  void refresh(BufferId buffer, void** slot, std::int64_t offset) {
    const Buffer& b = plan.buffers[buffer];
    by_allocation[b.allocation].push_back({slot, b.offset + offset});
  }

  ggml_tensor* new_tensor(BufferId buffer, std::int64_t offset, const GgmlLayout& layout, std::string_view label) {
    ggml_tensor* t = ggml_new_tensor(self.context_, layout.type, GGML_MAX_DIMS, layout.ne);
    std::copy(layout.nb, layout.nb + GGML_MAX_DIMS, t->nb);
    const std::size_t length = std::min(label.size(), static_cast<std::size_t>(GGML_MAX_NAME - 1));
    std::memcpy(t->name, label.data(), length);
    t->name[length] = 0;
    refresh(buffer, &t->data, offset);
    return t;
  }

  // The whole buffer as bytes: how kernels of ours see their operands.
  static GgmlLayout bytes_layout(const Buffer& buffer) {
    const std::int64_t n = std::max<std::int64_t>(buffer.bytes, 1);
    return {GGML_TYPE_I8,
            {n, 1, 1, 1},
            {1, static_cast<std::size_t>(n), static_cast<std::size_t>(n), static_cast<std::size_t>(n)}};
  }

  Producer& producer(BufferId buffer) {
    Producer& p = producers[buffer];
    if (!p.tensor) {
      p.tensor = new_tensor(buffer, 0, bytes_layout(plan.buffers[buffer]), name(plan.buffers[buffer].segment));
      p.offset = 0;
    }
    return p;
  }

  ggml_tensor* ggml_operand(const Tensor& t) {
    const GgmlLayout layout = ggml_layout(t.desc);
    Producer& p = producers[t.buffer];
    if (!p.tensor) {  // a leaf: no view needed
      p.tensor = new_tensor(t.buffer, t.offset, layout, name(plan.buffers[t.buffer].segment));
      p.offset = t.offset;
      return p.tensor;
    }
    if (p.offset == t.offset && same_layout(*p.tensor, layout)) return p.tensor;
    for (const auto& [offset, view] : p.views)
      if (offset == t.offset && same_layout(*view, layout)) return view;
    ggml_tensor* view = new_tensor(t.buffer, t.offset, layout, "view");
    if (p.tensor->op != GGML_OP_NONE) {
      view->op = GGML_OP_VIEW;
      view->src[0] = p.tensor;
      view->view_src = p.tensor->view_src ? p.tensor->view_src : p.tensor;
      view->view_offs = static_cast<std::size_t>(t.offset - p.offset);
    }
    p.views.emplace_back(t.offset, view);
    return view;
  }

  void set_producer(BufferId buffer, ggml_tensor* tensor, std::int64_t offset) {
    producers[buffer] = {tensor, offset, {}};
  }

  void add_ggml(const Launch& launch) {
    std::vector<ggml_tensor*> sources;
    for (const Tensor& t : launch.inputs) sources.push_back(ggml_operand(t));
    const Tensor& out = launch.outputs[0];
    ggml_tensor* dst = new_tensor(out.buffer, out.offset, ggml_layout(out.desc), plan.node_names[launch.node]);
    dst->op = static_cast<ggml_op>(launch.ggml_op);
    std::memcpy(dst->op_params, launch.params.data(), sizeof(dst->op_params));
    std::copy(sources.begin(), sources.end(), dst->src);
    set_producer(out.buffer, dst, out.offset);
    order.push_back(dst);
  }

  void add_kernel(const Launch& launch) {
    auto kernel = std::make_unique<KernelLaunch>();
    kernel->launch = &launch;
    kernel->node = plan.node_names[launch.node];
    kernel->error = &self.control_->error;
    std::vector<ggml_tensor*> sources;
    const auto add_source = [&](const Tensor& t, std::vector<std::int64_t>& deltas) {
      const Producer& p = producer(t.buffer);
      sources.push_back(p.tensor);
      deltas.push_back(t.offset - p.offset);
    };
    for (const Tensor& t : launch.inputs) {
      kernel->inputs.push_back(t.desc);
      add_source(t, kernel->input_deltas);
    }
    const Tensor& out = launch.outputs[0];
    kernel->output_deltas.push_back(out.offset);
    for (const Tensor& t : launch.outputs) kernel->outputs.push_back(t.desc);
    for (std::size_t i = 1; i < launch.outputs.size(); ++i) add_source(launch.outputs[i], kernel->output_deltas);
    if (launch.scratch_bytes > 0) refresh(launch.scratch, &kernel->scratch, 0);

    ggml_tensor* dst = new_tensor(out.buffer, 0, bytes_layout(plan.buffers[out.buffer]), plan.node_names[launch.node]);
    dst->op = GGML_OP_CUSTOM;
    const CustomParams params{&Executable::run_kernel, GGML_N_TASKS_MAX, kernel.get()};
    std::memcpy(dst->op_params, &params, sizeof(params));
    std::copy(sources.begin(), sources.end(), dst->src);
    set_producer(out.buffer, dst, 0);
    order.push_back(dst);
    self.kernels_.push_back(std::move(kernel));
  }

  // An upper bound of the tensors needed: one per launch, one per operand (view or leaf).
  std::size_t tensor_bound() const {
    std::size_t n = 0;
    for (const Launch& launch : plan.launches) n += 1 + launch.inputs.size() + launch.outputs.size();
    return n;
  }
};

Executable::Executable(std::shared_ptr<const Plan> plan, int threads, RunControl* control)
    : plan_(std::move(plan)), threads_(threads), control_(control) {
  Builder builder(*this);
  const std::size_t tensors = builder.tensor_bound();
  // Nodes and leafs each have a list of the graph's size.
  const std::size_t graph_size = std::max<std::size_t>(tensors, 1);
  metadata_ = AlignedMemory(tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(graph_size, false));
  context_ = ggml_init({metadata_.size(), metadata_.data(), true});
  GRAFT_CHECK(SystemError, context_, "cannot make a ggml context of ", metadata_.size(), " bytes");

  for (const Launch& launch : plan_->launches) {
    if (launch.kernel) {
      builder.add_kernel(launch);
    } else {
      builder.add_ggml(launch);
    }
  }
  // One expansion per node, in our order: the parents are visited already, so ggml's recursion stays shallow.
  graph_ = ggml_new_graph_custom(context_, graph_size, false);
  for (ggml_tensor* node : builder.order) ggml_build_forward_expand(graph_, node);

  first_entry_.push_back(0);
  for (const std::vector<RefreshEntry>& entries : builder.by_allocation) {
    entries_.insert(entries_.end(), entries.begin(), entries.end());
    first_entry_.push_back(static_cast<std::uint32_t>(entries_.size()));
  }
  last_bases_.assign(plan_->allocations.size(), nullptr);

  if (!plan_->launches.empty()) {
    const ggml_cplan cplan = ggml_graph_plan(graph_, threads_, nullptr);
    work_ = AlignedMemory(cplan.work_size);
  }
}

Executable::~Executable() {
  if (context_) ggml_free(context_);
}

std::size_t Executable::bind(std::span<std::byte* const> bases) {
  GRAFT_ASSERT(bases.size() == last_bases_.size());
  std::size_t rewrites = 0;
  last_level_ = RefreshLevel::none;
  for (std::size_t id = 0; id < bases.size(); ++id) {
    if (bound_ && bases[id] == last_bases_[id]) continue;
    last_bases_[id] = bases[id];
    last_level_ = std::max(last_level_, refresh_level(plan_->allocations[id].segment));
    for (std::uint32_t e = first_entry_[id]; e < first_entry_[id + 1]; ++e)
      *entries_[e].slot = bases[id] ? bases[id] + entries_[e].offset : nullptr;
    rewrites += first_entry_[id + 1] - first_entry_[id];
  }
  bound_ = true;
  return rewrites;
}

void Executable::compute(std::vector<Clock::time_point>* stamps) {
  if (plan_->launches.empty()) return;
  const ThreadPoolLease pool(threads_);
  ggml_cplan cplan{};
  cplan.work_size = work_.size();
  cplan.work_data = reinterpret_cast<std::uint8_t*>(work_.data());
  cplan.n_threads = threads_;
  cplan.threadpool = pool.get();
  cplan.abort_callback = [](void* user) { return static_cast<RunControl*>(user)->should_stop(); };
  cplan.abort_callback_data = control_;
  // ggml polls the callback after every node: the place to take the time when a profile is asked for.
  struct Profile {
    RunControl* control;
    std::vector<Clock::time_point>* stamps;
  } profile{control_, stamps};
  if (stamps) {
    stamps->reserve(plan_->launches.size());
    cplan.abort_callback = [](void* user) {
      auto& p = *static_cast<Profile*>(user);
      if (p.stamps->size() < p.stamps->capacity()) p.stamps->push_back(Clock::now());
      return p.control->should_stop();
    };
    cplan.abort_callback_data = &profile;
  }
  ggml_graph_compute(graph_, &cplan);
}

int Executable::graph_nodes() const { return ggml_graph_n_nodes(graph_); }

}  // namespace graft
