#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "graft/adapter.h"

namespace graft {

// Of a list of `Adapter` and None.
std::vector<std::shared_ptr<const Adapter>> adapters_of(const nanobind::handle& list);

}  // namespace graft
