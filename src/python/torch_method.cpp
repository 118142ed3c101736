#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "graft/graft.h"
#include "python/values.h"

namespace nb = nanobind;

namespace graft {
namespace {

// DLPackExchangeAPI of DLPack's dlpack.h (1.3), up to the function that is used.
struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* previous;
  void *allocate, *to_managed, *from_managed;
  // Describes a tensor without taking a reference. Returns 0, or -1 with a Python error set.
  int (*borrow)(void* object, nb::dlpack::dltensor* out);
};
constexpr std::uint32_t kExchangeMajor = 1;

bool is_contiguous(const nb::dlpack::dltensor& t) {
  std::int64_t next = 1;
  for (std::int32_t d = t.ndim; d-- > 0;) {
    if (t.shape[d] == 0) return true;
  }
  for (std::int32_t d = t.ndim; t.strides != nullptr && d-- > 0;) {
    if (t.shape[d] == 1) continue;
    if (t.strides[d] != next) return false;
    next *= t.shape[d];
  }
  return true;
}

// Calls a method with plain arguments directly on torch's tensors. A run evicts the caller's code and data from the CPU
// caches, so that each line of Python between a call and the engine costs a microsecond: here there is none.
class TorchMethod {
 public:
  // `dtypes`: torch's, in the order of DType.
  TorchMethod(Session& session, std::string name, const nb::tuple& dtypes)
      : session_(session), name_(std::move(name)), dtypes_(dtypes) {
    const nb::object torch = nb::module_::import_("torch");
    empty_ = torch.attr("empty");
    inference_mode_ = torch.attr("inference_mode");
    cpu_ = torch.attr("device")("cpu");
    tensor_ = torch.attr("Tensor");
    parameter_ = torch.attr("nn").attr("Parameter");
    is_neg_ = tensor_.attr("is_neg");
    const nb::object capsule = tensor_.attr("__dlpack_c_exchange_api__");
    for (auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
         api != nullptr && borrow_ == nullptr; api = api->previous)
      if (api->major == kExchangeMajor) borrow_ = api->borrow;
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    GRAFT_CHECK(Unsupported, borrow_ != nullptr, "torch's tensors cannot be borrowed through DLPack ", kExchangeMajor);
  }

  // The results, as torch tensors and numbers; None for arguments that the general path must handle, like tensors on
  // other devices.
  nb::object call(const nb::tuple& args) {
    std::vector<Value> in(args.size());
    for (std::size_t i = 0; i < in.size(); ++i)
      if (!take(args[i], in[i])) return nb::none();
    nb::list results;
    const auto place = [&](std::span<Value> out) {
      const nb::gil_scoped_acquire acquire;
      spares_.resize(out.size());
      for (std::size_t i = 0; i < out.size(); ++i)
        results.append(out[i].kind == Value::Kind::tensor ? made(out[i].tensor, spares_[i]) : from_value(out[i]));
    };
    {
      const nb::gil_scoped_release release;
      session_.run_into(name_, in, std::cref(place));
    }
    return results;
  }

 private:
  bool take(nb::handle object, Value& value) const {
    PyTypeObject* const type = Py_TYPE(object.ptr());
    if (type != reinterpret_cast<PyTypeObject*>(tensor_.ptr()) &&
        type != reinterpret_cast<PyTypeObject*>(parameter_.ptr())) {
      if (PyLong_CheckExact(object.ptr())) {
        int overflow = 0;
        value = Value::of(static_cast<std::int64_t>(PyLong_AsLongLongAndOverflow(object.ptr(), &overflow)));
        return overflow == 0;
      }
      if (!PyBool_Check(object.ptr()) && !PyFloat_CheckExact(object.ptr())) return false;
      value = to_value(object);
      return true;
    }
    nb::dlpack::dltensor view;
    if (borrow_(object.ptr(), &view) != 0) {
      PyErr_Clear();  // the general path reports what is wrong
      return false;
    }
    if (view.device.device_type != nb::device::cpu::value || view.ndim > kMaxRank || !is_contiguous(view)) return false;
    std::size_t dtype = 0;
    while (dtype < kDlpackDTypes.size() && !(kDlpackDTypes[dtype] == view.dtype)) ++dtype;
    if (dtype == kDlpackDTypes.size() || nb::cast<bool>(is_neg_(object))) return false;
    TensorView tensor;
    tensor.data = static_cast<std::byte*>(view.data) + view.byte_offset;
    tensor.dtype = static_cast<DType>(dtype);
    for (std::int32_t d = 0; d < view.ndim; ++d) tensor.shape.push_back(view.shape[d]);
    value = Value::of(tensor);
    return true;
  }

