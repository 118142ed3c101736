#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "graft/graft.h"
#include "load/program_impl.h"
#include "session/block_pool.h"
#include "session/prepared_call.h"

namespace graft {

// By entry of SessionOptions::buckets, the given size of a run; -1: it is not padded.
using RunSizes = std::vector<std::int64_t>;

// Dimensions padded up to listed sizes (SessionOptions::buckets): inputs are copied into larger tensors before a run,
// results cut out of larger ones after it. Numbers that are such a size follow it. Of a method in segments each segment
// is padded: what it computes is handed to other segments as it is, padding included, and to everything else cut back.
// A size made of the dimension's (2 * n + 1) cannot be cut back: where its data lie depends on what the segment
// computes.
//
// In a method with a cache of keys and values the tokens are padded on their left, where their positions are -1: the
// cache takes no others for padding.
class Padding {
 public:
  // Throws InvalidArgument as SessionOptions::buckets says.
  Padding(const ProgramImpl& program, const std::vector<Buckets>& buckets, std::shared_ptr<BlockPool> blocks,
          Counters& counters);

  // Rounds the sizes of a described call up, and records the given ones. Nothing is copied. A call whose inputs do not
  // fit the method is left unchanged, for the usual checks to refuse. `run`: of a segment, the sizes of the run.
  void round_up(PreparedCall& call, const RunSizes* run = nullptr) const;
  // Of a padded call, for those of its segments.
  RunSizes run_sizes(const PreparedCall& call) const;
  // The inputs of a padded call, each copied once into memory of the padded size, but for those that `whole` has in
  // that size: results of other segments.
  std::vector<Value> pad(const PreparedCall& call, std::span<const Value> whole = {}) const;
  // The shape of an output without padding.
  Shape cut_shape(const PreparedCall& call, std::size_t output) const;
  // The value of an output that is a number.
  Value number(const PreparedCall& call, std::size_t output) const;
  // Copies the part of a padded output that the caller gets.
  void cut(const PreparedCall& call, std::size_t output, const TensorView& padded, const TensorView& to) const;

 private:
  // Where a method has a dimension that is padded.
  struct Dim {
    std::uint32_t method = 0;
    std::size_t buckets = 0;
    std::vector<std::pair<std::size_t, int>> inputs;  // and dimension; 0 for an input that is the size, a number
    std::vector<std::pair<std::size_t, int>> outputs;
    // Of a method with a cache: padding comes first.
    bool left = false;
    std::vector<std::size_t> positions;  // inputs that are the tokens' positions in the cache
    std::vector<std::size_t> indices;    // inputs of indices into the dimension, which count from the padding on
  };
  // The dimension of a method whose size is `expression`.
  void add(std::size_t buckets, std::uint32_t method, const std::string& expression);
  // The same of a method's steps, whose parts are padded too. `whole`: what dims_ has for the method of the package
  // that they are of. `owner` begins messages.
  void add_steps(std::size_t whole, const LoadedMethod& method, const std::string& expression,
                 const std::string& owner);
  // `whole`: of a method as its caller sees it, not of a segment.
  void add_inputs(Dim& dim, const std::string& expression, const std::string& owner, bool whole) const;
  void add_outputs(Dim& dim, const std::string& expression, const std::string& owner, bool whole) const;
  // What a method with a cache needs besides.
  void add_cache(Dim& dim, const std::string& expression, const std::string& owner) const;
  // Indices into a dimension that is padded on its left.
  void move_indices(const PreparedCall& call, std::vector<Value>& inputs) const;
  bool has_cache(std::uint32_t method) const;
  double number_for(const PreparedCall& call, std::size_t input) const;
  // The first element that is no padding, in elements of a contiguous tensor of that shape.
  std::int64_t first_element(const PreparedCall& call, std::size_t value, const Shape& shape,
                             std::vector<std::pair<std::size_t, int>> Dim::*places) const;

  const ProgramImpl& program_;
  std::vector<Buckets> buckets_;
  std::shared_ptr<BlockPool> blocks_;
  Counters& counters_;
  std::vector<Dim> dims_;
};

}  // namespace graft
