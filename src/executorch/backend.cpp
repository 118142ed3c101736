#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/core/named_data_map.h>
#include <executorch/runtime/platform/log.h>
#include <executorch/runtime/platform/platform.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "executorch/layout.h"
#include "executorch/loaded_program.h"
#include "executorch/options.h"
#include "graft/graft.h"

// The ExecuTorch delegate: EValues in, EValues out. It knows no op and no shape; all work is a graft::Session's.
namespace graft {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using ExecutorchTensor = executorch::aten::Tensor;
using executorch::runtime::ArrayRef;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::BackendOption;
using executorch::runtime::BackendOptionContext;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Result;
using executorch::runtime::Span;
using Status = executorch::runtime::Error;

struct Handle {
  std::shared_ptr<LoadedProgram> loaded;  // first: its weights outlive the session
  std::string method;
  std::unique_ptr<Session> session;
  std::vector<Value> inputs;
  std::vector<std::vector<std::byte>> staged;  // by argument: row-major copies of tensors in another layout
};

// Options of a package: kOptionSpec and a name, with the value as text (python/graft/exporter/backend.py).
constexpr std::string_view kOptionSpec = "graft.option.";

// ExecuTorch truncates log lines at 256 bytes, so a longer message is split.
void log_error(std::string_view what, std::string_view message) {
  constexpr std::size_t kLine = 200;
  while (!message.empty()) {
    const std::string_view line = message.substr(0, kLine);
    ET_LOG(Error, "graft: %.*s: %.*s", static_cast<int>(what.size()), what.data(), static_cast<int>(line.size()),
           line.data());
    message.remove_prefix(line.size());
  }
}

// The Error code closest to the type of the exception being handled; its message goes to `report(text)`.
template <typename Report>
Status status_of_exception(Report&& report) {
  const auto as = [&](Status status, const std::exception& e) {
    report(e.what());
    return status;
  };
  try {
    throw;
  } catch (const InvalidArgument& e) {
    return as(Status::InvalidArgument, e);
  } catch (const InvalidProgram& e) {
    return as(Status::InvalidProgram, e);
  } catch (const Unsupported& e) {
    return as(Status::NotSupported, e);
  } catch (const NotFound& e) {
    return as(Status::NotFound, e);
  } catch (const Busy& e) {
    return as(Status::InvalidState, e);
  } catch (const SystemError& e) {
    return as(Status::MemoryAllocationFailed, e);
  } catch (const std::bad_alloc& e) {
    return as(Status::MemoryAllocationFailed, e);
  } catch (const std::exception& e) {
    return as(Status::Internal, e);
  } catch (...) {
    report("an exception of unknown type");
    return Status::Internal;
  }
}

// Runs `work`; exceptions become a log line and an Error code.
template <typename Work>
Status guarded(std::string_view what, Work&& work) {
  try {
    return work();
  } catch (...) {
    return status_of_exception([&](std::string_view message) { log_error(what, message); });
  }
}

DType dtype_of(ScalarType type, std::size_t arg) {
  switch (type) {
    case ScalarType::Float:
      return DType::f32;
    case ScalarType::Half:
      return DType::f16;
    case ScalarType::BFloat16:
      return DType::bf16;
    case ScalarType::Double:
      return DType::f64;
    case ScalarType::Char:
      return DType::i8;
    case ScalarType::Byte:
      return DType::u8;
    case ScalarType::Short:
      return DType::i16;
    case ScalarType::Int:
      return DType::i32;
    case ScalarType::Long:
      return DType::i64;
    case ScalarType::Bool:
      return DType::b8;
    default:
      throw InvalidArgument("argument " + std::to_string(arg) + " has a dtype that graft does not take");
  }
}

// The order of the tensor's dimensions in memory, outermost first.
std::span<const std::uint8_t> order_of(const ExecutorchTensor& tensor) {
  return {tensor.dim_order().data(), tensor.dim_order().size()};
}

// Memory for a row-major copy of the tensor; grows only.
std::byte* staged(std::vector<std::byte>& memory, const TensorView& view) {
  const std::size_t bytes = TensorDesc(view.dtype, view.shape).byte_count();
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

Value to_value(const EValue& value, std::size_t arg, std::vector<std::byte>& memory) {
  if (value.isNone()) return {};
  if (value.isInt()) return Value::of(value.toInt());
  if (value.isDouble()) return Value::of(value.toDouble());
  if (value.isBool()) return Value::of(value.toBool());
  if (!value.isTensor()) throw InvalidArgument("argument " + std::to_string(arg) + " is neither a tensor nor a number");
  const ExecutorchTensor& tensor = value.toTensor();
  TensorView view;
  view.dtype = dtype_of(tensor.scalar_type(), arg);
  for (SizesType size : tensor.sizes()) view.shape.push_back(size);
  // Inputs are only read, which the engine's view type cannot express.
  view.data = const_cast<void*>(tensor.const_data_ptr());
  if (!row_major(order_of(tensor)) && view.shape.numel() > 0) {
    view.data = staged(memory, view);
    to_row_major(static_cast<const std::byte*>(tensor.const_data_ptr()), view.shape.sizes(), order_of(tensor),
                 byte_size(view.dtype), static_cast<std::byte*>(view.data));
  }
  return Value::of(view);
}

// Thrown out of a run whose output ExecuTorch cannot resize.
struct NotPlaced {
  Status status;
};

class GraftBackend final : public executorch::runtime::BackendInterface {
 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               ArrayRef<CompileSpec> specs) const override {
    std::unique_ptr<Handle> handle;
    const Status status = guarded("load", [&] {
      handle = std::make_unique<Handle>();
      return load(*handle, context, processed, specs);
    });
    if (status != Status::Ok) return status;
    return handle.release();
  }

  Status execute(BackendExecutionContext& context, DelegateHandle* delegate, Span<EValue*> args) const override {
    return guarded("run", [&] { return run(*static_cast<Handle*>(delegate), context, args); });
  }

  void destroy(DelegateHandle* delegate) const override { delete static_cast<Handle*>(delegate); }

  Status set_option(BackendOptionContext& /*context*/, const Span<BackendOption>& given) override {
    return guarded("set_option", [&] {
      DelegateOptions options = options_.get();
      for (const BackendOption& option : given) set(options, option);
      options_.set(std::move(options));
      return Status::Ok;
    });
  }

  Status get_option(BackendOptionContext& /*context*/, Span<BackendOption>& asked) override {
    return guarded("get_option", [&] {
      const DelegateOptions options = options_.get();
      for (BackendOption& option : asked) {
        const DelegateOptions::Value value = options.get(option.key);
        if (const int* number = std::get_if<int>(&value)) {
          option.value = *number;
          continue;
        }
        const std::string& text = std::get<std::string>(value);
        Text& to = option.value.emplace<Text>();
        std::copy_n(text.data(), std::min(text.size(), to.size() - 1), to.data());
      }
      return Status::Ok;
    });
  }

  SharedDelegateOptions& options() { return options_; }

 private:
  using Text = std::array<char, executorch::runtime::kMaxOptionValueLength>;

  static void set(DelegateOptions& options, const BackendOption& option) {
    if (const int* number = std::get_if<int>(&option.value)) return options.set(option.key, *number);
    const auto* text = std::get_if<Text>(&option.value);
    if (!text) throw InvalidArgument("option '" + std::string(option.key) + "' must be an int or text, got a bool");
    options.set(option.key, std::string(text->data()));
  }

  Status load(Handle& handle, BackendInitContext& context, FreeableBuffer* processed,
              ArrayRef<CompileSpec> specs) const {
    const auto* bytes = static_cast<const std::byte*>(processed->data());
    const std::vector<std::byte> blob(bytes, bytes + processed->size());
    processed->Free();

    DelegateOptions options;
    for (const CompileSpec& spec : specs)
      if (const std::string_view key = spec.key; key.starts_with(kOptionSpec))
        options.set_text(key.substr(kOptionSpec.size()),
                         {static_cast<const char*>(spec.value.buffer), spec.value.nbytes});
    options.update(options_.get());
    for (const BackendOption& option : context.runtime_specs()) set(options, option);
    LoadOptions load_options;
    load_options.device = options.device();

    const auto* data = context.get_named_data_map();
    handle.loaded = LoadedProgram::of(data);
    load_options.keep_alive = handle.loaded;  // owns the weights
    load_options.delegate_of = LoadedProgram::name(data);
    const auto weights = [&](std::string_view key) { return handle.loaded->weight(data, key); };
    const std::shared_ptr<const Program> program = Program::from_ir(blob, weights, load_options);
    handle.method = program->method_names().at(0);
    SessionOptions session_options = options.session();
    session_options.states = handle.loaded->states();
    handle.session = std::make_unique<Session>(program, session_options);
    return Status::Ok;
  }

  static Status run(Handle& handle, BackendExecutionContext& context, Span<EValue*> args) {
    const MethodInfo& info = handle.session->program().method(handle.method);
    const std::size_t n_in = info.inputs.size();
    if (args.size() != n_in + info.outputs.size())
      throw InvalidArgument("the delegate takes " + std::to_string(n_in) + " inputs and " +
                            std::to_string(info.outputs.size()) + " outputs, got " + std::to_string(args.size()) +
                            " arguments");
    handle.inputs.clear();
    handle.staged.resize(args.size());
    for (std::size_t i = 0; i < n_in; ++i) handle.inputs.push_back(to_value(*args[i], i, handle.staged[i]));
    const auto place = [&](std::span<Value> outputs) {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (outputs[i].kind != Value::Kind::tensor) continue;
        const std::size_t arg = n_in + i;
        const Status status = place_output(*args[arg], arg, outputs[i].tensor, handle.staged[arg]);
        if (status != Status::Ok) throw NotPlaced{status};
      }
    };
    RunOptions options;
    std::vector<NodeTiming> profile;
    executorch::runtime::EventTracer* tracer = context.event_tracer();
    if (tracer) options.profile = &profile;
    const auto begin = executorch::runtime::pal_current_ticks();
    std::vector<Value> outputs;
    try {
      outputs = handle.session->run_into(handle.method, handle.inputs, std::cref(place), options);
    } catch (const NotPlaced& refused) {
      return refused.status;
    }
    if (tracer) report(*tracer, begin, profile);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      set_number(*args[n_in + i], outputs[i]);
      if (outputs[i].kind == Value::Kind::tensor) put_in_order(outputs[i].tensor, args[n_in + i]->toTensor());
    }
    return Status::Ok;
  }

  // Copies a staged result to its output.
  static void put_in_order(const TensorView& view, ExecutorchTensor& tensor) {
    if (row_major(order_of(tensor)) || view.shape.numel() == 0) return;
    from_row_major(static_cast<const std::byte*>(view.data), view.shape.sizes(), order_of(tensor),
                   byte_size(view.dtype), static_cast<std::byte*>(tensor.mutable_data_ptr()));
  }

  static void set_number(EValue& out, const Value& value) {
    switch (value.kind) {
      case Value::Kind::integer:
        out = EValue(value.i);
        break;
      case Value::Kind::real:
        out = EValue(value.f);
        break;
      case Value::Kind::boolean:
        out = EValue(value.i != 0);
        break;
      default:
        break;
    }
  }

  // Resizes an output to the shape of this run and binds its memory.
  static Status place_output(EValue& out, std::size_t arg, TensorView& view, std::vector<std::byte>& memory) {
    if (!out.isTensor()) throw InvalidArgument("output argument " + std::to_string(arg) + " must be a tensor");
    ExecutorchTensor& tensor = out.toTensor();
    if (dtype_of(tensor.scalar_type(), arg) != view.dtype)
      throw InvalidArgument("output argument " + std::to_string(arg) + " must have dtype " +
                            std::string(name(view.dtype)));
    SizesType sizes[kMaxRank];
    for (int d = 0; d < view.shape.rank(); ++d) sizes[d] = static_cast<SizesType>(view.shape[d]);
    const Status status =
        executorch::runtime::resize_tensor(tensor, {sizes, static_cast<std::size_t>(view.shape.rank())});
    if (status != Status::Ok) {
      ET_LOG(Error, "graft: output argument %zu cannot take the shape %s", arg, view.shape.str().c_str());
      return status;
    }
    view.data = tensor.mutable_data_ptr();
    if (!view.data && view.shape.numel() > 0)
      throw InvalidArgument("output argument " + std::to_string(arg) + " (" + view.shape.str() +
                            ") has no memory: the package was exported with plan_outputs=False, so the caller must set "
                            "each output's memory before it executes");
    if (!row_major(order_of(tensor)) && view.shape.numel() > 0) view.data = staged(memory, view);
    return Status::Ok;
  }

  static void report(executorch::runtime::EventTracer& tracer, et_timestamp_t begin,
                     const std::vector<NodeTiming>& profile) {
    const et_tick_ratio_t ratio = et_pal_ticks_to_ns_multiplier();  // ns = ticks * numerator / denominator
    const auto ticks = [&](std::int64_t ns) {
      return begin + static_cast<et_timestamp_t>(ns) * ratio.denominator / ratio.numerator;
    };
    for (const NodeTiming& t : profile)
      executorch::runtime::event_tracer_log_profiling_delegate(
          &tracer, t.node.c_str(), executorch::runtime::kUnsetDelegateDebugIntId, ticks(t.start_ns), ticks(t.end_ns),
          t.kernel.data(), t.kernel.size());
  }

  SharedDelegateOptions options_;
};

