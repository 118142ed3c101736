#include "graft/registry.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <vector>

namespace nb = nanobind;

namespace graft {
namespace {

nb::dict to_dict(const ModelInfo& model) {
  nb::dict d;
  d["id"] = model.id;
  // A path may hold bytes that are not UTF-8.
  d["path"] =
      nb::steal(PyUnicode_DecodeFSDefaultAndSize(model.path.data(), static_cast<Py_ssize_t>(model.path.size())));
  d["content"] = model.content;
  d["device"] = model.device;
  d["mapped_bytes"] = model.mapped_bytes;
  d["packed_bytes"] = model.packed_bytes;
  d["constant_bytes"] = model.constant_bytes;
  d["packed_file_bytes"] = model.packed_file_bytes;
  d["plan_bytes"] = model.plan_bytes;
  d["plans"] = model.plans;
  d["programs"] = model.programs;
  d["delegates"] = model.delegates;
  d["unloaded"] = model.unloaded;
  return d;
}

}  // namespace

void bind_registry(nb::module_& m) {
  m.def("models", [] {
    std::vector<ModelInfo> models;
    {
      const nb::gil_scoped_release release;
      models = Registry::models();
    }
    nb::list out;
    for (const ModelInfo& model : models) out.append(to_dict(model));
    return out;
  });
  m.def("unload", &Registry::unload, nb::arg("id"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace graft
