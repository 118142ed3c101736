#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graft/graft.h"

namespace graft::cli {

// Every counter with its name in the C++ interface.
std::vector<std::pair<std::string, std::uint64_t>> counter_list(const Counters& counters);
std::string counter_table(const Counters& counters);

}  // namespace graft::cli
