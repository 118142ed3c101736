#include <list>

#include "base/check.h"
#include "load/program_impl.h"

namespace graft {

std::size_t PlanCache::KeyHash::operator()(const Key& key) const {
  // FNV-1a over the words; lookups compare the whole key, so a collision only costs a comparison.
  std::uint64_t hash = 1469598103934665603ull;
  const auto mix = [&](std::uint64_t word) { hash = (hash ^ word) * 1099511628211ull; };
  mix(key.method);
  mix(static_cast<std::uint64_t>(key.threads));
  for (std::int64_t size : key.shape) mix(static_cast<std::uint64_t>(size));
  return hash;
}

PlanCache::Result PlanCache::get(std::uint32_t method, int threads, const std::vector<std::int64_t>& shape,
                                 const std::function<Plan()>& make) {
  const Key key{method, threads, shape};
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard lock(mutex_);
    auto it = slots_.find(key);
    if (it != slots_.end()) {
      slot = it->second;
      order_.splice(order_.begin(), order_, slot->used);
    } else {
      slot = std::make_shared<Slot>();
      std::list<Key> newest{key};
      slots_.emplace(key, slot);  // may find no memory: nothing has changed then
      order_.splice(order_.begin(), newest);
      slot->used = order_.begin();
      if (slots_.size() > capacity_) {
        slots_.erase(order_.back());
        order_.pop_back();
      }
    }
  }
  const std::lock_guard making(slot->making);
  if (slot->plan) return {slot->plan, true};
  try {
    auto plan = std::make_shared<const Plan>(make());
    const std::lock_guard lock(mutex_);
    slot->plan = std::move(plan);
  } catch (...) {
    // A failed attempt must not occupy a slot of the cache.
    const std::lock_guard lock(mutex_);
    const auto it = slots_.find(key);
    if (it != slots_.end() && it->second == slot) {
      order_.erase(slot->used);
      slots_.erase(it);
    }
    throw;
  }
  return {slot->plan, false};
}

void PlanCache::clear() {
  const std::lock_guard lock(mutex_);
  slots_.clear();
  order_.clear();
}

std::size_t PlanCache::size() const {
  const std::lock_guard lock(mutex_);
  return slots_.size();
}

std::vector<std::pair<std::uint32_t, std::shared_ptr<const Plan>>> PlanCache::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::uint32_t, std::shared_ptr<const Plan>>> out;
  for (const Key& key : order_)
    if (const auto& plan = slots_.at(key)->plan) out.emplace_back(key.method, plan);
  return out;
}

}  // namespace graft