GraftBackend& instance() {
  static GraftBackend backend;
  return backend;
}

// A second copy of the library in one process fails to register and leaves the first in place.
const Status registered = executorch::runtime::register_backend({"GraftBackend", &instance()});

}  // namespace
}  // namespace graft

// The C interface, for callers that cannot reach ExecuTorch's set_option (Python among them). Results are ExecuTorch's
// error codes; 0 is success.
#define GRAFT_C_API extern "C" __attribute__((visibility("default")))

GRAFT_C_API int graft_executorch_registered() { return static_cast<int>(graft::registered); }

// Options of later loads, as lines of "name=value"; those that are left out return to their default. On failure
// `message` (of `size` bytes, ends with a zero byte) says why.
GRAFT_C_API int graft_executorch_set_options(const char* lines, char* message, std::size_t size) {
  try {
    graft::DelegateOptions options;
    for (std::string_view rest = lines; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      const std::size_t equals = std::min(line.find('='), line.size());
      options.set_text(line.substr(0, equals), line.substr(std::min(equals + 1, line.size())));
    }
    graft::instance().options().set(std::move(options));
    return 0;
  } catch (...) {
    return static_cast<int>(graft::status_of_exception([&](std::string_view text) {
      if (size == 0) return;
      const std::size_t length = std::min(text.size(), size - 1);
      std::copy_n(text.data(), length, message);
      message[length] = '\0';
    }));
  }
}
