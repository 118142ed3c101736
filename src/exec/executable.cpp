#include "exec/executable.h"

#include <algorithm>
#include <cstring>

#include "base/ceil_div.h"
#include "base/check.h"
#include "base/ggml_cpu.h"
#include "device/device_run.h"
#include "exec/ggml_layout.h"
#include "exec/thread_pool.h"
#include "ggml.h"
#include "lowering/tasks.h"

namespace graft {
namespace {

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
  if (has_deadline && Clock::now() >= deadline) {
    timed_out = true;
    return true;
  }
  return false;
}

// A launch of a kernel of ours with its addresses.
struct Executable::KernelLaunch {
  const Launch* launch = nullptr;
  std::string_view node;
  std::vector<TensorDesc> inputs;
  std::vector<TensorDesc> outputs;
  void** operands = nullptr;  // inputs, then outputs: data pointers of element [0, 0, ...]
  void* scratch = nullptr;
  int tasks_per_thread = 0;  // of every thread, in a phase; 0: the thread that comes to the launch runs it alone
  int phases = 1;
};

// Consecutive launches kernels_[begin, end): the userdata of a custom op, and the work of the pool.
struct Executable::Group final : PoolWork {
  Executable& self;
  std::size_t begin;
  std::size_t end;
  // The step under way: a launch that all threads run, and its phase.
  std::size_t current = 0;
  int phase = 0;
  bool running = false;

  Group(Executable& executable, std::size_t first) : self(executable), begin(first), end(first) {}

  void start() {
    current = begin;
    phase = 0;
    running = false;
  }

  int next() noexcept override { return step<false>(); }

  // Finishes the step, does launches that are one thread's work, and stops at the next that all threads run.
  template <bool timed>
  int step() noexcept {
    if (running && ++phase < self.kernels_[current].phases) return open(self.kernels_[current]);
    if (running && !self.after_launch<timed>()) return 0;
    if (running) ++current;
    running = false;
    for (; current < end; ++current) {
      const KernelLaunch& launch = self.kernels_[current];
      if (launch.tasks_per_thread > 0) {
        phase = 0;
        running = true;
        return open(launch);
      }
      for (int p = 0; p < launch.phases; ++p) self.run_task(launch, p, 0, 1);
      if (!self.after_launch<timed>()) return 0;
    }
    return 0;
  }

  int open(const KernelLaunch& launch) noexcept {
    if (launch.launch->kernel->steals_work)
      for (TwoEndedRange& meeting : self.steal_ranges_) meeting.clear();
    return launch.tasks_per_thread;
  }

  void task(int task, int tasks) noexcept override { self.run_task(self.kernels_[current], phase, task, tasks); }
};

// The work of a group in the instrumented loop.
struct Executable::TimedGroup final : PoolWork {
  Group& group;
  explicit TimedGroup(Group& g) : group(g) {}
  int next() noexcept override { return group.step<true>(); }
  void task(int task, int tasks) noexcept override { group.task(task, tasks); }
};

void Executable::run_task(const KernelLaunch& launch, int phase, int task, int tasks) {
  KernelContext context;
  context.task = task;
  context.tasks = tasks;
  context.phase = phase;
  context.input_descs = launch.inputs;
  context.output_descs = launch.outputs;
  context.inputs = launch.operands;
  context.outputs = launch.operands + launch.inputs.size();
  context.attr_bytes = launch.launch->attrs.data();
  context.scratch_bytes = static_cast<std::byte*>(launch.scratch);
  context.error = &control_->error;
  context.random = control_->random;
  context.kv_rows = control_->kv_rows;
  context.node = launch.node;
  context.steal_ranges = tasks > 1 && launch.launch->kernel->steals_work ? steal_ranges_.data() : nullptr;
  launch.launch->kernel->run(context);
}

// Decides whether to go on. One thread at a time. Only the instrumented loop takes the time.
template <bool timed>
bool Executable::after_launch() {
  if constexpr (timed) stamps_->push_back(Clock::now());  // room was reserved
  ++finished_;
  const bool committing = begin_ + finished_ > plan_->commit_begin;  // a launch that cannot fail has written a state
  stop_ = finished_ < launches_.size() && !committing && control_->should_stop();
  return !stop_;
}

void Executable::undo() {
  for (std::size_t i = plan_->undo.size(); i-- > 0;) {
    if (plan_->undo[i].after > finished_) continue;
    const KernelLaunch& launch = kernels_[first_undo_ + i];
    for (int phase = 0; phase < launch.phases; ++phase) run_task(launch, phase, 0, 1);
  }
}

template <bool timed>
void Executable::compute_group(ggml_tensor*, int thread, int, void* user) {
  if (thread != 0) return;  // ggml calls the function on each thread of its pool
  auto& group = *static_cast<Group*>(user);
  group.start();
  if constexpr (timed) {
    TimedGroup work(group);
    group.self.pool_->run(work);
  } else {
    group.self.pool_->run(group);
  }
}

// ggml polls it after every node on its first thread; a group has polled for its own launches.
template <bool timed>
bool Executable::after_node(void* user) {
  auto& self = *static_cast<Executable*>(user);
  const bool is_ggml_op = self.is_ggml_op_[self.next_node_++];
  return is_ggml_op ? !self.after_launch<timed>() : self.stop_;
}

// Groups get the functions of one loop or the other, so that neither has to ask which it is.
template <bool timed>
void Executable::use_loop() {
  for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
    ggml_tensor* node = ggml_graph_node(graph_, i);
    if (node->op != GGML_OP_CUSTOM) continue;
    CustomParams params;
    std::memcpy(&params, node->op_params, sizeof(params));
    params.fun = &Executable::compute_group<timed>;
    std::memcpy(node->op_params, &params, sizeof(params));
  }
}