  // A torch tensor and its description.
  struct Made {
    nb::object tensor;
    void* data = nullptr;
  };
  // Spare tensors for one result of later calls, with the type and sizes of the last call's.
  struct Spares {
    DType dtype = DType::f32;
    Shape shape;
    std::vector<Made> tensors;
  };
  // The first tensor after a run takes torch some 15 microseconds, further ones one each: small ones are made in
  // groups.
  static constexpr int kMadeTogether = 8;
  static constexpr std::size_t kSmallBytes = std::size_t{64} << 10;

  // A new tensor, which `result` then points to.
  nb::object made(TensorView& result, Spares& spares) const {
    if (spares.tensors.empty() || spares.dtype != result.dtype || spares.shape != result.shape) {
      const bool small = TensorDesc(result.dtype, result.shape).byte_count() <= kSmallBytes;
      Spares more = {result.dtype, result.shape, small ? make_spares(result) : make(result, 1)};
      // Swapped only now: another thread's call may have changed `spares` while torch made the tensors.
      std::swap(spares, more);
    }
    const Made taken = std::move(spares.tensors.back());
    spares.tensors.pop_back();
    result.data = taken.data;
    return taken.tensor;
  }

  // Ordinary tensors, not inference ones: this call may be in an inference mode, and later calls that get them may not.
  std::vector<Made> make_spares(const TensorView& wanted) const {
    const nb::object ordinary = inference_mode_(false);
    ordinary.attr("__enter__")();
    std::vector<Made> out;
    try {
      out = make(wanted, kMadeTogether);
    } catch (...) {
      ordinary.attr("__exit__")(nb::none(), nb::none(), nb::none());
      throw;
    }
    ordinary.attr("__exit__")(nb::none(), nb::none(), nb::none());
    return out;
  }

  std::vector<Made> make(const TensorView& wanted, int count) const {
    nb::list sizes;
    for (const std::int64_t size : wanted.shape.sizes()) sizes.append(size);
    const nb::object dtype = dtypes_[static_cast<std::size_t>(wanted.dtype)];
    std::vector<Made> out;
    for (int i = 0; i < count; ++i) {
      Made& tensor = out.emplace_back(empty_(nb::tuple(sizes), nb::arg("dtype") = dtype, nb::arg("device") = cpu_));
      nb::dlpack::dltensor view;
      if (borrow_(tensor.tensor.ptr(), &view) != 0) throw nb::python_error();
      tensor.data = static_cast<std::byte*>(view.data) + view.byte_offset;
    }
    return out;
  }

  Session& session_;
  std::string name_;
  nb::tuple dtypes_;
  nb::object empty_, inference_mode_, cpu_, tensor_, parameter_, is_neg_;
  decltype(ExchangeApi::borrow) borrow_ = nullptr;
  std::vector<Spares> spares_;  // of each result
};

}  // namespace

void bind_torch_method(nb::module_& m) {
  nb::class_<TorchMethod>(m, "TorchMethod")
      .def(nb::init<Session&, std::string, const nb::tuple&>(), nb::keep_alive<1, 2>(), nb::arg("session"),
           nb::arg("name"), nb::arg("dtypes"))
      .def("call", &TorchMethod::call, nb::arg("args"));
}

}  // namespace graft
