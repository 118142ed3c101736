#include "device/device_graph.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "base/check.h"
#include "device/ggml_layout.h"
#include "ggml.h"

extern "C" uint64_t ggml_graph_next_uid(void);  // of ggml-base, in no public header

namespace graft {
namespace {

// The beginning of ggml's graph, as src/ggml-impl.h of the pinned release has it. Backends take a graph whose number
// they have seen as unchanged, and do not compare its nodes, which took a tenth of a step of a small language model.
struct NumberedGraph {
  int size, n_nodes, n_leafs;
  ggml_tensor **nodes, **grads, **grad_accs, **leafs;
  std::int32_t* use_counts;
  struct {
    std::size_t size;
    std::uint32_t* used;
    ggml_tensor** keys;
  } visited;
  int order;
  std::uint64_t uid;
};

NumberedGraph* numbered(ggml_cgraph* graph) {
  auto* out = reinterpret_cast<NumberedGraph*>(graph);
  GRAFT_ASSERT(out->n_nodes == ggml_graph_n_nodes(graph) && out->size == ggml_graph_size(graph) &&
               out->nodes == ggml_graph_nodes(graph));
  return out;
}

}  // namespace

// Turns the plan's launches into ggml tensors and a graph.
struct DeviceGraph::Builder {
  DeviceGraph& self;
  const Plan& plan;
  std::vector<std::vector<RefreshEntry>> by_allocation;
  // Per buffer: the tensor that last wrote it (or a leaf in its place), and that tensor's offset in it.
  struct Producer {
    ggml_tensor* tensor = nullptr;
    std::int64_t offset = 0;
    std::vector<std::pair<std::int64_t, ggml_tensor*>> views;  // by offset; valid for this producer
  };
  std::vector<Producer> producers;
  std::vector<ggml_tensor*> order;

  Builder(DeviceGraph& graph, const Plan& p)
      : self(graph), plan(p), by_allocation(plan.allocations.size()), producers(plan.buffers.size()) {}

  ggml_tensor* new_tensor(BufferId buffer, std::int64_t offset, const GgmlLayout& layout, std::string_view label) {
    ggml_tensor* t = graft::new_tensor(self.context_, layout);
    const std::size_t length = std::min(label.size(), static_cast<std::size_t>(GGML_MAX_NAME - 1));
    std::memcpy(t->name, label.data(), length);
    t->name[length] = 0;
    const Buffer& b = plan.buffers[buffer];
    by_allocation[b.allocation].push_back({t, b.offset + offset});
    return t;
  }

  ggml_tensor* operand(const Tensor& t) {
    const GgmlLayout layout = ggml_layout(t);
    Producer& p = producers[t.buffer];
    if (!p.tensor) {  // a leaf: no view needed
      p.tensor = new_tensor(t.buffer, t.offset, layout, name(plan.buffers[t.buffer].memory));
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

  void add(const Launch& launch) {
    std::vector<ggml_tensor*> sources;
    for (const Tensor& t : launch.inputs) sources.push_back(operand(t));
    const Tensor& out = launch.outputs[0];
    // Created first, as sources of views must be.
    const std::optional<int> at = destination_source(static_cast<ggml_op>(launch.ggml_op));
    ggml_tensor* destination = at ? new_tensor(out.buffer, out.offset, ggml_layout(out), "destination") : nullptr;
    ggml_tensor* dst = new_tensor(out.buffer, out.offset, ggml_layout(out), plan.node_names[launch.node]);
    dst->op = static_cast<ggml_op>(launch.ggml_op);
    std::memcpy(dst->op_params, launch.params.data(), sizeof(dst->op_params));
    std::copy(sources.begin(), sources.end(), dst->src);
    if (destination) dst->src[*at] = dst->view_src = destination;
    // ggml's backends fuse neighbouring nodes and then skip intermediate results, unless they are outputs of the graph.
    if (launch.leaves_graph) dst->flags |= GGML_TENSOR_FLAG_OUTPUT;
    set_producer(out.buffer, dst, out.offset);
    order.push_back(dst);
  }
};

DeviceGraph::DeviceGraph(const Plan& plan, std::span<const std::uint32_t> launches) {
  Builder builder(*this, plan);
  // An upper bound of the tensors needed: one per launch, one per operand (view or leaf).
  std::size_t tensors = 0;
  for (const std::uint32_t i : launches)
    tensors += 1 + plan.launches[i].inputs.size() + plan.launches[i].outputs.size();
  // Nodes and leaves each have an array of the graph's size.
  const std::size_t graph_size = std::max<std::size_t>(tensors, 1);
  metadata_ = AlignedMemory(tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(graph_size, false));
  context_ = ggml_init({metadata_.size(), metadata_.data(), true});
  GRAFT_CHECK(SystemError, context_, "cannot make a ggml context of ", metadata_.size(), " bytes");

  for (const std::uint32_t i : launches) {
    GRAFT_ASSERT(!plan.launches[i].kernel && plan.launches[i].on_device);
    builder.add(plan.launches[i]);
  }
  // One expansion per node, in plan order: the parents are visited already, so ggml's recursion stays shallow.
  graph_ = ggml_new_graph_custom(context_, graph_size, false);
  for (ggml_tensor* node : builder.order) ggml_build_forward_expand(graph_, node);
  GRAFT_ASSERT(numbered(graph_)->uid == 0);

  first_entry_.push_back(0);
  for (const std::vector<RefreshEntry>& entries : builder.by_allocation) {
    entries_.insert(entries_.end(), entries.begin(), entries.end());
    first_entry_.push_back(static_cast<std::uint32_t>(entries_.size()));
  }
}

DeviceGraph::~DeviceGraph() {
  if (context_) ggml_free(context_);
}

std::size_t DeviceGraph::rewrite(std::uint32_t allocation, std::byte* base, ggml_backend_buffer_t buffer) {
  for (std::uint32_t e = first_entry_[allocation]; e < first_entry_[allocation + 1]; ++e) {
    ggml_tensor* tensor = entries_[e].tensor;
    tensor->data = base + entries_[e].offset;
    tensor->buffer = buffer;
    const ggml_status status = ggml_backend_buffer_init_tensor(buffer, tensor);
    GRAFT_CHECK(SystemError, status == GGML_STATUS_SUCCESS, ggml_backend_buffer_name(buffer), " cannot hold tensor ",
                tensor->name, ": ", ggml_status_to_string(status));
  }
  numbered(graph_)->uid = ggml_graph_next_uid();
  return first_entry_[allocation + 1] - first_entry_[allocation];
}

int DeviceGraph::nodes() const { return ggml_graph_n_nodes(graph_); }

}  // namespace graft
