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
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "executorch/layout.h"
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
  std::vector<std::byte> blob;
  std::vector<FreeableBuffer> weights;  // keep the mapped segments alive
  std::string method;
  std::unique_ptr<Session> session;
  std::vector<Value> inputs;
  std::vector<std::vector<std::byte>> staged;  // by argument: row-major copies of tensors in another layout

  ~Handle() {
    session.reset();
    for (FreeableBuffer& buffer : weights) buffer.Free();
  }
};

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

// Options of later loads; a load's own runtime specs take precedence.
class Options {
 public:
  struct Values {
    int threads = 0;     // 0: GRAFT_THREADS, else the CPUs this process may use
    std::string device;  // "": GRAFT_DEVICE, else the CPU
    int seed = 0;        // of random numbers, as bits
  };

  Values get() const {
    const std::lock_guard lock(mutex_);
    return values_;
  }

  // All or none. Throws InvalidArgument or NotFound.
  void set(Values values) {
    if (values.threads < 0)
      throw InvalidArgument("option 'threads' must not be negative, got " + std::to_string(values.threads));
    std::string known;
    bool found = values.device.empty();
    for (const DeviceInfo& info : devices()) {
      found = found || info.name == values.device;
      known += (known.empty() ? "" : ", ") + info.name;
    }
    if (!found) throw NotFound("option 'device': no device '" + values.device + "'; this machine has: " + known);
    const std::lock_guard lock(mutex_);
    values_ = std::move(values);
  }

 private:
  mutable std::mutex mutex_;
  Values values_;
};

// Thrown out of a run whose output ExecuTorch cannot resize.
struct NotPlaced {
  Status status;
};

class GraftBackend final : public executorch::runtime::BackendInterface {
 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               ArrayRef<CompileSpec> /*specs: repeated in the blob*/) const override {
    auto handle = std::make_unique<Handle>();
    const Status status = guarded("load", [&] { return load(*handle, context, processed); });
    if (status != Status::Ok) return status;
    return handle.release();
  }

  Status execute(BackendExecutionContext& context, DelegateHandle* delegate, Span<EValue*> args) const override {
    return guarded("run", [&] { return run(*static_cast<Handle*>(delegate), context, args); });
  }

  void destroy(DelegateHandle* delegate) const override { delete static_cast<Handle*>(delegate); }

  Status set_option(BackendOptionContext& /*context*/, const Span<BackendOption>& given) override {
    return guarded("set_option", [&] {
      Options::Values values = options_.get();
      for (const BackendOption& option : given) {
        const std::string_view key = option.key;
        const int* number = std::get_if<int>(&option.value);
        const auto* text = std::get_if<Text>(&option.value);
        if (key == "threads" && number) {
          values.threads = *number;
        } else if (key == "device" && text) {
          values.device = text->data();
        } else if (key == "seed" && number) {
          values.seed = *number;
        } else {
          throw InvalidArgument("option '" + std::string(key) +
                                "' must be 'threads' (int), 'device' (text) or 'seed' (int)");
        }
      }
      options_.set(std::move(values));
      return Status::Ok;
    });
  }

  Status get_option(BackendOptionContext& /*context*/, Span<BackendOption>& asked) override {
    const Options::Values values = options_.get();
    for (BackendOption& option : asked) {
      const std::string_view key = option.key;
      if (key == "threads") {
        option.value = values.threads;
      } else if (key == "seed") {
        option.value = values.seed;
      } else if (key == "device") {
        Text text{};
        std::copy_n(values.device.data(), std::min(values.device.size(), text.size() - 1), text.data());
        option.value = text;
      }
    }
    return Status::Ok;
  }

  Options& options() { return options_; }

 private:
  using Text = std::array<char, executorch::runtime::kMaxOptionValueLength>;

  Status load(Handle& handle, BackendInitContext& context, FreeableBuffer* processed) const {
    const auto* bytes = static_cast<const std::byte*>(processed->data());
    handle.blob.assign(bytes, bytes + processed->size());
    processed->Free();

    LoadOptions load_options;
    SessionOptions session_options;
    const Options::Values set = options_.get();
    load_options.device = set.device;
    session_options.threads = set.threads;
    if (const auto device = context.get_runtime_spec<const char*>("device"); device.ok()) load_options.device = *device;
    if (const auto threads = context.get_runtime_spec<int>("threads"); threads.ok()) session_options.threads = *threads;
    const auto seed = context.get_runtime_spec<int>("seed");
    session_options.seed = static_cast<std::uint32_t>(seed.ok() ? *seed : set.seed);

    const auto* data = context.get_named_data_map();
    const auto weights = [&](std::string_view key) -> std::span<const std::byte> {
      if (!data) throw NotFound("weight '" + std::string(key) + "': the program holds no named data");
      auto buffer = data->get_data(key);
      if (!buffer.ok())
        throw NotFound("weight '" + std::string(key) + "' is neither in the program nor in the data files given");
      handle.weights.push_back(std::move(*buffer));
      const FreeableBuffer& kept = handle.weights.back();
      return {static_cast<const std::byte*>(kept.data()), kept.size()};
    };
    const std::shared_ptr<const Program> program = Program::from_ir(handle.blob, weights, load_options);
    handle.blob = {};
    handle.method = program->method_names().at(0);
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

  Options options_;
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

// Options of later loads: 0 threads means GRAFT_THREADS, else the CPUs this process may use; an empty device means
// GRAFT_DEVICE, else the CPU; the seed is that of random numbers. On failure `message` (of `size` bytes, ends with a
// zero byte) says why.
GRAFT_C_API int graft_executorch_set_options(int threads, const char* device, int seed, char* message,
                                             std::size_t size) {
  try {
    graft::instance().options().set({threads, device, seed});
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