// Turns the plan's launches into launch records, ggml tensors and a graph.
struct Executable::Builder {
  Executable& self;
  const Plan& plan;
  std::vector<std::vector<RefreshEntry>> by_allocation;
  std::vector<ggml_tensor*> nodes;
  std::size_t next_operand = 0;
  bool group_open = false;

  explicit Builder(Executable& executable)
      : self(executable), plan(*executable.plan_), by_allocation(plan.allocations.size()) {}

  void refresh(BufferId buffer, void** slot, std::int64_t offset) {
    const Buffer& b = plan.buffers[buffer];
    by_allocation[b.allocation].push_back({slot, b.offset + offset});
  }

  ggml_tensor* new_tensor(const Tensor& t, std::string_view label) {
    ggml_tensor* tensor = graft::new_tensor(self.context_, ggml_layout(t));
    const std::size_t length = std::min(label.size(), static_cast<std::size_t>(GGML_MAX_NAME - 1));
    std::memcpy(tensor->name, label.data(), length);
    tensor->name[length] = 0;
    refresh(t.buffer, &tensor->data, t.offset);
    return tensor;
  }

  // Operands are leaves: the graph runs in the order of the plan, which knows all dependencies through memory.
  void add_ggml(const Launch& launch) {
    group_open = false;
    const Tensor& out = launch.outputs[0];
    ggml_tensor* dst = new_tensor(out, plan.node_names[launch.node]);
    dst->op = static_cast<ggml_op>(launch.ggml_op);
    std::memcpy(dst->op_params, launch.params.data(), sizeof(dst->op_params));
    for (std::size_t i = 0; i < launch.inputs.size(); ++i)
      dst->src[i] = new_tensor(launch.inputs[i], name(plan.buffers[launch.inputs[i].buffer].segment));
    nodes.push_back(dst);
    self.is_ggml_op_.push_back(true);
  }

  void open_group() {
    self.groups_.push_back(std::make_unique<Group>(self, self.kernels_.size()));
    ggml_tensor* node = ggml_new_tensor_1d(self.context_, GGML_TYPE_I8, 1);
    node->op = GGML_OP_CUSTOM;
    node->data = self.metadata_.data();  // ggml reads and writes none of it
    const CustomParams params{&Executable::compute_group<false>, 1, self.groups_.back().get()};
    std::memcpy(node->op_params, &params, sizeof(params));
    nodes.push_back(node);
    self.is_ggml_op_.push_back(false);
    group_open = true;
  }

  void add_operand(const Tensor& t) {
    refresh(t.buffer, &self.operands_[next_operand], t.offset);
    ++next_operand;
  }

  void add_kernel(const Launch& launch) {
    if (!group_open) open_group();
    const bool alone = launch.serial || self.threads_ == 1 || self.has_ggml_ops_;
    add_record(launch, alone ? 0 : tasks_per_thread(launch));
    self.groups_.back()->end = self.kernels_.size();
  }

  void add_record(const Launch& launch, int tasks_per_thread) {
    KernelLaunch& kernel = self.kernels_.emplace_back();
    kernel.launch = &launch;
    kernel.tasks_per_thread = tasks_per_thread;
    kernel.node = plan.node_names[launch.node];
    kernel.operands = self.operands_.data() + next_operand;
    for (const Tensor& t : launch.inputs) {
      kernel.inputs.push_back(t.desc);
      add_operand(t);
    }
    for (const Tensor& t : launch.outputs) {
      kernel.outputs.push_back(t.desc);
      add_operand(t);
    }
    if (launch.scratch_bytes > 0) refresh(launch.scratch, &kernel.scratch, 0);

    if (launch.kernel->phases) {
      KernelContext context;
      context.tasks = std::max(1, self.threads_ * tasks_per_thread);
      context.input_descs = kernel.inputs;
      context.output_descs = kernel.outputs;
      context.attr_bytes = launch.attrs.data();
      kernel.phases = launch.kernel->phases(context);
    }
  }
};

Executable::Executable(std::shared_ptr<const Plan> plan, int threads, RunControl* control, SessionDevice* device)
    : Executable(plan, 0, plan->stages.empty() ? static_cast<std::uint32_t>(plan->launches.size()) : 0, threads,
                 control) {
  if (!plan_->stages.empty()) device_run_ = std::make_unique<DeviceRun>(plan_, threads, control, device);
}

