#include "exec/cpu_graph.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/ggml_cpu.h"
#include "device/ggml_layout.h"
#include "ggml.h"

namespace graft {

struct CpuGraph::Builder {
  CpuGraph& self;
  const Plan& plan;

  ggml_tensor* new_tensor(const Tensor& t, std::string_view label) {
    ggml_tensor* tensor = graft::new_tensor(self.context_, ggml_layout(t));
    const std::size_t length = std::min(label.size(), static_cast<std::size_t>(GGML_MAX_NAME - 1));
    std::memcpy(tensor->name, label.data(), length);
    tensor->name[length] = 0;
    self.addresses_.add(t.buffer, &tensor->data, t.offset);
    return tensor;
  }

  // Operands are leaves: the graph runs in plan order, which respects all dependencies through memory.
  void add(const Launch& launch) {
    ggml_tensor* node = new_tensor(launch.outputs[0], plan.node_names[launch.node]);
    node->op = static_cast<ggml_op>(launch.ggml_op);
    std::memcpy(node->op_params, launch.params.data(), sizeof(node->op_params));
    for (std::size_t i = 0; i < launch.inputs.size(); ++i)
      node->src[i] = new_tensor(launch.inputs[i], name(plan.buffers[launch.inputs[i].buffer].memory));
    // No node is another's parent, so ggml cannot reorder them.
    ggml_build_forward_expand(self.graph_, node);
  }
};

CpuGraph::CpuGraph(const Plan& plan, std::span<const Launch> launches, int threads)
    : threads_(threads), addresses_(plan) {
  std::size_t tensors = 0;
  for (const Launch& launch : launches) tensors += 1 + launch.inputs.size();
  // Nodes and leaves each have an array of the graph's size.
  metadata_ = AlignedMemory(tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(tensors, false));
  context_ = ggml_init({metadata_.size(), metadata_.data(), true});
  GRAFT_CHECK(SystemError, context_, "cannot make a ggml context of ", metadata_.size(), " bytes");
  graph_ = ggml_new_graph_custom(context_, tensors, false);
  Builder builder{*this, plan};
  for (const Launch& launch : launches) {
    GRAFT_ASSERT(!launch.kernel);
    builder.add(launch);
  }
  addresses_.seal();
  work_ = AlignedMemory(ggml_cpu().graph_plan(graph_, threads_, nullptr).work_size);
}

CpuGraph::~CpuGraph() {
  if (context_) ggml_free(context_);
}

void CpuGraph::run(ThreadLease& lease, RunProgress& progress) {
  const ThreadLease::GgmlPool pool = lease.ggml_pool(threads_);
  ggml_cplan cplan{};
  cplan.work_size = work_.size();
  cplan.work_data = reinterpret_cast<std::uint8_t*>(work_.data());
  cplan.n_threads = pool.threads;
  cplan.threadpool = pool.pool;
  // ggml polls it after every node, on its first thread.
  cplan.abort_callback = [](void* data) { return !static_cast<RunProgress*>(data)->after_launch(); };
  cplan.abort_callback_data = &progress;
  ggml_cpu().graph_compute(graph_, &cplan);
}

std::size_t CpuGraph::metadata_bytes() const {
  return sizeof(*this) + metadata_.size() + work_.size() + addresses_.bytes();
}

}  // namespace graft
