#include "graft/tokenizer.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "python/bytes.h"

// The binding of tokenizers. Strings are bytes here: python/graft/runtime/tokenizer.py takes and returns str.
namespace nb = nanobind;

namespace graft {
namespace {

using TokenizerPtr = std::shared_ptr<Tokenizer>;

TokenizerPtr handed(std::shared_ptr<const Tokenizer> tokenizer) {
  return std::const_pointer_cast<Tokenizer>(std::move(tokenizer));  // it has const members only
}

std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

std::vector<std::vector<std::int64_t>> encode_all(const Tokenizer& tokenizer, const nb::list& texts,
                                                  const EncodeOptions& options) {
  std::vector<std::string_view> views;
  for (nb::handle text : texts) views.push_back(view(nb::cast<nb::bytes>(text)));
  const nb::gil_scoped_release release;
  std::vector<std::vector<std::int64_t>> out;
  out.reserve(views.size());
  for (std::string_view text : views) out.push_back(tokenizer.encode(text, options));
  return out;
}

}  // namespace

void bind_tokenizer(nb::module_& m) {
  nb::class_<Tokenizer>(m, "Tokenizer")
      .def_static(
          "load",
          [](const std::string& path, std::int64_t vocabulary, std::int64_t steps, std::int64_t bytes) {
            return handed(Tokenizer::load(path, {vocabulary, steps, bytes}));
          },
          nb::arg("path"), nb::kw_only(), nb::arg("max_vocabulary") = TextLimits{}.max_vocabulary,
          nb::arg("max_template_steps") = TextLimits{}.max_template_steps,
          nb::arg("max_template_bytes") = TextLimits{}.max_template_bytes)
      .def_static(
          "from_json",
          [](const nb::bytes& tokenizer_json, const nb::bytes& config_json, std::int64_t vocabulary, std::int64_t steps,
             std::int64_t bytes) {
            return handed(Tokenizer::from_json(view(tokenizer_json), view(config_json), {vocabulary, steps, bytes}));
          },
          nb::arg("tokenizer_json"), nb::arg("config_json"), nb::kw_only(),
          nb::arg("max_vocabulary") = TextLimits{}.max_vocabulary,
          nb::arg("max_template_steps") = TextLimits{}.max_template_steps,
          nb::arg("max_template_bytes") = TextLimits{}.max_template_bytes)
      .def("encode",
           [](const Tokenizer& self, const nb::bytes& text, bool add_special, std::size_t max_length) {
             return self.encode(view(text), {add_special, max_length});
           })
      .def("encode_all",
           [](const Tokenizer& self, const nb::list& texts, bool add_special, std::size_t max_length) {
             return encode_all(self, texts, {add_special, max_length});
           })
      .def("decode", [](const Tokenizer& self, const std::vector<std::int64_t>& ids,
                        bool skip_special) { return bytes_of(self.decode(ids, skip_special)); })
      .def("size", &Tokenizer::size)
      .def("piece", &Tokenizer::piece)
      .def("find", &Tokenizer::find)
      .def("is_special", &Tokenizer::is_special)
      .def("special_ids",
           [](const Tokenizer& self) {
             const auto& ids = self.special_ids();
             nb::dict out;
             out["bos"] = ids.bos;
             out["eos"] = ids.eos;
             out["unk"] = ids.unk;
             out["pad"] = ids.pad;
             return out;
           })
      .def("truncation", &Tokenizer::truncation)
      .def("chat_template", &Tokenizer::chat_template)
      .def("identity", &Tokenizer::identity)
      .def("apply_chat_template",
           [](const Tokenizer& self, const std::string& variables, const std::optional<std::string>& chat_template) {
             return chat_template ? self.apply_chat_template(variables, *chat_template)
                                  : self.apply_chat_template(variables);
           });

  nb::class_<Detokenizer>(m, "Detokenizer")
      .def(
          "__init__",
          [](Detokenizer* self, TokenizerPtr tokenizer, bool skip_special) {
            new (self) Detokenizer(std::move(tokenizer), skip_special);
          },
          nb::arg("tokenizer"), nb::arg("skip_special") = true)
      .def("add", [](Detokenizer& self, std::int64_t id) { return self.add(id); })
      .def("finish", &Detokenizer::finish);
}

}  // namespace graft
