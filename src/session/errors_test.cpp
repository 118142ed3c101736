#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graft/graft.h"
#include "load/test_graph.h"

// Misuse by callers, by name: the error has its type, its message names the thing, the expected and the found, and the
// next valid call is right. Misuse possible only from Python is in test/python/hostile/errors_test.py.
namespace graft {
namespace {

using ir::Arg;
using test::dynamic;
using test::fixed;
using test::GraphBuilder;
using test::of_int;
using test::tensor;

constexpr std::int64_t kRows = 5;

// The valid call: y = table[ids] * x, ids i64 [n], x f32 [n, 2].
struct Lookup {
  GraphBuilder graph;
  std::shared_ptr<const Program> program;
  std::vector<std::int64_t> ids{4, 0, 1};
  std::vector<float> x = std::vector<float>(6, 2.f);
  std::vector<float> y = std::vector<float>(6);

  explicit Lookup(const LoadOptions& options = {}) {
    const auto n = dynamic(2, 8, "n");
    const auto at = graph.input("ids", DType::i64, {n});
    const auto by = graph.input("x", DType::f32, {n, fixed(2)});
    const auto table = graph.weight("table", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {kRows, 2});
    const auto rows = graph.node("aten.embedding.default",
                                 {{"weight", Arg::of_value(table)},
                                  {"indices", Arg::of_value(at)},
                                  {"padding_idx", of_int(-1)},
                                  {"scale_grad_by_freq", {Arg::Kind::boolean, 0, 0, {}, {}}},
                                  {"sparse", {Arg::Kind::boolean, 0, 0, {}, {}}}},
                                 DType::f32, {n, fixed(2)});
    graph.output(graph.node("aten.mul.Tensor", {{"self", Arg::of_value(rows)}, {"other", Arg::of_value(by)}},
                            DType::f32, {n, fixed(2)}));
    program = graph.build(options);
  }

  Value id_input() { return tensor(ids, DType::i64, {3}); }
  Value x_input() { return tensor(x, {3, 2}); }
  std::vector<Value> inputs() { return {id_input(), x_input()}; }

