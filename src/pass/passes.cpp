#include "pass/passes.h"

#include <algorithm>
#include <vector>

namespace graft {
namespace {

void mark(const ir::Arg& arg, std::vector<bool>& read) {
  if (arg.is_value()) read[arg.value()] = true;
  for (const ir::Arg& item : arg.items) mark(item, read);
}

}  // namespace

void drop_dead_nodes(ir::Program& program) {
  for (ir::Method& method : program.methods) {
    std::vector<bool> read(method.values.size(), false);
    for (const ir::Output& output : method.outputs) mark(output.arg, read);
    for (auto node = method.nodes.rbegin(); node != method.nodes.rend(); ++node) {
      const bool writes = program.op_of(*node).target.starts_with("graft.cache");  // the cache, beside its result
      if (!writes && std::ranges::none_of(node->outputs, [&](ir::ValueId id) { return read[id]; })) {
        node->outputs.clear();
        continue;
      }
      for (const ir::Arg& arg : node->args) mark(arg, read);
    }
    std::erase_if(method.nodes, [](const ir::Node& node) { return node.outputs.empty(); });
  }
}

void run_passes(ir::Program& program, const ScalarWeight& scalar, bool on_device) {
  const auto run = [&](void (*pass)(ir::Program&)) {
    pass(program);
#ifndef NDEBUG
    ir::verify(program);
#endif
  };
  inline_scalars(program, scalar);
  if (!on_device) run(fuse_quantized);
  run(fuse_rms_norm);
  if (!on_device) run(fuse_rope);
  ir::verify(program);
}

}  // namespace graft
