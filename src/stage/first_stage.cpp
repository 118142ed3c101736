#include "stage/first_stage.h"

#include <map>
#include <mutex>

namespace graft::stage {

std::shared_ptr<FirstStage> first_stage_of(const std::string& model) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<FirstStage>> known;
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<FirstStage>& found = known[model];
  std::shared_ptr<FirstStage> out = found.lock();
  if (!out) found = out = std::make_shared<FirstStage>();
  return out;
}

}  // namespace graft::stage
