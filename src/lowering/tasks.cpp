#include "lowering/tasks.h"

#include <algorithm>

#include "kernel/strided.h"
#include "lowering/lowering.h"

namespace graft {
namespace {

// Takes two cores some 50 microseconds.
constexpr std::uint64_t kMinBytes = std::uint64_t{1} << 20;

std::int64_t largest_output(const Launch& launch) {
  std::int64_t elements = 0;
  for (const Tensor& t : launch.outputs) elements = std::max(elements, t.numel());
  return elements;
}

std::int64_t work_of(const Launch& launch) {
  return launch.kernel->work == nullptr ? largest_output(launch)
                                        : launch.kernel->work(DescribedLaunch(launch).context());
}

}  // namespace

bool has_little_work(const Launch& launch) { return work_of(launch) < launch.kernel->parallel_from; }

double relative_work(const Launch& launch) {
  // A kernel that counts no work, since tasks cannot divide it, still writes its outputs.
  const std::int64_t work = std::max(work_of(launch), std::int64_t{1});
  const bool counted = launch.kernel->parallel_from > 0;
  return counted ? static_cast<double>(work) / static_cast<double>(launch.kernel->parallel_from)
                 : static_cast<double>(largest_output(launch)) / static_cast<double>(kMinParallelElements);
}

std::uint64_t touched_bytes(const Launch& launch) {
  std::uint64_t bytes = 0;
  for (const std::vector<Tensor>* tensors : {&launch.inputs, &launch.outputs})
    for (const Tensor& t : *tensors) {
      const ByteSpan span = byte_span(t.desc);
      bytes += t.stored
                   ? stored_bytes(*t.stored, t.shape())
                   : std::min<std::uint64_t>(t.desc.byte_count(), static_cast<std::uint64_t>(span.high - span.low));
    }
  return bytes;
}

int tasks_per_thread(const Launch& launch) {
  // Work stealing divides the work more finely by itself; further tasks would only repeat what each one prepares.
  if (launch.kernel != nullptr && launch.kernel->steals_work) return 1;
  const bool heavy = launch.kernel != nullptr && !launch.serial && touched_bytes(launch) >= kMinBytes;
  return heavy ? kMaxTasksPerThread : 1;
}

int max_tasks(int threads) { return threads > 1 ? threads * kMaxTasksPerThread : 1; }

}  // namespace graft
