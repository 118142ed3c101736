#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/error.h>
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/core/named_data_map.h>
#include <executorch/runtime/platform/log.h>
#include <executorch/runtime/platform/platform.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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
  std::vector<Value> outputs;

  ~Handle() {
    session.reset();
    for (FreeableBuffer& buffer : weights) buffer.Free();
  }
};

// Runs `work`; exceptions become a log line and the Error code closest to their type.
template <typename Work>
Status guarded(const char* what, Work&& work) {
  try {
    return work();
  } catch (const InvalidArgument& e) {
    ET_LOG(Error, "graft: %s: %s", what, e.what());
    return Status::InvalidArgument;
  } catch (const InvalidProgram& e) {
    ET_LOG(Error, "graft: %s: %s", what, e.what());
    return Status::InvalidProgram;
  } catch (const Unsupported& e) {
    ET_LOG(Error, "graft: %s: %s", what, e.what());
    return Status::NotSupported;
  } catch (const NotFound& e) {
    ET_LOG(Error, "graft: %s: %s", what, e.what());
    return Status::NotFound;
  } catch (const SystemError& e) {
    ET_LOG(Error, "graft: %s: %s", what, e.what());
    return Status::MemoryAllocationFailed;
  } catch (const std::bad_alloc& e) {
    ET_LOG(Error, "graft: %s: %s", what, e.what());
    return Status::MemoryAllocationFailed;
  } catch (const std::exception& e) {
    ET_LOG(Error, "graft: %s: %s", what, e.what());
    return Status::Internal;
  }
}

DType dtype_of(ScalarType type, std::size_t arg) {
  switch (type) {
    case ScalarType::Float: return DType::f32;
    case ScalarType::Half: return DType::f16;
    case ScalarType::BFloat16: return DType::bf16;
    case ScalarType::Double: return DType::f64;
    case ScalarType::Char: return DType::i8;
    case ScalarType::Byte: return DType::u8;
    case ScalarType::Short: return DType::i16;
    case ScalarType::Int: return DType::i32;
    case ScalarType::Long: return DType::i64;
    case ScalarType::Bool: return DType::b8;
    default: throw InvalidArgument("argument " + std::to_string(arg) + " has a dtype that graft does not take");
  }
}

bool row_major(const ExecutorchTensor& tensor) {
  const auto order = tensor.dim_order();
  for (std::size_t d = 0; d < order.size(); ++d)
    if (order[d] != d) return false;
  return true;
}

Value to_value(const EValue& value, std::size_t arg, bool data) {
  if (value.isNone()) return {};
  if (value.isInt()) return Value::of(value.toInt());
  if (value.isDouble()) return Value::of(value.toDouble());
  if (value.isBool()) return Value::of(value.toBool());
  if (!value.isTensor()) throw InvalidArgument("argument " + std::to_string(arg) + " is neither a tensor nor a number");
  const ExecutorchTensor& tensor = value.toTensor();
  if (!row_major(tensor))
    throw InvalidArgument("argument " + std::to_string(arg) + " must be row-major (dim order 0, 1, 2, ...)");
  TensorView view;
  view.dtype = dtype_of(tensor.scalar_type(), arg);
  for (SizesType size : tensor.sizes()) view.shape.push_back(size);
  // Inputs are read only; the engine's view type does not say so.
  if (data) view.data = const_cast<void*>(tensor.const_data_ptr());
  return Value::of(view);
}

// Options of the next loads, set through ExecuTorch's set_option; a load's own runtime specs win.
struct Options {
  std::mutex mutex;
  int threads = 0;
  std::string device;
};

