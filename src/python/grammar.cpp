#include "graft/grammar.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "graft/llm.h"
#include "python/bytes.h"

// The binding of grammars and masks: sets of tokens are bytes of 32-bit words, which python/graft/llm/grammar.py views
// as arrays.
namespace nb = nanobind;

namespace graft {
namespace {

using Ids = std::vector<std::int64_t>;
using VocabularyPtr = std::shared_ptr<GrammarVocabulary>;

VocabularyPtr handed(std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return std::const_pointer_cast<GrammarVocabulary>(std::move(vocabulary));  // it has const members only
}

// A mask of Python's. The engine may drop it without holding the GIL, so releasing it takes the GIL.
class PythonMask : public TokenMask {
 public:
  PythonMask(const nb::object& allowed, const nb::object& accept, const nb::object& done)
      : functions_(new Functions{allowed, accept, done}) {}
  ~PythonMask() override {
    const nb::gil_scoped_acquire acquire;
    delete functions_;
  }
  PythonMask(const PythonMask&) = delete;
  PythonMask& operator=(const PythonMask&) = delete;

  void allowed(std::span<std::uint32_t> words) override {
    const nb::gil_scoped_acquire acquire;
    const auto bits = nb::cast<nb::bytes>(functions_->allowed(words.size()));
    GRAFT_ASSERT(bits.size() == words.size_bytes());
    std::memcpy(words.data(), bits.c_str(), bits.size());
  }
  void accept(std::int64_t id) override {
    const nb::gil_scoped_acquire acquire;
    functions_->accept(id);
  }
  bool done() const override {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<bool>(functions_->done());
  }

 private:
  struct Functions {
    nb::object allowed, accept, done;
  };
  Functions* functions_;
};

}  // namespace

void bind_grammar(nb::module_& m) {
  nb::class_<GrammarVocabulary>(m, "GrammarVocabulary")
      .def_static(
          "of_tokenizer",
          [](const Tokenizer& tokenizer, const Ids& eos) { return handed(GrammarVocabulary::of(tokenizer, eos)); },
          nb::arg("tokenizer"), nb::arg("eos_token_ids"))
      .def_static(
          "of_tokens",
          [](const nb::list& list, const Ids& eos) {
            std::vector<std::string> tokens;
            for (const nb::handle entry : list) {
              const auto bytes = nb::cast<nb::bytes>(entry);
              tokens.emplace_back(bytes.c_str(), bytes.size());
            }
            return handed(GrammarVocabulary::of(tokens, eos));
          },
          nb::arg("tokens"), nb::arg("eos_token_ids"))
      .def_static("of_model", [](const LanguageModel& model) {
        GRAFT_CHECK(InvalidArgument, model.tokenizer(), "the model has no tokenizer, which says what its tokens are");
        return handed(GrammarVocabulary::of(*model.tokenizer(), model.info().eos_token_ids));
      });

  nb::class_<TokenMask>(m, "TokenMask")
      .def("allowed",
           [](TokenMask& mask, std::size_t words) {
             std::vector<std::uint32_t> bits(words);
             mask.allowed(bits);
             return bytes_of(std::string_view(reinterpret_cast<const char*>(bits.data()), words * sizeof(bits[0])));
           })
      .def("accept", &TokenMask::accept)
      .def("done", &TokenMask::done);
  m.def("python_mask", [](const nb::object& allowed, const nb::object& accept, const nb::object& done) {
    return std::shared_ptr<TokenMask>(std::make_shared<PythonMask>(allowed, accept, done));
  });

  nb::class_<Grammar>(m, "Grammar")
      .def_static("json_schema",
                  [](std::string_view schema, VocabularyPtr of) { return Grammar::json_schema(schema, of); })
      .def_static("json_object", [](VocabularyPtr of) { return Grammar::json_object(of); })
      .def_static("regex", [](std::string_view expression, VocabularyPtr of) { return Grammar::regex(expression, of); })
      .def_static("ebnf", [](std::string_view rules, VocabularyPtr of) { return Grammar::ebnf(rules, of); })
      .def_static("lark", [](std::string_view rules, VocabularyPtr of) { return Grammar::lark(rules, of); })
      .def_static("choice",
                  [](const std::vector<std::string>& texts, VocabularyPtr of) { return Grammar::choice(texts, of); })
      .def("mask", &Grammar::mask)
      .def("matches", &Grammar::matches)
      .def("begins", &Grammar::begins);
}

}  // namespace graft
