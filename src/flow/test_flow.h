#pragma once

// Test only: flows of tensors of i64.

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graft/flow.h"
#include "load/test_graph.h"

namespace graft::test {

using Numbers = std::vector<std::int64_t>;

inline Numbers numbers(const Value& value) {
  const auto* data = static_cast<const std::int64_t*>(value.tensor.data);
  return {data, data + value.tensor.shape.numel()};
}

// A tensor [n] that owns its memory.
inline Value owned(Numbers values) {
  auto memory = std::make_shared<Numbers>(std::move(values));
  Value out = Value::of(TensorView{memory->data(), DType::i64, Shape{static_cast<std::int64_t>(memory->size())}});
  out.owner = std::move(memory);
  return out;
}

inline void give(FlowCall& call, std::size_t o, const Numbers& values) {
  const TensorView out = call.make(o, DType::i64, Shape{static_cast<std::int64_t>(values.size())});
  std::memcpy(out.data, values.data(), values.size() * sizeof(std::int64_t));
}

inline std::int64_t mixed(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(3 * static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// Methods on i64[n], n from 1 to 64: out = 3 a + b.
struct MixProgram {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;

  MixProgram() {
    const std::vector<ir::Dim> dims{dynamic(1, 64, "n")};
    const auto a = graph.input("a", DType::i64, dims);
    const auto b = graph.input("b", DType::i64, dims);
    const auto scaled =
        graph.node("aten.mul.Scalar", {{"self", ir::Arg::of_value(a)}, {"other", of_int(3)}}, DType::i64, dims);
    graph.output(graph.node(
        "aten.add.Tensor", {{"self", ir::Arg::of_value(scaled)}, {"other", ir::Arg::of_value(b)}, {"alpha", of_int(1)}},
        DType::i64, dims));
    program = graph.build();
  }

  std::vector<std::shared_ptr<Session>> sessions(std::size_t count = 1) const {
    SessionOptions options;
    options.threads = 1;
    std::vector<std::shared_ptr<Session>> out;
    for (std::size_t i = 0; i < count; ++i) out.push_back(std::make_shared<Session>(program, options));
    return out;
  }
};

// s = 3 s + x with a state s of i64[1]: the result of a run depends on those before and their order.
struct SumProgram {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;

  SumProgram() {
    const auto x = graph.input("x", DType::i64, {fixed(1)});
    const auto s = graph.state("s", DType::i64, {1});
    const auto scaled =
        graph.node("aten.mul.Scalar", {{"self", ir::Arg::of_value(s)}, {"other", of_int(3)}}, DType::i64, {fixed(1)});
    const auto next = graph.node(
        "aten.add.Tensor", {{"self", ir::Arg::of_value(scaled)}, {"other", ir::Arg::of_value(x)}, {"alpha", of_int(1)}},
        DType::i64, {fixed(1)});
    graph.output(next);
    graph.mutate_state(0, next);
    program = graph.build();
  }
};

}  // namespace graft::test
