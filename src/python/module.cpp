#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "graft/graft.h"
#include "graft/op.h"
#include "graft/predicate.h"
#include "graft/quantize.h"
#include "package/package.h"
#include "python/values.h"

// The Python binding: numbers and addresses in, numbers and addresses out. Tensors are made and owned by torch; but for
// TorchMethod this module never sees one, only (address, dtype, sizes).
namespace nb = nanobind;

namespace graft {
namespace {

std::span<const std::byte> bytes_of(const nb::bytes& data) {
  return {reinterpret_cast<const std::byte*>(data.c_str()), data.size()};
}

// Text with paths in it, which may hold bytes that are not UTF-8.
nb::object text_of(const std::string& text) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

// graft.errors defines the Python classes, so that each also derives from the matching built-in exception.
void raise_as(const char* name, const std::exception& e) {
  const nb::object type = nb::module_::import_("graft.errors").attr(name);
  // A path in the message may hold bytes that are not UTF-8.
  const nb::object message =
      nb::steal(PyUnicode_DecodeUTF8(e.what(), static_cast<Py_ssize_t>(std::strlen(e.what())), "backslashreplace"));
  PyErr_SetObject(type.ptr(), message.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const InvalidArgument& e) {
    raise_as("InvalidArgument", e);
  } catch (const InvalidProgram& e) {
    raise_as("InvalidProgram", e);
  } catch (const Unsupported& e) {
    raise_as("Unsupported", e);
  } catch (const NotFound& e) {
    raise_as("NotFound", e);
  } catch (const OutOfMemory& e) {
    raise_as("OutOfMemory", e);
  } catch (const SystemError& e) {
    raise_as("SystemError", e);
  } catch (const Busy& e) {
    raise_as("Busy", e);
  } catch (const Unavailable& e) {
    raise_as("Unavailable", e);
  } catch (const ExecutionError& e) {
    raise_as("ExecutionError", e);
  } catch (const Cancelled& e) {
    raise_as("Cancelled", e);
  } catch (const InternalError& e) {
    raise_as("InternalError", e);
  } catch (const Error& e) {
    raise_as("Error", e);
  } catch (const std::bad_alloc&) {  // of the binding itself
    raise_as("OutOfMemory", OutOfMemory("not enough memory"));
  } catch (const std::bad_cast&) {  // of nb::cast
    raise_as("InvalidArgument", InvalidArgument("an argument holds a value of another type than expected"));
  } catch (const std::exception& e) {
    raise_as("InternalError", InternalError(str("internal error of graft, please report it: ", e.what())));
  } catch (...) {
    raise_as("InternalError", InternalError("internal error of graft, please report it: an exception of unknown type"));
  }
}

nb::dict to_dict(const Counters& c) {
  nb::dict d;
  d["runs"] = c.runs;
  d["plan_hits"] = c.plan_hits;
  d["plan_misses"] = c.plan_misses;
  d["graphs_built"] = c.graphs_built;
  d["rewrites"] = c.rewrites;
  d["kernels_launched"] = c.kernels_launched;
  d["inputs_described"] = c.inputs_described;
  d["inputs_padded"] = c.inputs_padded;
  d["io_copies"] = c.io_copies;
  d["io_bytes_copied"] = c.io_bytes_copied;
  d["arena_allocations"] = c.arena_allocations;
  d["arena_bytes"] = c.arena_bytes;
  d["state_bytes"] = c.state_bytes;
  d["staging_bytes"] = c.staging_bytes;
  d["state_bytes_written"] = c.state_bytes_written;
  d["stages"] = c.stages;
  d["uploads"] = c.uploads;
  d["upload_bytes"] = c.upload_bytes;
  d["downloads"] = c.downloads;
  d["download_bytes"] = c.download_bytes;
  d["state_uploads"] = c.state_uploads;
  d["state_downloads"] = c.state_downloads;
  d["device_bytes"] = c.device_bytes;
  d["device_streams"] = c.device_streams;
  d["device_graphs"] = c.device_graphs;
  d["device_events"] = c.device_events;
  d["device_losses"] = c.device_losses;
  return d;
}

nb::dict to_dict(const ValueInfo& info) {
  constexpr const char* kinds[] = {"none", "tensor", "integer", "real", "boolean", "text"};
  nb::list dims;
  for (const DimInfo& dim : info.dims) dims.append(nb::make_tuple(dim.min, dim.max, dim.expr));
  nb::dict d;
  d["name"] = info.name;
  d["kind"] = kinds[static_cast<std::size_t>(info.kind)];
  d["dtype"] = static_cast<int>(info.dtype);
  d["dims"] = dims;
  return d;
}

nb::dict to_dict(const MethodInfo& info) {
  nb::list inputs;
  nb::list outputs;
  for (const ValueInfo& v : info.inputs) inputs.append(to_dict(v));
  for (const ValueInfo& v : info.outputs) outputs.append(to_dict(v));
  nb::dict d;
  d["name"] = info.name;
  d["inputs"] = inputs;
  d["outputs"] = outputs;
  d["in_spec"] = info.in_spec;
  d["out_spec"] = info.out_spec;
  d["segments"] = info.segments;
  return d;
}

// `padding`: numbers by input, for every dimension.
std::vector<Buckets> to_buckets(const nb::dict& buckets, const nb::dict& padding) {
  std::vector<Buckets> out;
  for (const auto& [dimension, sizes] : buckets) {
    Buckets& made = out.emplace_back();
    made.dimension = nb::cast<std::string>(dimension);
    made.sizes = nb::cast<std::vector<std::int64_t>>(sizes);
    for (const auto& [input, number] : padding) made.padding[nb::cast<std::string>(input)] = nb::cast<double>(number);
  }
  return out;
}

// Nodes that cannot run here: (method index, node name, target, refusal).
std::vector<std::tuple<std::size_t, std::string, std::string, std::string>> refusals(const nb::bytes& blob) {
  std::vector<std::tuple<std::size_t, std::string, std::string, std::string>> out;
  for (RefusedNode& node : refused_nodes(bytes_of(blob)))
    out.emplace_back(node.method, std::move(node.node), std::move(node.target), std::move(node.refusal));
  return out;
}

// Python objects that a program borrows memory from. Released with the GIL held, on whatever thread the program ends.
std::shared_ptr<const void> keep(nb::object object) {
  return {new nb::object(std::move(object)), [](const nb::object* kept) {
            nb::gil_scoped_acquire acquire;
            delete kept;
          }};
}

std::span<const std::byte> memory_of(nb::handle address_and_bytes) {
  const auto fields = nb::cast<nb::tuple>(address_and_bytes);
  return {reinterpret_cast<const std::byte*>(nb::cast<std::uintptr_t>(fields[0])),  // NOLINT
          nb::cast<std::size_t>(fields[1])};
}

// `package` is a path, or the (address, bytes) of a package in memory; `tensors` maps names to tensors as they
// are given to a run; `owner` keeps that memory alive; `on_phase` is called with the name of each phase.
std::shared_ptr<Program> load_program(const nb::object& package, std::vector<std::string> weights,
                                      const nb::dict& tensors, nb::object owner, const std::string& device,
                                      std::size_t max_plans, std::int64_t max_plan_bytes,
                                      std::int64_t max_plan_launches, bool verify_hashes, bool fast_kernels,
                                      bool stored_plans, const nb::object& on_phase, std::size_t merge_segments,
                                      const std::string& matmul_precision, bool packed_files,
                                      const std::string& packed_folder, std::int64_t max_file_bytes,
                                      std::int64_t max_nodes, std::int64_t max_graph_calls,
                                      std::int64_t max_state_bytes, bool map, std::int64_t max_adapter_rank) {
  LoadOptions options;
  options.max_adapter_rank = max_adapter_rank;
  options.max_file_bytes = max_file_bytes;
  options.max_nodes = max_nodes;
  options.max_graph_calls = max_graph_calls;
  options.max_state_bytes = max_state_bytes;
  options.map = map;
  options.weights = std::move(weights);
  for (const auto& [name, tensor] : tensors) options.tensors[nb::cast<std::string>(name)] = to_value(tensor).tensor;
  if (!owner.is_none()) options.keep_alive = keep(std::move(owner));
  options.device = device;
  options.max_plans = max_plans;
  options.max_plan_bytes = max_plan_bytes;
  options.max_plan_launches = max_plan_launches;
  options.verify_hashes = verify_hashes;
  options.fast_kernels = fast_kernels;
  options.stored_plans = stored_plans;
  options.merge_segments = merge_segments;
  options.matmul_precision = matmul_precision_named(matmul_precision);
  options.packed_files = packed_files;
  options.packed_folder = packed_folder;
  if (!on_phase.is_none())
    options.on_phase = [&on_phase](std::string_view phase) {
      nb::gil_scoped_acquire acquire;
      on_phase(nb::str(phase.data(), phase.size()));
    };
  const bool is_path = nb::isinstance<nb::str>(package);
  const std::string path = is_path ? nb::cast<std::string>(package) : "";
  const std::span<const std::byte> memory = is_path ? std::span<const std::byte>{} : memory_of(package);
  nb::gil_scoped_release release;
  return std::const_pointer_cast<Program>(is_path ? Program::load(path, options)
                                                  : Program::load_memory(memory, options));
}

// The methods of a package as their callers see them, and what of each only ExecuTorch's runtime can run ("": nothing).
// dtype -1: not a tensor, or a type that graft has not.
nb::list package_interface(const nb::object& package) {
  const bool is_path = nb::isinstance<nb::str>(package);
  const Package read =
      read_package(is_path ? MappedFile::open(nb::cast<std::string>(package))
                           : MappedFile::of_memory(memory_of(package), "the package in memory", nullptr));
  nb::list methods;
  for (const PackageMethod& method : read.methods) {
    nb::list inputs, outputs;
    for (const PackageInterface::Input& input : method.interface.inputs)
      inputs.append(nb::make_tuple(input.kind, input.dtype ? static_cast<int>(*input.dtype) : -1, input.rank));
    for (const auto& input : method.interface.outputs)
      outputs.append(input ? nb::object(nb::int_(*input)) : nb::none());
    nb::dict d;
    d["name"] = method.name;
    d["refusal"] = method.refusal;
    d["in_spec"] = method.interface.in_spec;
    d["out_spec"] = method.interface.out_spec;
    d["inputs"] = inputs;
    d["outputs"] = outputs;
    methods.append(d);
  }
  return methods;
}

// What a load of the package would make of its weights, in a file: its path, entries and bytes.
nb::tuple pack_package(const std::string& package, const std::string& output, std::vector<std::string> weights,
                       const std::string& matmul_precision) {
  LoadOptions options;
  options.weights = std::move(weights);
  options.matmul_precision = matmul_precision_named(matmul_precision);
  PackedInfo info;
  {
    const nb::gil_scoped_release release;
    info = pack(package, output, options);
  }
  return nb::make_tuple(text_of(info.path), info.entries, info.bytes);
}

nb::dict to_dict(const ProgramStats& s) {
  nb::list phases;
  for (const PhaseStats& p : s.phases) {
    nb::dict phase;
    phase["name"] = p.name;
    phase["times"] = p.times;
    phase["milliseconds"] = p.milliseconds;
    phase["bytes"] = p.bytes;
    phases.append(phase);
  }
  nb::dict d;
  d["phases"] = phases;
  d["weight_count"] = s.weight_count;
  d["weight_bytes"] = s.weight_bytes;
  d["given_bytes"] = s.given_bytes;
  d["copied_count"] = s.copied_count;
  d["copied_bytes"] = s.copied_bytes;
  d["converted_count"] = s.converted_count;
  d["converted_bytes"] = s.converted_bytes;
  d["packed_count"] = s.packed_count;
  d["packed_bytes"] = s.packed_bytes;
  d["packed_file_bytes"] = s.packed_file_bytes;
  d["packed_files_written"] = s.packed_files_written;
  d["packed_files_refused"] = s.packed_files_refused;
  d["packed_refusal"] = text_of(s.packed_refusal);
  d["released_bytes"] = s.released_bytes;
  d["constant_bytes"] = s.constant_bytes;
  d["shared_bytes"] = s.shared_bytes;
  d["graph_bytes"] = s.graph_bytes;
  d["graph_bytes_freed"] = s.graph_bytes_freed;
  d["graphs_read_again"] = s.graphs_read_again;
  d["plans_made"] = s.plans_made;
  d["plans_loaded"] = s.plans_loaded;
  d["plans_stale"] = s.plans_stale;
  return d;
}

}  // namespace
}  // namespace graft