  bool runs(Session& session) {
    ids = {4, 0, 1};
    std::vector<Value> out{tensor(y, {3, 2})};
    session.run_into("forward", inputs(), out);
    return y == std::vector<float>{16, 18, 0, 2, 4, 6};
  }
};

struct Kind {
  std::string name;
  std::function<void(Lookup&, Session&)> wrong;
  std::vector<std::string> parts;
  std::string_view type = "InvalidArgument";
};

Kind call(std::string name, std::function<std::vector<Value>(Lookup&)> inputs, std::vector<std::string> parts,
          std::string_view type = "InvalidArgument") {
  return {std::move(name), [inputs](Lookup& l, Session& s) { s.run("forward", inputs(l)); }, std::move(parts), type};
}

Value view(DType dtype, const Shape& shape) { return Value::of(TensorView{nullptr, dtype, shape}); }

Kind room(std::string name, std::function<std::vector<Value>(Lookup&)> outputs, std::vector<std::string> parts) {
  return {std::move(name),
          [outputs](Lookup& l, Session& s) {
            std::vector<Value> out = outputs(l);
            s.run_into("forward", l.inputs(), out);
          },
          std::move(parts)};
}

Kind index(std::string name, std::int64_t at) {
  return call(
      std::move(name),
      [at](Lookup& l) {
        l.ids[1] = at;
        return l.inputs();
      },
      {"n0", "index " + std::to_string(at), "dimension 0 of size 5"}, "ExecutionError");
}

std::vector<Kind> kinds() {
  using In = std::vector<Value>;
  return {
      call("no inputs", [](Lookup&) { return In{}; }, {"method 'forward'", "takes 2 inputs", "got 0"}),
      call("missing input", [](Lookup& l) { return In{l.id_input()}; }, {"takes 2 inputs", "got 1"}),
      call("extra input",
           [](Lookup& l) {
             return In{l.id_input(), l.x_input(), l.x_input()};
           },
           {"takes 2", "got 3"}),
      call("dtype of an integer",
           [](Lookup& l) {
             return In{view(DType::i32, {3}), l.x_input()};
           },
           {"'ids'", "must have dtype i64", "got i32"}),
      call("dtype of a float",
           [](Lookup& l) {
             return In{l.id_input(), view(DType::f64, {3, 2})};
           },
           {"'x'", "must have dtype f32", "got f64"}),
      call("rank",
           [](Lookup& l) {
             return In{l.id_input(), tensor(l.x, {6})};
           },
           {"'x'", "rank 2", "f32[6] (rank 1)"}),
      call("rank 0",
           [](Lookup& l) {
             return In{tensor(l.ids, DType::i64, {}), l.x_input()};
           },
           {"'ids'", "rank 1", "rank 0"}),
      call("fixed size",
           [](Lookup& l) {
             return In{l.id_input(), tensor(l.x, {3, 1})};
           },
           {"'x'", "dimension 1 must be 2", "got 1"}),
      call("size above its range",
           [](Lookup&) {
             return In{view(DType::i64, {9}), view(DType::f32, {9, 2})};
           },
           {"'ids'", "in 2..8", "got 9"}),
      call("size below its range",
           [](Lookup&) {
             return In{view(DType::i64, {1}), view(DType::f32, {1, 2})};
           },
           {"'ids'", "in 2..8", "got 1"}),
      call("no elements",
           [](Lookup&) {
             return In{view(DType::i64, {0}), view(DType::f32, {0, 2})};
           },
           {"'ids'", "in 2..8", "got 0"}),
      call("sizes that disagree",
           [](Lookup& l) {
             return In{l.id_input(), tensor(l.x, {2, 2})};
           },
           {"'x'", "must be 3 as that of dimension 0 of input 0 ('ids')", "got 2"}),
      call("number for a tensor",
           [](Lookup& l) {
             return In{l.id_input(), Value::of(std::int64_t{3})};
           },
           {"'x'", "must be a tensor f32", "number"}),
      call("nothing for a tensor",
           [](Lookup& l) {
             return In{l.id_input(), Value{}};
           },
           {"input 1", "must be a tensor"}),
      call("null pointer",
           [](Lookup& l) {
             return In{l.id_input(), view(DType::f32, {3, 2})};
           },
           {"input 1", "pointer is null"}),
      {"rank above 8", [](Lookup&, Session&) { Shape(std::vector<std::int64_t>(9, 1)); }, {"at most 8", "got 9"}},
      {"negative size",
       [](Lookup&, Session&) {
         Shape(std::vector<std::int64_t>{2, -3});
       },
       {"dimension 1", "got -3"}},
      {"bytes beyond 64 bits",
       [](Lookup&, Session&) {
         TensorDesc(DType::f32, Shape{INT64_C(1) << 40, INT64_C(1) << 40});
       },
       {"f32[1099511627776, 1099511627776]", "64 bits"}},
      room("no room for the output", [](Lookup&) { return In{}; }, {"1 output", "got room for 0"}),
      room("output of another dtype",
           [](Lookup&) {
             return In{view(DType::i32, {3, 2})};
           },
           {"output 0", "f32[3, 2]", "got i32[3, 2]"}),
      room("output of another size",
           [](Lookup& l) {
             return In{tensor(l.y, {2, 3})};
           },
           {"output 0", "f32[3, 2]", "got f32[2, 3]"}),
      room("output without memory",
           [](Lookup&) {
             return In{view(DType::f32, {3, 2})};
           },
           {"output 0", "pointer is null"}),
      {"method that is not there",
       [](Lookup& l, Session& s) { s.run("backward", l.inputs()); },
       {"'backward'", "forward"},
       "NotFound"},
      {"arena that is too small",
       [](Lookup& l, Session& s) {
         alignas(64) static thread_local std::byte room[64];
         RunOptions options;
         options.arena = std::span(room).subspan(1, 8);
         s.run("forward", l.inputs(), options);
       },
       {"arena", "64"}},
      {"negative number of threads",
       [](Lookup& l, Session&) {
         SessionOptions options;
         options.threads = -2;
         Session(l.program, options);
       },
       {"threads", "-2"}},
      {"device that is not there",
       [](Lookup&, Session&) {
         LoadOptions options;
         options.device = "warp";
         Lookup wrong(options);
       },
       {"'warp'", "cpu"},
       "NotFound"},
      {"plan of too many bytes",
       [](Lookup& l, Session&) {
         LoadOptions options;
         options.max_plan_bytes = 16;
         Session(Lookup(options).program).run("forward", l.inputs());
       },
       {"method 'forward'", "node n0", "takes 24 bytes", "at most 16", "max_plan_bytes"},
       "Unsupported"},
      {"plan of too many launches",
       [](Lookup& l, Session&) {
         LoadOptions options;
         options.max_plan_launches = 1;
         Session(Lookup(options).program).run("forward", l.inputs());
       },
       {"method 'forward'", "more than 1 launches", "max_plan_launches"},
       "Unsupported"},
      {"closed session",
       [](Lookup& l, Session&) {
         Session closed(l.program);
         closed.close();
         closed.run("forward", l.inputs());
       },
       {"session", "closed"}},
      index("index one beyond the last", kRows),
      index("negative index", -1),
      index("index beyond 32 bits", (INT64_C(1) << 32) + 1),
      index("smallest index", INT64_MIN),
  };
}

// The type's name and the message; empty when nothing was thrown.
std::pair<std::string_view, std::string> error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const InvalidArgument& e) {
    return {"InvalidArgument", e.what()};
  } catch (const NotFound& e) {
    return {"NotFound", e.what()};
  } catch (const Unsupported& e) {
    return {"Unsupported", e.what()};
  } catch (const ExecutionError& e) {
    return {"ExecutionError", e.what()};
  } catch (const Error& e) {
    return {"Error", e.what()};
  }
  return {};
}

TEST(Errors, NameTheThingTheExpectedAndTheFound) {
  Lookup lookup;
  Session session(lookup.program);
  ASSERT_TRUE(lookup.runs(session));
  const std::vector<Kind> all = kinds();
  EXPECT_GE(all.size(), 30u);
  for (const Kind& kind : all) {
    const auto [type, message] = error_of([&] { kind.wrong(lookup, session); });
    EXPECT_EQ(type, kind.type) << kind.name << ": " << message;
    for (const std::string& part : kind.parts) EXPECT_THAT(message, ::testing::HasSubstr(part)) << kind.name;
    EXPECT_TRUE(lookup.runs(session)) << "after " << kind.name;
  }
}

}  // namespace
}  // namespace graft