Executable::Executable(std::shared_ptr<const Plan> plan, std::uint32_t begin, std::uint32_t end, int threads,
                       RunControl* control)
    : plan_(std::move(plan)),
      begin_(begin),
      launches_(plan_->launches.data() + begin, end - begin),
      threads_(threads),
      control_(control),
      steal_ranges_(static_cast<std::size_t>(ceil_div(threads, 2))) {
  GRAFT_ASSERT(plan_->stages.empty() || plan_->undo.empty());
  std::size_t kernels = 0;
  std::size_t operands = 0;
  std::size_t tensors = 1;  // at most one per ggml operand, and one per group
  for (const Launch& launch : launches_) {
    tensors += launch.kernel ? 0 : 2 + launch.inputs.size();
    operands += launch.kernel ? launch.inputs.size() + launch.outputs.size() : 0;
    kernels += launch.kernel ? 1 : 0;
    has_ggml_ops_ |= launch.kernel == nullptr;
  }
  for (const UndoLaunch& undo : plan_->undo) operands += undo.launch.inputs.size() + undo.launch.outputs.size();
  kernels_.reserve(kernels + plan_->undo.size());  // the refresh table points into both
  operands_.resize(operands);
  // Nodes and leafs each have a list of the graph's size.
  metadata_ = AlignedMemory(tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(tensors, false));
  context_ = ggml_init({metadata_.size(), metadata_.data(), true});
  GRAFT_CHECK(SystemError, context_, "cannot make a ggml context of ", metadata_.size(), " bytes");

  Builder builder(*this);
  for (const Launch& launch : launches_) {
    if (launch.kernel) {
      builder.add_kernel(launch);
    } else {
      builder.add_ggml(launch);
    }
  }
  first_undo_ = kernels_.size();
  for (const UndoLaunch& undo : plan_->undo) builder.add_record(undo.launch, 0);
  // One expansion per node, in our order: no node is another's parent, so ggml has nothing to reorder.
  graph_ = ggml_new_graph_custom(context_, tensors, false);
  for (ggml_tensor* node : builder.nodes) ggml_build_forward_expand(graph_, node);

  first_entry_.push_back(0);
  for (const std::vector<RefreshEntry>& entries : builder.by_allocation) {
    entries_.insert(entries_.end(), entries.begin(), entries.end());
    first_entry_.push_back(static_cast<std::uint32_t>(entries_.size()));
  }
  last_bases_.assign(plan_->allocations.size(), nullptr);

  if (!launches_.empty()) {
    const ggml_cplan cplan = ggml_cpu().graph_plan(graph_, has_ggml_ops_ ? threads_ : 1, nullptr);
    work_ = AlignedMemory(cplan.work_size);
  }
}

Executable::~Executable() {
  if (context_) ggml_free(context_);
}

std::size_t Executable::bind(std::span<std::byte* const> bases) {
  if (device_run_) return device_run_->bind(bases);
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

bool Executable::compute(std::vector<Clock::time_point>* stamps) {
  if (device_run_) return device_run_->compute(stamps);
  finished_ = 0;
  if (launches_.empty()) return true;
  ThreadPool pool(threads_);
  pool_ = &pool;
  stop_ = false;
  ggml_cplan cplan{};
  cplan.work_size = work_.size();
  cplan.work_data = reinterpret_cast<std::uint8_t*>(work_.data());
  cplan.n_threads = has_ggml_ops_ ? threads_ : 1;
  cplan.threadpool = pool.ggml_pool(cplan.n_threads);
  next_node_ = 0;
  cplan.abort_callback = &Executable::after_node<false>;
  cplan.abort_callback_data = this;
  if (stamps) {
    stamps->reserve(stamps->size() + launches_.size());
    stamps_ = stamps;
    use_loop<true>();
    cplan.abort_callback = &Executable::after_node<true>;
    ggml_cpu().graph_compute(graph_, &cplan);
    use_loop<false>();
    stamps_ = nullptr;
  } else {
    ggml_cpu().graph_compute(graph_, &cplan);
  }
  pool_ = nullptr;
  if (finished_ == launches_.size() && !control_->error.failed()) return true;
  undo();
  return false;
}

std::size_t Executable::launches_finished() const { return device_run_ ? device_run_->launches_finished() : finished_; }

int Executable::graph_nodes() const { return device_run_ ? device_run_->graph_nodes() : ggml_graph_n_nodes(graph_); }

std::size_t Executable::metadata_bytes() const {
  if (device_run_) return device_run_->metadata_bytes();
  std::size_t bytes = sizeof(*this) + metadata_.size() + work_.size() + kernels_.size() * sizeof(KernelLaunch) +
                      operands_.size() * sizeof(void*) + entries_.size() * sizeof(RefreshEntry) +
                      first_entry_.size() * sizeof(std::uint32_t) + last_bases_.size() * sizeof(void*) +
                      groups_.size() * (sizeof(Group) + sizeof(void*)) + is_ggml_op_.size() / 8;
  bytes += steal_ranges_.size() * sizeof(TwoEndedRange);
  for (const KernelLaunch& k : kernels_) bytes += (k.inputs.size() + k.outputs.size()) * sizeof(TensorDesc);
  return bytes;
}

}  // namespace graft
