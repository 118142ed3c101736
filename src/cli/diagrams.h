#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "graft/graft.h"

// Diagrams: the page of `graft inspect --html` and the trace of `graft run --trace`.
namespace graft::cli {

// A page that needs no network: src/cli/page.html with the data in it, which is Program::describe(true) and, in plans
// that were run, "profile".
std::string html_page(const OrderedJson& described);

// Times of the fastest of several runs, with inputs of zeros or, where the method refuses these, integers that count up
// along the last dimension. `shapes`: inputs without data. Throws what the runs throw.
OrderedJson profile_of(const std::shared_ptr<const Program>& program, const MethodInfo& method,
                       const std::vector<Value>& shapes, int threads);

// The run as Chrome and Perfetto read it: one slice for the call, in it one for each launch, with its operator, kernel
// and explanation. `wall_ns`: of the call.
std::string trace_json(const Program& program, const std::string& method, int threads,
                       std::span<const NodeTiming> profile, std::int64_t wall_ns);

// Throws SystemError.
void write_text(const std::string& path, const std::string& text);

}  // namespace graft::cli
