#include "batch/text_task.h"

namespace graft::batch {

TextTask::TextTask(const TaskContext& context)
    : GroupedTask(context.on_rows), column_(context.column("text")), truncate_(context.options.truncate) {
  const BatchOptions& options = context.options;
  const auto program = Program::load(options.model.path, options.load);
  const std::string& tokenizer = options.model.tokenizer;
  SessionOptions session;
  session.threads = options.decoder.threads;
  program_ = std::make_unique<llm::TextProgram>(
      program, Tokenizer::load(tokenizer.empty() ? options.model.path : tokenizer, options.load.text), session,
      options.method);
  most_rows_ = std::min(options.batch_rows, program_->max_texts());
}

TextIds TextTask::prepare(const Row& row) {
  const std::int64_t most = program_->max_tokens();
  TextIds ids = program_->ids(text_of(row, column_), truncate_ ? std::optional(most) : std::nullopt);
  if (std::ssize(ids) > most)
    bad_row("column '", column_, "' has ", ids.size(), " tokens, the model takes ", most,
            " (--truncate cuts such texts off)");
  return ids;
}

TensorView TextTask::output(std::span<const Item> items) {
  std::vector<TextIds> texts;
  for (const Item& item : items) texts.push_back(item.row);
  return program_->run(texts);
}

}  // namespace graft::batch