class GraftBackend final : public executorch::runtime::BackendInterface {
 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               ArrayRef<CompileSpec> /*specs: all they say is in the blob*/) const override {
    auto handle = std::make_unique<Handle>();
    const Status status = guarded("load", [&] { return load(*handle, context, processed); });
    if (status != Status::Ok) return status;
    return handle.release();
  }

  Status execute(BackendExecutionContext& context, DelegateHandle* delegate, Span<EValue*> args) const override {
    return guarded("run", [&] { return run(*static_cast<Handle*>(delegate), context, args); });
  }

  void destroy(DelegateHandle* delegate) const override { delete static_cast<Handle*>(delegate); }

  Status set_option(BackendOptionContext& /*context*/, const Span<BackendOption>& options) override {
    const std::lock_guard lock(options_.mutex);
    for (const BackendOption& option : options) {
      const int* number = std::get_if<int>(&option.value);
      const auto* text = std::get_if<std::array<char, executorch::runtime::kMaxOptionValueLength>>(&option.value);
      if (std::strcmp(option.key, "threads") == 0 && number && *number >= 0) {
        options_.threads = *number;
      } else if (std::strcmp(option.key, "device") == 0 && text) {
        options_.device = text->data();
      } else {
        ET_LOG(Error, "graft: option '%s' must be 'threads' (int) or 'device' (text)", option.key);
        return Status::InvalidArgument;
      }
    }
    return Status::Ok;
  }

  Status get_option(BackendOptionContext& /*context*/, Span<BackendOption>& options) override {
    const std::lock_guard lock(options_.mutex);
    for (BackendOption& option : options) {
      if (std::strcmp(option.key, "threads") == 0) {
        option.value = options_.threads;
      } else if (std::strcmp(option.key, "device") == 0) {
        std::array<char, executorch::runtime::kMaxOptionValueLength> text{};
        std::copy_n(options_.device.data(), std::min(options_.device.size(), text.size() - 1), text.data());
        option.value = text;
      }
    }
    return Status::Ok;
  }

 private:
  Status load(Handle& handle, BackendInitContext& context, FreeableBuffer* processed) const {
    const auto* bytes = static_cast<const std::byte*>(processed->data());
    handle.blob.assign(bytes, bytes + processed->size());
    processed->Free();

    LoadOptions load_options;
    SessionOptions session_options;
    {
      const std::lock_guard lock(options_.mutex);
      load_options.device = options_.device;
      session_options.threads = options_.threads;
    }
    if (const auto device = context.get_runtime_spec<const char*>("device"); device.ok()) load_options.device = *device;
    if (const auto threads = context.get_runtime_spec<int>("threads"); threads.ok()) session_options.threads = *threads;

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
    for (std::size_t i = 0; i < n_in; ++i) handle.inputs.push_back(to_value(*args[i], i, true));
    handle.outputs = handle.session->output_values(handle.method, handle.inputs);
    for (std::size_t i = 0; i < handle.outputs.size(); ++i) {
      Value& value = handle.outputs[i];
      if (value.kind != Value::Kind::tensor) continue;
      if (const Status status = place_output(*args[n_in + i], n_in + i, value.tensor); status != Status::Ok) return status;
    }

    RunOptions options;
    std::vector<NodeTiming> profile;
    executorch::runtime::EventTracer* tracer = context.event_tracer();
    if (tracer) options.profile = &profile;
    const auto begin = executorch::runtime::pal_current_ticks();
    handle.session->run_into(handle.method, handle.inputs, handle.outputs, options);
    if (tracer) report(*tracer, begin, profile);

    for (std::size_t i = 0; i < handle.outputs.size(); ++i) {
      const Value& value = handle.outputs[i];
      EValue& out = *args[n_in + i];
      switch (value.kind) {
        case Value::Kind::integer: out = EValue(value.i); break;
        case Value::Kind::real: out = EValue(value.f); break;
        case Value::Kind::boolean: out = EValue(value.i != 0); break;
        default: break;
      }
    }
    return Status::Ok;
  }

  // Resizes an output to the shape of this run and binds its memory.
  static Status place_output(EValue& out, std::size_t arg, TensorView& view) {
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
    return Status::Ok;
  }

  static void report(executorch::runtime::EventTracer& tracer, et_timestamp_t begin,
                     const std::vector<NodeTiming>& profile) {
    const et_tick_ratio_t ratio = et_pal_ticks_to_ns_multiplier();  // ns = ticks * numerator / denominator
    const auto ticks = [&](std::int64_t ns) {
      return begin + static_cast<et_timestamp_t>(ns) * ratio.denominator / ratio.numerator;
    };
    for (const NodeTiming& t : profile)
      executorch::runtime::event_tracer_log_profiling_delegate(&tracer, t.node.c_str(),
                                                               executorch::runtime::kUnsetDelegateDebugIntId,
                                                               ticks(t.start_ns), ticks(t.end_ns), t.kernel.data(),
                                                               t.kernel.size());
  }

  mutable Options options_;
};

GraftBackend& instance() {
  static GraftBackend backend;
  return backend;
}

// A second copy of the library in one process fails to register and leaves the first in place.
const Status registered = executorch::runtime::register_backend({"GraftBackend", &instance()});

}  // namespace
}  // namespace graft

// For Python: ExecuTorch's error code of the registration; 0 is success.
extern "C" __attribute__((visibility("default"))) int graft_executorch_registered() {
  return static_cast<int>(graft::registered);
}
