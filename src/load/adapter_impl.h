#pragma once

#include <memory>
#include <span>

#include "graft/adapter.h"
#include "kernel/kernel.h"
#include "pass/graph/adapters.h"

namespace graft {

// Gives the library's own code access to adapters.
struct AdapterAccess {
  using Impl = Adapter::Impl;
  // By layer of the program, as long as the adapter lives.
  static std::span<const LowRank> list(const Adapter& adapter);
  // Whether it was made for a program with these layers.
  static bool is_of(const Adapter& adapter, const AdapterLayers& layers);
  static std::shared_ptr<const Adapter> make(std::unique_ptr<const Impl> impl);
};

}  // namespace graft
