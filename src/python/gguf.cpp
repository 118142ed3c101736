#include "weight/gguf.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

// The binding of GGUF files, for python/graft/llm/gguf.py: what the engine's reader found, as Python's own types.
namespace nb = nanobind;

namespace graft {
namespace {

// Names and strings of a file may hold bytes that are not UTF-8.
nb::object text_of(std::string_view bytes) {
  return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

nb::object object_of(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> nb::object {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>)
          return text_of(held);
        else if constexpr (std::is_same_v<Held, GgufStrings>)
          return nb::none();
        else
          return nb::cast(held);
      },
      value);
}

// (name, type, sizes or None where graft computes with no such type, offset in the file, bytes) of each tensor.
nb::list tensors_of(const WeightFile& file) {
  nb::list out;
  const std::byte* begin = file.file->bytes().data();
  for (const auto& [name, tensor] : file.tensors) {
    nb::object sizes = nb::none();
    if (tensor.shape) {
      nb::list list;
      int first = 0;  // ggml fills up to four sizes with ones
      while (first + 1 < tensor.shape->rank() && (*tensor.shape)[first] == 1) ++first;
      for (int d = first; d < tensor.shape->rank(); ++d) list.append((*tensor.shape)[d]);
      sizes = nb::tuple(list);
    }
    out.append(nb::make_tuple(text_of(name), tensor.type, sizes, tensor.bytes.data() - begin, tensor.bytes.size()));
  }
  return out;
}

}  // namespace

void bind_gguf(nb::module_& m) {
  // (key-value pairs, tensors, the pairs as a GGUF file without tensors). Arrays of strings are None.
  m.def("read_gguf", [](const std::string& path) {
    const GgufFile file = open_gguf(path);
    nb::dict pairs;
    for (const auto& [key, value] : file.pairs) pairs[text_of(key)] = object_of(value);
    return nb::make_tuple(pairs, tensors_of(file.weights), nb::bytes(file.vocabulary.data(), file.vocabulary.size()));
  });
}

}  // namespace graft
