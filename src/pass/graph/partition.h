#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

// Cuts a method where sizes depend on data. A plan is made for a graph whose sizes follow from those of its inputs; a
// host operator (op/host.h) or a node of control flow makes values whose sizes do not. What does not need such a value
// stays in the first graph, what does goes into the next one: as many graphs as the longest chain of such nodes
// has, plus one. A method without such nodes is one graph, the one it was.
namespace graft {

// One thing after another that a run of a cut method does.
struct Step {
  enum class Kind : std::uint8_t { plan, host, cond, loop };
  Kind kind = Kind::plan;
  // plan: the part. cond: the part for true, then that for false. loop: the condition, then the body.
  std::vector<std::uint32_t> parts;
  // plan, cond, loop: what the parts take, by position: values of the method or numbers. loop: the carried ones first.
  std::vector<ir::Arg> inputs;
  ir::Arg predicate;                  // cond
  ir::Op op;                          // host
  ir::Node node;                      // all but plan
  std::vector<ir::ValueId> outputs;   // values of the method that the step makes
  std::vector<ir::Value> results;     // host: these, as the program declares them
  std::vector<ir::ValueId> finished;  // values that nothing needs after the step
};

// A graph to plan, or the way through others.
struct Part {
  ir::Program graph;        // one method; of a cut one its signature alone: inputs, outputs and values, no nodes
  std::vector<Step> steps;  // empty: the graph is planned as it is
};

struct PartitionOptions {
  // Nodes that could run before a cut and that nothing before the cut's other side needs run behind it when they are at
  // most so many: values that would cross are fewer, and a graph may vanish. 0: never.
  std::size_t merge = 4;
};

// Parts of a program with one method: the method itself first, then what steps name. `program` is valid, every operator
// accepted, and its masks are expanded. Throws Unsupported for a cut method with a cache of keys and values.
std::vector<Part> partition(ir::Program program, const PartitionOptions& options = {});

// Replaces masks that index by the positions where they are true: data-dependent sizes that a cut can be made at.
std::size_t expand_masks(ir::Program& program);

}  // namespace graft
