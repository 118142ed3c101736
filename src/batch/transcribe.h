#pragma once

#include <memory>

#include "batch/task.h"

namespace graft::batch {

std::unique_ptr<Task> transcribe_task(const TaskContext& context);

}  // namespace graft::batch
