#include "pass/graph/passes.h"

#include <algorithm>
#include <vector>

namespace graft {

bool is_kept_at_load(std::int64_t input_bytes, std::int64_t result_bytes) {
  constexpr std::int64_t kAlwaysKept = 64 * 1024;  // bytes
  constexpr std::int64_t kMaxGrowth = 2;
  return result_bytes <= kAlwaysKept || result_bytes / kMaxGrowth + result_bytes % kMaxGrowth <= input_bytes;
}

void drop_dead_nodes(ir::Program& program) {
  for (ir::Method& method : program.methods) {
    std::vector<bool> read(method.values.size(), false);
    const auto mark = [&](ir::ValueId id) { read[id] = true; };
    for (const ir::Output& output : method.outputs) ir::for_each_value(output.arg, mark);
    for (auto node = method.nodes.rbegin(); node != method.nodes.rend(); ++node) {
      const bool writes = program.op_of(*node).target.starts_with("graft.cache");  // the cache, beside its result
      if (!writes && std::ranges::none_of(node->outputs, [&](ir::ValueId id) { return read[id]; })) {
        node->outputs.clear();
        continue;
      }
      ir::for_each_value(*node, mark);
    }
    std::erase_if(method.nodes, [](const ir::Node& node) { return node.outputs.empty(); });
  }
}

void run_passes(ir::Program& program, const UniformWeight& uniform, const PassOptions& options) {
  const auto run = [&](void (*pass)(ir::Program&)) {
    pass(program);
#ifndef NDEBUG
    ir::verify(program);
#endif
  };
  inline_scalars(program, uniform);
  if (!options.on_device) run(fuse_quantized);
  if (!options.on_device) pack_quantized_convolutions(program, uniform);
  run(fuse_rms_norm);
  if (!options.on_device) run(fuse_rope);
  if (!options.on_device) run(pack_convolutions);
  if (!options.on_device && options.pack_linear_layers) pack_linear_layers(program, options.in_bf16);
  ir::verify(program);
}

}  // namespace graft
