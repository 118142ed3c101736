#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace graft {

// The linear layers of a program that adapters can change, in the order of the lists that runs get
// (KernelContext::adapters): those of all its methods.
class AdapterLayers {
 public:
  struct Layer {
    std::string module;  // qualified name
    std::int64_t in = 0, out = 0;
  };

  // `most_rank`: LoadOptions::max_adapter_rank.
  explicit AdapterLayers(std::int64_t most_rank) : most_rank_(most_rank) {}

  std::int64_t most_rank() const { return most_rank_; }
  const std::vector<Layer>& list() const { return list_; }
  // Of the layer with this name, which is added if it is not there: by loads alone, a graph that is read again has no
  // new ones.
  std::size_t index_of(const Layer& layer);

 private:
  std::int64_t most_rank_;
  std::vector<Layer> list_;
};

// Behind each product of a tensor of rows with a stored matrix that nothing else reads: graft.add_adapter.
std::size_t add_adapters(ir::Program& program, AdapterLayers& layers);

}  // namespace graft
