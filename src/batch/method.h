#pragma once

#include <memory>

#include "batch/task.h"

namespace graft::batch {

// Any method of a program: columns to inputs, outputs to columns.
std::unique_ptr<Task> method_task(const TaskContext& context);

}  // namespace graft::batch