namespace graft {
void bind_tokenizer(nb::module_& m);     // tokenizer.cpp
void bind_grammar(nb::module_& m);       // grammar.cpp
void bind_llm(nb::module_& m);           // llm.cpp
void bind_speech(nb::module_& m);        // speech.cpp
void bind_image(nb::module_& m);         // image.cpp
void bind_pipeline(nb::module_& m);      // pipeline.cpp
void bind_flow(nb::module_& m);          // flow.cpp
void bind_registry(nb::module_& m);      // registry.cpp
void bind_torch_method(nb::module_& m);  // torch_method.cpp
void bind_gguf(nb::module_& m);          // gguf.cpp
void bind_adapters(nb::module_& m);
void bind_memory(nb::module_& m);  // session_calls.cpp
void bind_session_calls(nb::module_& m, nb::class_<Session>& session);
}  // namespace graft

NB_MODULE(_C, m) {
  using namespace graft;  // NOLINT: the binding is the whole library under Python names
  nb::register_exception_translator(translate);

  m.def("version", [] { return std::string(version()); });
  m.def("refusals", &refusals, nb::arg("program"));
  m.def("package_interface", &package_interface, nb::arg("package"));
  m.def("preserved_targets", &preserved_targets);
  m.def("operator_targets", &operator_targets);
  m.def("host_operator_targets", &host_operator_targets);
  m.def("load_ops", &load_ops, nb::arg("path"));
  m.def(
      "register_op",
      [](const std::string& target, std::shared_ptr<Program> program, const std::string& method) {
        register_op(target, std::move(program), method);
      },
      nb::arg("target"), nb::arg("program"), nb::arg("method"));
  m.def("pack", &pack_package, nb::arg("package"), nb::arg("output"), nb::arg("weights"), nb::arg("matmul_precision"));
  m.def("devices", [] {
    nb::list out;
    for (const DeviceInfo& d : devices())
      out.append(nb::make_tuple(d.name, d.description, d.memory_total, d.memory_free));
    return out;
  });

  m.def("storable_type", [](const std::string& wanted, const std::vector<std::int64_t>& sizes) {
    return storable_type(wanted, Shape(std::span(sizes)));
  });
  m.def("stored_byte_count", [](const std::string& type, const std::vector<std::int64_t>& sizes) {
    return stored_byte_count(type, Shape(std::span(sizes)));
  });
  m.def(
      "quantize",
      [](const nb::tuple& tensor, const std::string& type, std::uintptr_t out, std::size_t bytes, int threads) {
        const TensorView view = to_value(tensor).tensor;
        nb::gil_scoped_release release;
        quantize(view, type, {reinterpret_cast<std::byte*>(out), bytes}, threads);  // NOLINT
      },
      nb::arg("tensor"), nb::arg("type"), nb::arg("out"), nb::arg("bytes"), nb::arg("threads") = 1);

  m.def("packed_byte_count", [](const std::string& type, const std::vector<std::int64_t>& sizes) {
    return packed_byte_count(type, Shape(std::span(sizes)));
  });
  m.def(
      "pack_blocks",
      [](const nb::bytes& blocks, const std::string& type, const std::vector<std::int64_t>& sizes, std::uintptr_t out,
         std::size_t bytes) {
        pack_blocks({static_cast<const std::byte*>(blocks.data()), blocks.size()}, type, Shape(std::span(sizes)),
                    {reinterpret_cast<std::byte*>(out), bytes});  // NOLINT
      },
      nb::arg("blocks"), nb::arg("type"), nb::arg("sizes"), nb::arg("out"), nb::arg("bytes"));

  nb::class_<Program>(m, "Program")
      .def_static("load", &load_program, nb::arg("package"), nb::kw_only(),
                  nb::arg("weights") = std::vector<std::string>(), nb::arg("tensors") = nb::dict(),
                  nb::arg("owner").none() = nb::none(), nb::arg("device") = "", nb::arg("max_plans") = 64,
                  nb::arg("max_plan_bytes") = INT64_MAX, nb::arg("max_plan_launches") = std::int64_t{1} << 20,
                  nb::arg("verify_hashes") = false, nb::arg("fast_kernels") = true, nb::arg("stored_plans") = true,
                  nb::arg("on_phase").none() = nb::none(), nb::arg("merge_segments") = LoadOptions{}.merge_segments,
                  nb::arg("matmul_precision") = "highest", nb::arg("packed_files") = true,
                  nb::arg("packed_folder") = "", nb::arg("max_file_bytes") = LoadOptions{}.max_file_bytes,
                  nb::arg("max_nodes") = LoadOptions{}.max_nodes,
                  nb::arg("max_graph_calls") = LoadOptions{}.max_graph_calls,
                  nb::arg("max_state_bytes") = LoadOptions{}.max_state_bytes, nb::arg("map") = LoadOptions{}.map,
                  nb::arg("max_adapter_rank") = LoadOptions{}.max_adapter_rank)
      .def_static(
          "from_ir",
          [](const nb::bytes& blob, const nb::dict& weights) {
            // `weights`: key -> (address, bytes); the caller keeps the memory alive.
            const auto lookup = [&](std::string_view key) -> std::span<const std::byte> {
              const nb::str name(key.data(), key.size());
              GRAFT_CHECK(NotFound, weights.contains(name), "no weight '", key, "' was given");
              const auto entry = nb::cast<nb::tuple>(weights[name]);
              return {reinterpret_cast<const std::byte*>(nb::cast<std::uintptr_t>(entry[0])),  // NOLINT
                      nb::cast<std::size_t>(entry[1])};
            };
            return std::const_pointer_cast<Program>(Program::from_ir(bytes_of(blob), lookup));
          },
          nb::arg("blob"), nb::arg("weights"))
      .def("method_names", &Program::method_names)
      .def("method", [](const Program& p, const std::string& name) { return to_dict(p.method(name)); })
      .def("describe", &Program::describe, nb::arg("whole_plans") = false)
      .def("stats", [](const Program& p) { return to_dict(p.stats()); })
      .def("shrink", &Program::shrink, nb::call_guard<nb::gil_scoped_release>());

  bind_adapters(m);
  bind_tokenizer(m);

  nb::class_<CancelToken>(m, "CancelToken")
      .def(nb::init<>())
      .def("cancel", &CancelToken::cancel)
      .def("reset", &CancelToken::reset)
      .def_prop_ro("cancelled", &CancelToken::cancelled);

  bind_memory(m);
  nb::class_<Session> session(m, "Session");
  session
      .def(
          "__init__",
          [](Session* self, std::shared_ptr<Program> program, int threads, std::size_t max_graphs, bool strict,
             std::int64_t kv_rows, std::int64_t kv_length, const std::string& kv_type, std::int64_t kv_window_slack,
             std::int64_t kv_encoder_length, std::uint64_t seed, const nb::dict& buckets, const nb::dict& padding,
             std::shared_ptr<Arena> arena, std::shared_ptr<States> states, std::size_t queue_capacity) {
            SessionOptions options;
            options.arena = std::move(arena);
            options.states = std::move(states);
            options.queue_capacity = queue_capacity;
            options.buckets = to_buckets(buckets, padding);
            options.kv = {kv_rows, kv_length, kv_type_named(kv_type), kv_window_slack, kv_encoder_length};
            options.threads = threads;
            options.max_graphs = max_graphs;
            options.strict_zero_copy = strict;
            options.seed = seed;
            new (self) Session(std::move(program), options);
          },
          nb::arg("program"), nb::arg("threads") = 0, nb::arg("max_graphs") = 16, nb::arg("strict_zero_copy") = false,
          nb::arg("kv_rows") = KvOptions{}.rows, nb::arg("kv_length") = KvOptions{}.length,
          nb::arg("kv_type") = "computed", nb::arg("kv_window_slack") = KvOptions{}.window_slack,
          nb::arg("kv_encoder_length") = KvOptions{}.encoder_length, nb::arg("seed") = 0,
          nb::arg("buckets") = nb::dict(), nb::arg("padding") = nb::dict(), nb::arg("arena").none() = nb::none(),
          nb::arg("states").none() = nb::none(), nb::arg("queue_capacity") = SessionOptions{}.queue_capacity)
      .def("stored_plans",
           [](Session& s, const std::string& method, const nb::list& inputs) {
             const std::vector<Value> in = to_values(inputs);
             std::vector<std::vector<std::byte>> plans;
             {
               const nb::gil_scoped_release release;
               plans = s.stored_plans(method, in);
             }
             nb::list out;
             for (const std::vector<std::byte>& plan : plans) out.append(nb::bytes(plan.data(), plan.size()));
             return out;
           })
      .def("stored_plan",
           [](Session& s, const std::string& method, const nb::list& inputs) {
             const std::vector<std::byte> plan = s.stored_plan(method, to_values(inputs));
             return nb::bytes(reinterpret_cast<const char*>(plan.data()), plan.size());
           })
      .def("counters", [](const Session& s) { return to_dict(s.counters()); })
      .def("states",
           [](Session& s) {
             nb::list out;
             for (const StateView& state : s.states())
               out.append(nb::make_tuple(state.name, from_value(Value::of(state.tensor))));
             return out;
           })
      .def("kv_lengths",
           [](Session& s) {
             const std::span<const std::int64_t> lengths = s.kv_lengths();
             return std::vector<std::int64_t>(lengths.begin(), lengths.end());
           })
      .def("kv_truncate", &Session::kv_truncate, nb::arg("length"))
      .def("kv_shortest", &Session::kv_shortest, nb::arg("row"))
      .def(
          "kv_select", [](Session& s, const std::vector<std::int64_t>& rows) { s.kv_select(rows); }, nb::arg("rows"))
      .def("kv_resize", &Session::kv_resize, nb::arg("rows"), nb::arg("length"))
      .def(
          "kv_read",
          [](Session& s, std::int64_t layer, std::int64_t row, std::int64_t first, const nb::tuple& keys,
             const nb::tuple& values) { s.kv_read(layer, row, first, to_value(keys).tensor, to_value(values).tensor); })
      .def("kv_write",
           [](Session& s, std::int64_t layer, std::int64_t row, std::int64_t first, const nb::tuple& keys,
              const nb::tuple& values) {
             s.kv_write(layer, row, first, to_value(keys).tensor, to_value(values).tensor);
           })
      .def("kv_set_lengths", [](Session& s, const std::vector<std::int64_t>& lengths) { s.kv_set_lengths(lengths); })
      .def("reset", &Session::reset)
      .def("fork", &Session::fork)
      .def("save", &Session::save, nb::arg("path"), nb::call_guard<nb::gil_scoped_release>())
      .def("restore", &Session::restore, nb::arg("path"), nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Session::close, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("threads", &Session::threads);
  bind_session_calls(m, session);

  bind_torch_method(m);
  bind_pipeline(m);
  bind_flow(m);
  bind_registry(m);
  bind_grammar(m);
  bind_llm(m);
  bind_speech(m);
  bind_image(m);
  bind_gguf(m);
}
