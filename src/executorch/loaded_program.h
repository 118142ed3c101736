#pragma once

#include <executorch/runtime/core/freeable_buffer.h>
#include <executorch/runtime/core/named_data_map.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "graft/graft.h"

namespace graft {

// What the delegates of one program that ExecuTorch has loaded share: mutable buffers, by name, and mapped weights, by
// key. Every method is a program of its own to graft, and one method may have several delegates. The last delegate
// frees it.
class LoadedProgram {
 public:
  // That of the program with this data. A second load of the same file has one of its own, even when both are in the
  // same memory. A package without kSessionKey shares nothing: the result is used once. `data`: may be null.
  static std::shared_ptr<LoadedProgram> of(const executorch::runtime::NamedDataMap* data);

  // LoadOptions::delegate_of: the names of the program's data. `data`: may be null.
  static std::string name(const executorch::runtime::NamedDataMap* data);

  LoadedProgram() = default;
  ~LoadedProgram();
  LoadedProgram(const LoadedProgram&) = delete;
  LoadedProgram& operator=(const LoadedProgram&) = delete;

  const std::shared_ptr<States>& states() const { return states_; }
  // Bytes of a weight; valid as long as this object. Throws NotFound.
  std::span<const std::byte> weight(const executorch::runtime::NamedDataMap* data, std::string_view key);

 private:
  std::shared_ptr<States> states_ = std::make_shared<States>();
  std::mutex mutex_;
  std::map<std::string, executorch::runtime::FreeableBuffer, std::less<>> weights_;
};

}  // namespace graft
