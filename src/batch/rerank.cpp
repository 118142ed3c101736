#include "batch/served.h"

namespace graft::batch {
namespace {

// Each row's documents by how near they are to its query.
class RerankTask : public ServedTask {
 public:
  explicit RerankTask(const TaskContext& context)
      : ServedTask(context),
        query_(context.column("query")),
        documents_(context.column("documents")),
        parameters_(read_parameters(context.options.parameters, {"query", "documents", "model"})) {
    model().check_embedder();
  }
  std::vector<std::string> needs() const override { return {query_, documents_}; }
  std::vector<std::string> results() const override { return {"results"}; }

 protected:
  RowRequest request(const Row& row) override {
    Json body = {{"query", text_of(row, query_)}, {"documents", json_of(row, documents_)}};
    body.update(parameters_);
    return {"/v1/rerank", serve::dump(body)};
  }
  std::vector<std::string> result(const Row&, const serve::Response& response) override {
    return {serve::dump(body_of(response).at("results"))};
  }

 private:
  std::string query_, documents_;
  Json parameters_;
};

}  // namespace

std::unique_ptr<Task> rerank_task(const TaskContext& context) { return std::make_unique<RerankTask>(context); }

}  // namespace graft::batch
