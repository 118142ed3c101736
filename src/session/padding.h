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

// Dimensions padded up to listed sizes (SessionOptions::buckets): inputs are copied into larger tensors before a run,
// results cut out of larger ones after it. Numbers that are such a size follow it. Of a method in segments each segment
// is padded: what it computes is handed to other segments as it is, padding included, and to everything else cut back.
class Padding {
 public:
  // Throws InvalidArgument as SessionOptions::buckets says.
  Padding(const ProgramImpl& program, const std::vector<Buckets>& buckets, std::shared_ptr<BlockPool> blocks,
          Counters& counters);

  // Rounds the sizes of a described call up, and records the given ones. Nothing is copied. A call whose inputs do not
  // fit the method is left unchanged, for the usual checks to refuse.
  void round_up(PreparedCall& call) const;
  // The inputs of a padded call, each copied once into memory of the padded size, but for those that `whole` has in
  // that size: results of other segments.
  std::vector<Value> pad(const PreparedCall& call, std::span<const Value> whole = {}) const;
  // The shape of an output without padding.
  Shape cut_shape(const PreparedCall& call, std::size_t output) const;
  // The value of an output that is a number.
  Value number(const PreparedCall& call, std::size_t output) const;
  // Copies the part of a padded output that the caller gets.
  static void cut(const TensorView& padded, const TensorView& to);

 private:
  // Where a method has a dimension that is padded.
  struct Dim {
    std::uint32_t method = 0;
    std::size_t buckets = 0;
    std::vector<std::pair<std::size_t, int>> inputs;  // and dimension; 0 for an input that is the size, a number
    std::vector<std::pair<std::size_t, int>> outputs;
  };
  // The dimension of a method whose size is `expression`.
  void add(std::size_t buckets, std::uint32_t method, const std::string& expression);
  // The same of a method's steps, whose parts are padded too. `owner` begins messages.
  void add_steps(std::size_t buckets, const LoadedMethod& method, const std::string& expression,
                 const std::string& owner);
  void add_inputs(Dim& dim, const std::string& expression, const std::string& owner) const;
  void add_outputs(Dim& dim, const std::string& expression, const std::string& owner) const;
  double number_for(std::uint32_t method, const std::string& input) const;

  const ProgramImpl& program_;
  std::vector<Buckets> buckets_;
  std::shared_ptr<BlockPool> blocks_;
  Counters& counters_;
  std::vector<Dim> dims_;
};

}  // namespace graft
