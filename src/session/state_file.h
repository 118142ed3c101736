#pragma once

#include <string>

#include "session/kv_cache.h"
#include "session/state_store.h"

namespace graft {

// Writes the states of a session to a file and reads them back.
class StateFile {
 public:
  explicit StateFile(KvCache& cache) : cache_(cache), states_(cache.states()) {}

  // As Session's functions of these names.
  void save(const std::string& path);
  void restore(const std::string& path);

 private:
  KvCache& cache_;
  StateStore& states_;
};

}  // namespace graft
