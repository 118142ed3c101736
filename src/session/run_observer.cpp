#include "session/run_observer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/number_at.h"
#include "lowering/launch.h"

namespace graft {
namespace {

// Calls visit(index, byte offset) for each element, in row-major order; `index` has an entry for each dimension.
template <typename Visit>
void for_each_element(const TensorDesc& desc, Visit visit) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(desc.rank()), 0);
  const auto element = static_cast<std::int64_t>(byte_size(desc.dtype));
  for (std::int64_t count = desc.numel(); count > 0; --count) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < index.size(); ++d) offset += index[d] * desc.strides[d];
    visit(index, offset * element);
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < desc.shape[static_cast<int>(d)]) break;
      index[d] = 0;
    }
  }
}

// Least and greatest of the numbers that are not NaN.
struct Range {
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();
};

// Of a strided tensor, contiguous.
class Copy {
 public:
  Copy(const void* data, const TensorDesc& desc) : desc_(desc) {
    const std::size_t element = byte_size(desc.dtype);
    bytes_.resize(static_cast<std::size_t>(desc.numel()) * element);
    std::byte* to = bytes_.data();
    for_each_element(desc, [&](const auto&, std::int64_t offset) {
      std::memcpy(to, static_cast<const std::byte*>(data) + offset, element);
      to += element;
    });
  }
  TensorView view() { return {bytes_.data(), desc_.dtype, desc_.shape}; }

 private:
  TensorDesc desc_;
  std::vector<std::byte> bytes_;
};

BufferId buffer_of(const Launch& launch, std::size_t output) {
  return output == 0 ? launch.written : launch.outputs[output].buffer;
}

std::size_t output_with(const Launch& launch, BufferId buffer) {
  std::size_t o = 0;
  while (buffer_of(launch, o) != buffer) ++o;
  return o;
}

}  // namespace

RunObserver::RunObserver(const RunOptions& options, const Plan& plan) : options_(options), plan_(plan) {
  if (!options.observe) return;
  std::vector<const Launch*> writer(plan.buffers.size(), nullptr);  // the last
  for (const Launch& launch : plan.launches)
    for (std::size_t o = 0; o < launch.outputs.size(); ++o) writer[buffer_of(launch, o)] = &launch;
  for (const NodeResult& result : plan.results)
    if (const Launch* launch = writer[result.tensor.buffer]) completed_[launch].push_back(&result);
}

bool RunObserver::is_fault(double value) const {
  return std::isnan(value) || (options_.check == Check::finite && std::isinf(value));
}

void RunObserver::before(const Launch& launch, const KernelContext& context) {
  clean_ = options_.check != Check::none;
  if (!clean_) return;
  inputs_.clear();
  for (std::size_t i = 0; i < context.input_descs.size(); ++i) {
    const TensorDesc& desc = context.input_descs[i];
    // Numbers of block formats are finite: loading checks that.
    if (!is_float(desc.dtype) || launch.inputs[i].stored) {
      inputs_.push_back(desc.str());
      continue;
    }
    Range range;
    const auto* data = static_cast<const std::byte*>(context.inputs[i]);
    for_each_element(desc, [&](const auto&, std::int64_t offset) {
      const double value = number_at(data + offset, desc.dtype);
      clean_ = clean_ && !is_fault(value);
      range.least = std::fmin(range.least, value);
      range.greatest = std::fmax(range.greatest, value);
    });
    inputs_.push_back(str(desc.str(), " in ", range.least, " .. ", range.greatest));
  }
}

void RunObserver::check_outputs(const KernelContext& context) const {
  for (std::size_t o = 0; o < context.output_descs.size(); ++o) {
    const TensorDesc& desc = context.output_descs[o];
    if (!is_float(desc.dtype)) continue;
    const auto* data = static_cast<const std::byte*>(context.outputs[o]);
    for_each_element(desc, [&](const std::vector<std::int64_t>& index, std::int64_t offset) {
      const double value = number_at(data + offset, desc.dtype);
      if (!is_fault(value)) return;
      std::string where, ranges;
      for (const std::int64_t i : index) where += str(where.empty() ? "" : ", ", i);
      for (std::size_t i = 0; i < inputs_.size(); ++i) ranges += str(i == 0 ? "" : "; ", "input ", i, " ", inputs_[i]);
      throw ExecutionError(str("element [", where, "] of output ", o, ", ", desc.str(), ", is ", value,
                               " though no input has ", options_.check == Check::nan ? "NaN" : "NaN or infinity", ": ",
                               ranges));
    });
  }
}

void RunObserver::after(const Launch& launch, const KernelContext& context) {
  if (clean_) check_outputs(context);
  if (!options_.observe) return;
  ObservedLaunch seen;
  seen.node = context.node;
  seen.kernel = kernel_name(launch);
  std::vector<Copy> copies;
  std::vector<TensorView> outputs;
  for (std::size_t o = 0; o < context.output_descs.size(); ++o)
    outputs.push_back(copies.emplace_back(context.outputs[o], context.output_descs[o]).view());
  seen.outputs = outputs;
  std::vector<ObservedResult> results;
  if (const auto found = completed_.find(&launch); found != completed_.end())
    for (const NodeResult* result : found->second) {
      const std::size_t o = output_with(launch, result->tensor.buffer);
      const auto* buffer = static_cast<const std::byte*>(context.outputs[o]) - launch.outputs[o].offset;
      results.push_back({plan_.node_names[result->node], result->index,
                         copies.emplace_back(buffer + result->tensor.offset, result->tensor.desc).view()});
    }
  seen.results = results;
  options_.observe(seen);
}

}  // namespace graft
