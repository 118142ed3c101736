#include "batch/encoder_task.h"
#include "batch/grouped.h"
#include "llm/text_program.h"

namespace graft::batch {
namespace {

using TextIds = std::vector<std::int64_t>;

// The texts of one column, grouped by their number of tokens.
class TextTask : public GroupedTask<TextIds> {
 public:
  TextTask(const TaskContext& context, std::unique_ptr<const OutputReader> reader)
      : GroupedTask(context.on_rows),
        reader_(std::move(reader)),
        column_(context.only_column("text")),
        truncate_(context.options.truncate) {
    const BatchOptions& options = context.options;
    const auto program = Program::load(options.model.path, options.load);
    const std::string& tokenizer = options.model.tokenizer;
    program_ = std::make_unique<llm::TextProgram>(
        program, Tokenizer::load(tokenizer.empty() ? options.model.path : tokenizer, options.load.text),
        session_options(options), options.method);
    most_rows_ = std::min(options.batch_rows, program_->max_texts());
  }
  std::vector<std::string> needs() const override { return {column_}; }
  std::vector<std::string> results() const override { return reader_->names(); }

 protected:
  TextIds prepare(const Row& row) override {
    const std::int64_t most = program_->max_tokens();
    TextIds ids = program_->ids(text_of(row, column_), truncate_ ? std::optional(most) : std::nullopt);
    if (std::ssize(ids) > most)
      bad_row("column '", column_, "' has ", ids.size(), " tokens, the model takes ", most,
              " (--truncate cuts such texts off)");
    return ids;
  }
  bool before(const TextIds& a, const TextIds& b) const override { return a.size() < b.size(); }
  std::int64_t most_rows() const override { return most_rows_; }

  std::vector<RowResult> run(std::span<const Item> items) override {
    std::vector<TextIds> texts;
    for (const Item& item : items) texts.push_back(item.row);
    const TensorView output = program_->run(texts);
    std::vector<RowResult> results;
    for (std::size_t i = 0; i < items.size(); ++i)
      results.push_back(reader_->read(output, static_cast<std::int64_t>(i), std::ssize(items[i].row), {}));
    return results;
  }

 private:
  const std::unique_ptr<const OutputReader> reader_;
  const std::string column_;
  const bool truncate_;
  std::unique_ptr<llm::TextProgram> program_;
  std::int64_t most_rows_ = 1;
};

}  // namespace

std::unique_ptr<Task> text_task(const TaskContext& context, std::unique_ptr<const OutputReader> reader) {
  return std::make_unique<TextTask>(context, std::move(reader));
}

}  // namespace graft::batch
