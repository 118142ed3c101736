#include <algorithm>
#include <numeric>

#include "serve/embedder.h"
#include "serve/openai/openai.h"
#include "serve/openai/text_request.h"

namespace graft::serve {
namespace {

constexpr std::size_t kMostDocuments = 2048;

// A string, or an object with one under "text".
std::string document_of(const Json& given, const std::string& path) {
  if (given.is_string()) return given.get<std::string>();
  if (!given.is_object())
    bad_request(path, "'", path, "' must be a string or an object with 'text', found ", kind_of(given));
  Fields fields(given, path + ".");
  std::string text = fields.need_text("text");
  fields.end();
  return text;
}

}  // namespace

// Documents by the cosine of their vector's angle with the query's.
void rerank(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const Json json = parse_object(call->request().body);
  Fields fields(json);
  const auto model = app.model_of(fields);
  model->check_embedder();
  std::vector<std::string> texts = {fields.need_text("query")};
  // "texts" is the name that Hugging Face's text-embeddings-inference has; its answer is a list of indices and scores.
  const Json* given = fields.array("documents");
  const Json* also = fields.array("texts");
  if (given && also) bad_request("texts", "'documents' and 'texts' are the same: one of them is allowed");
  const bool list = also != nullptr;
  const std::string name = list ? "texts" : "documents";
  const Json& documents = list ? *also : fields.need_array("documents");
  if (documents.empty() || documents.size() > kMostDocuments)
    bad_request(name, "'", name, "' must have from 1 to ", kMostDocuments, " texts, found ", documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) texts.push_back(document_of(documents[i], str(name, '[', i, ']')));
  const auto most = static_cast<std::int64_t>(documents.size());
  const std::int64_t top = std::min(fields.integer("top_n", 1, INT32_MAX).value_or(most), most);
  const bool with_documents = fields.boolean(list ? "return_text" : "return_documents").value_or(false);
  fields.accept_text("user");
  fields.end();
  std::size_t bytes = 0;
  std::int64_t tokens = 0;
  std::vector<std::vector<std::int64_t>> ids;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string path = i == 0 ? "query" : str(name, '[', i - 1, ']');
    if (texts[i].empty()) bad_request(path, "'", path, "' is an empty string");
    bytes += texts[i].size();
    check_prompt_bytes(bytes, app.options.limits);
    ids.push_back(model->embedder->encode(texts[i]));
    model->embedder->check(ids.back(), path, path);
    tokens += std::ssize(ids.back());
  }
  call->note("model", model->name);
  call->note("prompt_tokens", tokens);
  const CancelToken gone;
  call->on_gone([gone] { gone.cancel(); });
  model->embedder->embed(
      std::move(ids), deadline_of(*call, app.options.limits), gone,
      [call, model, texts, tokens, top, with_documents, list](const std::vector<std::vector<float>>& vectors,
                                                              std::exception_ptr error) {
        if (error) return call->fail(error);
        std::vector<std::pair<double, std::size_t>> found;  // minus the score: the best first, then as they came
        for (std::size_t i = 1; i < vectors.size(); ++i)
          found.emplace_back(-std::inner_product(vectors[0].begin(), vectors[0].end(), vectors[i].begin(), 0.0), i - 1);
        std::ranges::sort(found);
        Json results = Json::array();
        for (std::size_t i = 0; i < static_cast<std::size_t>(top); ++i) {
          const std::string& text = texts[found[i].second + 1];
          Json result = {{"index", found[i].second}, {list ? "score" : "relevance_score", -found[i].first}};
          if (with_documents && list) result["text"] = text;
          if (with_documents && !list) result["document"] = {{"text", text}};
          results.push_back(std::move(result));
        }
        if (list) return call->respond_json(results);
        call->respond_json({{"object", "list"},
                            {"id", "rerank-" + call->id()},
                            {"model", model->name},
                            {"results", std::move(results)},
                            {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
      });
}

}  // namespace graft::serve
