#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

// Forward declarations of JSON for headers. Only sources that use values include base/json.h, which takes seconds to
// compile.
namespace graft {

template <typename T>
class JsonAllocator;

using Json =
    nlohmann::basic_json<std::map, std::vector, std::string, bool, std::int64_t, std::uint64_t, double, JsonAllocator>;
// Objects keep the order of their members.
using OrderedJson = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, std::int64_t,
                                         std::uint64_t, double, JsonAllocator>;

}  // namespace graft
