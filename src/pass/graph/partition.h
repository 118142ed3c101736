#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

// Cuts a method at nodes with data-dependent sizes. A plan needs a graph whose sizes follow from its inputs' sizes; a
// host operator (op/host.h) or control-flow node makes values whose sizes do not. What is independent of such values
// stays in the first graph, what depends on them goes into the next: n such nodes on the longest chain make n + 1
// graphs. A method without such nodes stays one graph.
namespace graft {

// One step of a run of a cut method.
struct Step {
  enum class Kind : std::uint8_t { plan, host, cond, loop };
  Kind kind = Kind::plan;
  // plan: the part. cond: the parts for true and for false. loop: the condition, then the body.
  std::vector<std::uint32_t> parts;
  // plan, cond, loop: inputs of the parts by position: values of the method or numbers. loop: the carried ones first.
  std::vector<ir::Arg> inputs;
  ir::Arg predicate;                  // cond
  ir::Op op;                          // host
  ir::Node node;                      // all but plan
  std::vector<ir::ValueId> outputs;   // values of the method that the step makes
  std::vector<ir::Value> results;     // host: these, as declared by the program
  std::vector<ir::ValueId> finished;  // values not needed after the step
};

// A graph to plan, or the steps of a method that is cut.
struct Part {
  ir::Program graph;        // one method; of a cut one only its signature: inputs, outputs and values, no nodes
  std::vector<Step> steps;  // empty: the graph is planned whole
};

struct PartitionOptions {
  // Nodes that could run before a cut but are needed only after it move behind it if there are at most this many: fewer
  // values cross, and a graph may vanish. 0: never.
  std::size_t merge = 4;
};

// Parts of a program with one method: the method itself first, then those that steps name. `program` must be valid,
// with every operator accepted and its masks expanded. No two parts have one name.
std::vector<Part> partition(ir::Program program, const PartitionOptions& options = {});

// Replaces mask indices by the positions where they are true: data-dependent sizes, at which the method can be cut.
std::size_t expand_masks(ir::Program& program);

}  // namespace graft
