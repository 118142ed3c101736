#include "plan/inputs.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <string_view>

#include "base/check.h"

namespace graft {
namespace {

std::string input_name(const ir::Method& method, std::uint32_t index) {
  const std::string label =
      index < method.user_input_names.size() ? " ('" + method.user_input_names[index] + "')" : std::string();
  return str("input ", index, label, " of method '", method.name, "'");
}

}  // namespace

std::size_t user_input_count(const ir::Method& method) {
  std::size_t count = method.user_input_names.size();
  for (const ir::Input& input : method.inputs)
    if (input.kind == ir::InputKind::user) count = std::max<std::size_t>(count, input.index + 1);
  return count;
}

void check_inputs(const ir::Method& method, std::span<const InputDesc> inputs) {
  const std::size_t count = user_input_count(method);
  GRAFT_CHECK(InvalidArgument, inputs.size() == count, "method '", method.name, "' takes ", count, " inputs, got ",
              inputs.size());
  // Dimensions with the same symbolic expression must have the same size.
  std::map<std::string_view, std::pair<std::int64_t, std::string>> sizes;
  for (const ir::Input& input : method.inputs) {
    if (input.kind != ir::InputKind::user) continue;
    const ir::Value& value = method.values[input.value];
    const InputDesc& given = inputs[input.index];
    if (value.kind != ir::ValueKind::tensor) {
      GRAFT_CHECK(InvalidArgument, !given.is_tensor, input_name(method, input.index), " must be a number, got ",
                  given.desc.str());
      GRAFT_CHECK(InvalidArgument, !given.scalar.is_real() || value.kind == ir::ValueKind::real,
                  input_name(method, input.index), " must be ", value.str(), ", got ", given.scalar.f);
      if (value.dims.size() == 1 && !given.scalar.is_real())
        GRAFT_CHECK(InvalidArgument, given.scalar.i >= value.dims[0].min && given.scalar.i <= value.dims[0].max,
                    input_name(method, input.index), " must be in ", value.dims[0].min, "..", value.dims[0].max,
                    ", got ", given.scalar.i);
      continue;
    }
    GRAFT_CHECK(InvalidArgument, given.is_tensor, input_name(method, input.index), " must be a tensor ", value.str(),
                ", got a number");
    GRAFT_CHECK(InvalidArgument, given.desc.dtype == value.dtype, input_name(method, input.index), " must have dtype ",
                name(value.dtype), ", got ", name(given.desc.dtype));
    GRAFT_CHECK(InvalidArgument, given.desc.rank() == value.rank(), input_name(method, input.index), " must be ",
                value.str(), " (rank ", value.rank(), "), got ", given.desc.str(), " (rank ", given.desc.rank(), ")");
    for (int d = 0; d < value.rank(); ++d) {
      const ir::Dim& dim = value.dims[static_cast<std::size_t>(d)];
      const std::int64_t size = given.desc.shape[d];
      GRAFT_CHECK(InvalidArgument, size >= dim.min && size <= dim.max, input_name(method, input.index),
                  ": size of dimension ", d, " must be ",
                  dim.is_static()             ? str(dim.min)
                  : dim.max == ir::kUnbounded ? str("at least ", dim.min)
                                              : str("in ", dim.min, "..", dim.max),
                  ", got ", size);
      if (dim.is_static() || dim.expr.empty()) continue;
      const auto [it, fresh] =
          sizes.try_emplace(dim.expr, size, str("dimension ", d, " of ", input_name(method, input.index)));
      GRAFT_CHECK(InvalidArgument, it->second.first == size, input_name(method, input.index), ": size of dimension ", d,
                  " must be ", it->second.first, " as that of ", it->second.second, ", got ", size);
    }
  }
}

void append_plan_key(std::span<const InputDesc> inputs, std::vector<std::int64_t>& key) {
  for (const InputDesc& input : inputs) {
    if (input.is_tensor) {
      for (std::int64_t size : input.desc.shape.sizes()) key.push_back(size);
    } else {
      key.push_back(input.scalar.is_real() ? std::bit_cast<std::int64_t>(input.scalar.f) : input.scalar.i);
    }
  }
}

void append_kv_key(const KvOptions& kv, const KvExtent& extent, std::vector<std::int64_t>& key) {
  key.insert(key.end(), {kv.rows, kv.length, static_cast<std::int64_t>(kv.type), kv.window_slack, kv.encoder_length,
                         extent.first_row, extent.held});
}

bool has_kv_cache(std::span<const ir::State> states) {
  return std::ranges::any_of(states, [](const ir::State& s) { return s.kind != ir::StateKind::plain; });
}

}  // namespace graft
