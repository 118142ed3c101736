#include "batch/served.h"
#include "serve/api_error.h"

namespace graft::batch {
namespace {

constexpr const char* kPaths[] = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"};

// Files of OpenAI's Batch API: each row is a request with its path, each result the line of the answer.
class OpenAiTask : public ServedTask {
 public:
  explicit OpenAiTask(const TaskContext& context) : ServedTask(context) {}
  std::vector<std::string> needs() const override { return {}; }
  std::vector<std::string> results() const override { return {}; }

 protected:
  RowRequest request(const Row& row) override {
    try {
      serve::Fields fields(row.fields);
      fields.need_text("custom_id");
      const std::string method = fields.need_text("method");
      if (method != "POST") bad_row("'method' must be POST, found '", method, "'");
      const std::string url = fields.need_text("url");
      if (std::ranges::find(kPaths, url) == std::end(kPaths))
        bad_row("'url' must be /v1/chat/completions, /v1/completions or /v1/embeddings, found '", url, "'");
      const Json& body = fields.need_object("body");
      fields.end();
      if (const auto stream = body.find("stream"); stream != body.end() && *stream == true)
        bad_row("'body.stream' must be false: a batch has no streams");
      return {url, serve::dump(body)};
    } catch (const serve::ApiError& error) {
      bad_row(error.what());
    }
  }

  std::vector<std::string> result(const Row& row, const serve::Response& response) override {
    const std::string id = id_of(row);
    // The body as it was answered: parsing it would only take time.
    return {str(R"({"id":"batch_req_)", id, R"(","custom_id":)", serve::dump(row.fields.at("custom_id")),
                R"(,"response":{"status_code":)", response.status, R"(,"request_id":")", id, R"(","body":)",
                response.body, R"(},"error":null})")};
  }
};

}  // namespace

std::unique_ptr<Task> openai_task(const TaskContext& context) { return std::make_unique<OpenAiTask>(context); }

}  // namespace graft::batch
