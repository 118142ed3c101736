#include "batch/served.h"

namespace graft::batch {
namespace {

// One text of each row's prompt.
class GenerateTask : public ServedTask {
 public:
  explicit GenerateTask(const TaskContext& context)
      : ServedTask(context),
        column_(context.column("text")),
        parameters_(read_parameters(context.options.parameters, {"prompt", "model", "stream", "stream_options", "n"})) {
    model().check_language();
  }
  std::vector<std::string> needs() const override { return {column_}; }
  std::vector<std::string> results() const override { return {"completion", "finish_reason"}; }

 protected:
  RowRequest request(const Row& row) override {
    Json body = {{"prompt", text_of(row, column_)}};
    body.update(parameters_);
    return {"/v1/completions", serve::dump(body)};
  }
  std::vector<std::string> result(const Row&, const serve::Response& response) override {
    const Json body = body_of(response);
    const Json& choice = body.at("choices").at(0);
    return {serve::dump(choice.at("text")), serve::dump(choice.at("finish_reason"))};
  }

 private:
  std::string column_;
  Json parameters_;
};

}  // namespace

std::unique_ptr<Task> generate_task(const TaskContext& context) { return std::make_unique<GenerateTask>(context); }

}  // namespace graft::batch
