#include "lowering/tasks.h"

#include <algorithm>

#include "lowering/lowering.h"

namespace graft {
namespace {

// Takes two cores some 50 microseconds.
constexpr std::uint64_t kMinBytes = std::uint64_t{1} << 20;

std::int64_t work_of(const Launch& launch) {
  if (launch.kernel->work == nullptr) {
    std::int64_t elements = 0;
    for (const Tensor& t : launch.outputs) elements = std::max(elements, t.numel());
    return elements;
  }
  return launch.kernel->work(DescribedLaunch(launch).context());
}

}  // namespace

bool has_little_work(const Launch& launch) { return work_of(launch) < launch.kernel->parallel_from; }

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
