#include "batch/served.h"

namespace graft::batch {
namespace {

bool gives(const TaskContext& context, const std::string& name) {
  return std::ranges::any_of(context.options.columns, [&](const auto& given) { return given.first == name; });
}

// One answer to each row's messages, or to its text as the message of a user.
class ChatTask : public ServedTask {
 public:
  explicit ChatTask(const TaskContext& context)
      : ServedTask(context),
        of_text_(gives(context, "text")),
        column_(context.column(of_text_ ? "text" : "messages")),
        system_(context.options.system),
        parameters_(
            read_parameters(context.options.parameters, {"messages", "model", "stream", "stream_options", "n"})) {
    model().check_language();
  }
  std::vector<std::string> needs() const override { return {column_}; }
  std::vector<std::string> results() const override {
    if (parameters_.contains("tools")) return {"answer", "tool_calls", "finish_reason"};
    return {"answer", "finish_reason"};
  }

 protected:
  RowRequest request(const Row& row) override {
    Json messages = Json::array();
    if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
    if (of_text_) {
      messages.push_back({{"role", "user"}, {"content", text_of(row, column_)}});
    } else {
      const Json given = json_of(row, column_);
      if (!given.is_array())
        bad_row("column '", column_, "' must be an array of messages, found ", serve::kind_of(given));
      for (const Json& message : given) messages.push_back(message);
    }
    Json body = {{"messages", std::move(messages)}};
    body.update(parameters_);
    return {"/v1/chat/completions", serve::dump(body)};
  }

  std::vector<std::string> result(const Row&, const serve::Response& response) override {
    const Json body = body_of(response);
    const Json& choice = body.at("choices").at(0);
    const Json& message = choice.at("message");
    std::vector<std::string> values = {serve::dump(message.at("content"))};
    if (parameters_.contains("tools"))
      values.push_back(message.contains("tool_calls") ? serve::dump(message.at("tool_calls")) : "null");
    values.push_back(serve::dump(choice.at("finish_reason")));
    return values;
  }

 private:
  bool of_text_;
  std::string column_, system_;
  Json parameters_;
};

}  // namespace

std::unique_ptr<Task> chat_task(const TaskContext& context) { return std::make_unique<ChatTask>(context); }

}  // namespace graft::batch
