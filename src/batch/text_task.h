#pragma once

#include <memory>
#include <string>
#include <vector>

#include "batch/grouped.h"
#include "llm/text_program.h"

namespace graft::batch {

using TextIds = std::vector<std::int64_t>;

// A task of a text encoder: the texts of one column, grouped by their number of tokens.
class TextTask : public GroupedTask<TextIds> {
 public:
  explicit TextTask(const TaskContext& context);
  std::vector<std::string> needs() const override { return {column_}; }

 protected:
  TextIds prepare(const Row& row) override;
  bool before(const TextIds& a, const TextIds& b) const override { return a.size() < b.size(); }
  std::int64_t most_rows() const override { return most_rows_; }
  TensorView output(std::span<const Item> items);

 private:
  std::string column_;
  bool truncate_;
  std::unique_ptr<llm::TextProgram> program_;
  std::int64_t most_rows_ = 1;
};

std::unique_ptr<Task> embed_task(const TaskContext& context);
std::unique_ptr<Task> classify_task(const TaskContext& context);

}  // namespace graft::batch
