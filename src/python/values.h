#pragma once

#include <nanobind/nanobind.h>

#include "graft/graft.h"

namespace graft {

// A tensor is the tuple (address, dtype, sizes); numbers, strings and None are passed as themselves.
Value to_value(nanobind::handle object);
nanobind::object from_value(const Value& value);

}  // namespace graft
