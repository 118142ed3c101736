#include "load/load_cache.h"

#include <algorithm>
#include <map>
#include <utility>

namespace graft {

std::shared_ptr<LoadCache> LoadCache::of(std::vector<const void*> sources, const std::string& settings) {
  // Never destroyed: programs may be destroyed while the process ends.
  static auto* mutex = new std::mutex;
  static auto* caches = new std::map<std::pair<std::vector<const void*>, std::string>, std::weak_ptr<LoadCache>>;
  std::ranges::sort(sources);
  const std::lock_guard lock(*mutex);
  std::erase_if(*caches, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<LoadCache>& entry = (*caches)[{std::move(sources), settings}];
  std::shared_ptr<LoadCache> cache = entry.lock();
  if (!cache) entry = cache = std::make_shared<LoadCache>();
  return cache;
}

}  // namespace graft
