#include "graft/adapter.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "python/adapters.h"
#include "python/values.h"

// The binding of adapters. Which names they have is Python's own: python/graft/adapters.py.
namespace nb = nanobind;

namespace graft {
namespace {

using ProgramPtr = std::shared_ptr<Program>;
using AdapterPtr = std::shared_ptr<Adapter>;

AdapterPtr load(const ProgramPtr& program, const std::string& path) {
  const nb::gil_scoped_release release;
  return std::const_pointer_cast<Adapter>(Adapter::load(program, path));
}

// Of (module, A, B, scale), with A and B as addresses, dtypes and sizes.
AdapterPtr of(const ProgramPtr& program, const nb::list& layers) {
  std::vector<AdapterLayer> list;
  for (const nb::handle item : layers) {
    const auto fields = nb::cast<nb::tuple>(item);
    list.push_back({nb::cast<std::string>(fields[0]), to_value(fields[1]).tensor, to_value(fields[2]).tensor,
                    nb::cast<double>(fields[3])});
  }
  const nb::gil_scoped_release release;
  return std::const_pointer_cast<Adapter>(Adapter::of(program, list));
}

}  // namespace

std::vector<std::shared_ptr<const Adapter>> adapters_of(const nb::handle& list) {
  std::vector<std::shared_ptr<const Adapter>> out;
  for (const nb::handle item : list)
    out.push_back(item.is_none() ? nullptr : std::shared_ptr<const Adapter>(nb::cast<AdapterPtr>(item)));
  return out;
}

void bind_adapters(nb::module_& m) {
  nb::class_<Adapter>(m, "Adapter")
      .def_static("load", &load, nb::arg("program"), nb::arg("path"))
      .def_static("of", &of, nb::arg("program"), nb::arg("layers"))
      .def_prop_ro("layers", &Adapter::layers)
      .def_prop_ro("rank", &Adapter::rank)
      .def_prop_ro("bytes", &Adapter::bytes)
      .def_prop_ro("id", &Adapter::id);
  m.def("adapter_modules", [](const ProgramPtr& program) { return adapter_modules(*program); });
}

}  // namespace graft
