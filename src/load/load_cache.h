#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "load/fold.h"
#include "weight/weight_placer.h"

namespace graft {

// What programs with the same weights make of them, while they live: copies, conversions, packed weights and folded
// constants. Everything is found by the addresses of what it was made from, and whoever holds it holds that too, so an
// address never stands for other bytes.
struct LoadCache {
  // Held while a program places its weights and folds its constants. Recursive: LoadOptions::on_phase may load.
  std::recursive_mutex mutex;
  MadeWeights weights;
  ConstantPool constants;

  // That of programs whose weights lie in these objects (mapped files, or what owns memory), which the caller keeps
  // alive as long as the cache, and whose constants are computed with these settings: others may differ in bits.
  static std::shared_ptr<LoadCache> of(std::vector<const void*> sources, const std::string& settings);
};

}  // namespace graft
