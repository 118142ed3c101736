#pragma once

#include <memory>
#include <string>
#include <vector>

#include "batch/task.h"

namespace graft::batch {

// What is made of an encoder's output for a row.
class OutputReader {
 public:
  virtual ~OutputReader() = default;
  virtual std::vector<std::string> names() const = 0;
  // Of place `place` of the first dimension, where the row has `tokens` of the second; `labels`: of the package, or
  // none. Throws Unsupported for an output of other sizes than it reads.
  virtual RowResult read(const TensorView& output, std::int64_t place, std::int64_t tokens,
                         const std::vector<std::string>& labels) const = 0;
};

// Of pictures where the package says how these become its input, else of texts.
std::unique_ptr<Task> encoder_task(const TaskContext& context, std::unique_ptr<const OutputReader> reader);
std::unique_ptr<Task> text_task(const TaskContext& context, std::unique_ptr<const OutputReader> reader);
std::unique_ptr<Task> picture_task(const TaskContext& context, std::unique_ptr<const OutputReader> reader);

std::unique_ptr<Task> embed_task(const TaskContext& context);
std::unique_ptr<Task> classify_task(const TaskContext& context);

}  // namespace graft::batch
