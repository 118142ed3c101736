#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "batch/options.h"
#include "batch/row.h"

namespace graft::batch {

// What is done with each row. For one thread.
class Task {
 public:
  virtual ~Task() = default;
  // Columns that every row must have.
  virtual std::vector<std::string> needs() const = 0;
  // Names of what it adds to a row; none: a result is the whole row.
  virtual std::vector<std::string> results() const = 0;
  // Begins with the rows of a shard, which stays where it is until finish().
  virtual void start(Shard& shard) = 0;
  // Returns when all rows of the shard have results. Shards are finished in the order in which they were started.
  virtual void finish(Shard& shard) = 0;
  // How many shards should be started before the first of them is finished.
  virtual std::size_t ahead() const { return 1; }
};

// Called with the number of rows that have got results.
using OnRows = std::function<void(std::size_t rows)>;

// What a task needs to know of its run.
struct TaskContext {
  const BatchOptions& options;
  std::string run_id;        // of the input: what ids of answers are made of
  std::int64_t created = 0;  // when the run began, seconds since 1970
  OnRows on_rows;

  // The column for what a task calls `name`.
  std::string column(const std::string& name) const;
  // The same of a task that reads nothing else with this model. Throws InvalidArgument for columns of other names.
  std::string only_column(const std::string& name) const;
  // The file that a row names.
  std::string file_of(const std::string& path) const;
};

// For sessions of a task's program.
SessionOptions session_options(const BatchOptions& options);
// The method that a task runs: that of the options, else forward, or the only one. Throws NotFound, InvalidArgument.
const MethodInfo& method_of(const Program& program, const BatchOptions& options);

// Throws InvalidArgument for a task that is not known or that the model cannot do, and what loading the model throws.
std::unique_ptr<Task> make_task(const TaskContext& context);
// What options say of a task, as the manifest has it. Throws InvalidArgument for options that the task does not have.
Json task_options(const BatchOptions& options);

}  // namespace graft::batch
