#include <cstdint>
#include <utility>
#include <vector>

#include "kernel/conv/conv_input.h"
#include "kernel/conv/separable_conv.h"
#include "kernel/conv/separable_quantized_conv.h"
#include "kernel/elementwise/elementwise.h"
#include "lowering/uses.h"
#include "pass/launch/fuse.h"

namespace graft {
namespace {

// What convolutions in f32 and in 8 bits call the same things. kMinBytes: what lies between smaller ones goes from core
// to core in less time than reading all weights on each core takes. In 8 bits no tensor that was measured was as small.
struct Floats {
  using Attrs = SeparableConvAttrs;
  static constexpr const Kernel &kDense = kPackedConv, &kDepthwise = kPackedDepthwiseConv, &kFused = kSeparableConv;
  static constexpr auto scratch_bytes = separable_conv_scratch_bytes;
  static constexpr std::int64_t kMinBytes = std::int64_t{256} << 10;
  static constexpr const Kernel* kByPanels = &kSeparableConvByPanels;
  static constexpr auto panels_scratch_bytes = separable_panels_scratch_bytes;
  // Whether each thread has enough panels of channels.
  static bool by_panels(const Launch& expand, int threads) {
    constexpr std::int64_t kManyPanels = 4;
    const std::int64_t panels = expand.outputs[0].shape()[1] / simd::packed_conv().panel_width;
    return panels >= kManyPanels * threads &&
           expands_by_panels(expand.inputs[0].desc, attrs_of<PackedConvAttrs>(expand));
  }
  // The number of threads decides which launches there are, but must not show in the sums.
  static void stay_apart(Launch& expand) {
    auto attrs = attrs_of<PackedConvAttrs>(expand);
    attrs.by_lines = 1;
    set_attrs(expand, attrs);
  }
};
struct Bytes {
  using Attrs = SeparableQuantizedConvAttrs;
  static constexpr const Kernel &kDense = kPackedQuantizedConv, &kDepthwise = kPackedQuantizedDepthwiseConv,
                                &kFused = kSeparableQuantizedConv;
  static constexpr auto scratch_bytes = separable_quantized_conv_scratch_bytes;
  static constexpr std::int64_t kMinBytes = std::int64_t{32} << 10;
  static constexpr const Kernel* kByPanels = nullptr;
  static constexpr auto panels_scratch_bytes = scratch_bytes;
  static bool by_panels(const Launch&, int) { return false; }
  static void stay_apart(Launch&) {}  // sums of integers
};

template <typename Kind>
class SeparableFuser {
  using Attrs = typename Kind::Attrs;
  using Part = typename Attrs::Part;

 public:
  explicit SeparableFuser(LaunchSequence& sequence) : sequence_(sequence), uses_(uses_of(sequence)) {}

  void run(int threads) {
    for (std::size_t i = 0; i < sequence_.launches.size(); ++i)
      if (is_planar_depthwise(sequence_.launches[i])) fuse(i, threads);
  }

 private:
  static bool is_planar(const Launch& launch) {
    const auto attrs = attrs_of<Part>(launch);
    return attrs.kernel[0] == 1 && attrs.conv.padding[0] == 0 && launch.inputs[0].shape()[2] == 1;
  }

  static bool is_planar_depthwise(const Launch& launch) {
    return launch.kernel == &Kind::kDepthwise && launch.outputs.size() == 1 && is_planar(launch) &&
           attrs_of<Part>(launch).has_residual == 0;
  }

  static bool can_expand(const Launch& launch) {
    if (launch.kernel != &Kind::kDense || launch.outputs.size() != 1 || !is_planar(launch)) return false;
    const auto attrs = attrs_of<Part>(launch);
    return attrs.conv.groups == 1 && attrs.has_residual == 0;
  }

  // Threads make the lines again that their outputs see of others' input. Up to half of what they make costs less than
  // what lies between takes from core to core.
  static bool repeats_much(const Launch& depthwise, int threads) {
    const auto attrs = attrs_of<Part>(depthwise);
    const Shape& out = depthwise.outputs[0].shape();
    const std::int64_t lines = ceil_div(out[0] * out[3], threads) * attrs.conv.stride[1];
    const std::int64_t again = (attrs.kernel[1] - 1) * attrs.conv.dilation[1] + 1 - attrs.conv.stride[1];
    return threads > 1 && 2 * again > lines;
  }

  static bool can_project(const Launch& launch) {
    if (launch.kernel != &Kind::kDense || launch.outputs.size() != 1) return false;
    const auto attrs = attrs_of<Part>(launch);
    const auto all = [](const std::int64_t(&values)[3], std::int64_t expected) {
      return values[0] == expected && values[1] == expected && values[2] == expected;
    };
    return all(attrs.kernel, 1) && all(attrs.conv.stride, 1) && all(attrs.conv.padding, 0) && attrs.conv.groups == 1;
  }

  void fuse(std::size_t i, int threads) {
    Launch& depthwise = sequence_.launches[i];
    Launch* expand = maker_of(depthwise.inputs[0]);
    if (expand != nullptr && (!can_expand(*expand) || overwritten(*expand, i))) expand = nullptr;
    Launch* project = reader_of(depthwise.outputs[0]);
    if (project != nullptr && (!can_project(*project) || overwritten(depthwise, index_of(*project)) ||
                               (expand != nullptr && overwritten(*expand, index_of(*project)))))
      project = nullptr;
    bool by_panels = false;
    if ((expand == nullptr || expand->outputs[0].desc.byte_count() < Kind::kMinBytes) &&
        (project == nullptr || depthwise.outputs[0].desc.byte_count() < Kind::kMinBytes)) {
      by_panels = expand != nullptr && Kind::by_panels(*expand, threads);
      if (!by_panels) return;
      project = nullptr;
    } else if (expand != nullptr && repeats_much(depthwise, threads)) {
      Kind::stay_apart(*expand);
      expand = nullptr;
      if (project == nullptr) return;
    }

    Attrs attrs;
    const Shape& expanded = depthwise.inputs[0].shape();
    attrs.expanded = depthwise.inputs[0].dtype();
    attrs.between = depthwise.outputs[0].dtype();
    attrs.channels = expanded[1];
    attrs.height = expanded[3];
    attrs.width = expanded[4];
    Launch fused = project != nullptr ? *project : depthwise;
    fused.kernel = by_panels ? Kind::kByPanels : &Kind::kFused;
    fused.inputs = {expand != nullptr ? expand->inputs[0] : depthwise.inputs[0]};
    const auto take = [&](Launch& launch, Part& into) {
      into = attrs_of<Part>(launch);
      fused.inputs.insert(fused.inputs.end(), launch.inputs.begin() + 1, launch.inputs.end());
    };
    if (expand != nullptr) {
      attrs.has_expand = 1;
      take(*expand, attrs.expand);
    }
    take(depthwise, attrs.depthwise);
    if (project != nullptr) {
      attrs.has_project = 1;
      take(*project, attrs.project);
    }
    fused.inplace = 0;
    fused.serial = false;
    fused.attrs.resize(sizeof(attrs));
    set_attrs(fused, attrs);
    const auto scratch_bytes = by_panels ? Kind::panels_scratch_bytes : Kind::scratch_bytes;
    fused.scratch_bytes = scratch_bytes(fused.inputs[0].desc, fused.outputs[0].desc, attrs, threads);
    Buffer scratch;
    scratch.bytes = fused.scratch_bytes;
    fused.scratch = static_cast<BufferId>(sequence_.buffers.size());
    sequence_.buffers.push_back(scratch);
    if (expand != nullptr) expand->outputs.clear();
    depthwise.outputs.clear();
    (project != nullptr ? *project : depthwise) = std::move(fused);
  }

  std::size_t index_of(const Launch& launch) const {
    return static_cast<std::size_t>(&launch - sequence_.launches.data());
  }

  // The launch that wrote all of a tensor that nothing else reads.
  Launch* maker_of(const Tensor& tensor) {
    const BufferUses& uses = uses_[tensor.buffer];
    if (!between_two(tensor, uses)) return nullptr;
    Launch& launch = sequence_.launches[uses.writer];
    return launch.outputs.size() == 1 && same_tensor(launch.outputs[0], tensor) ? &launch : nullptr;
  }
  Launch* reader_of(const Tensor& tensor) {
    const BufferUses& uses = uses_[tensor.buffer];
    if (!between_two(tensor, uses)) return nullptr;
    Launch& launch = sequence_.launches[uses.reader];
    return !launch.inputs.empty() && same_tensor(launch.inputs[0], tensor) ? &launch : nullptr;
  }
  bool between_two(const Tensor& tensor, const BufferUses& uses) const {
    return sequence_.buffers[tensor.buffer].segment == Segment::arena && uses.reads == 1 && uses.writes == 1;
  }

  // Whether a launch after this one and before `end` writes what it reads.
  bool overwritten(const Launch& launch, std::size_t end) const {
    for (std::size_t i = index_of(launch) + 1; i < end; ++i)
      for (const Tensor& written : sequence_.launches[i].outputs)
        for (const Tensor& read : launch.inputs)
          if (written.buffer == read.buffer) return true;
    return false;
  }

  LaunchSequence& sequence_;
  const std::vector<BufferUses> uses_;
};

}  // namespace

void fuse_separable(LaunchSequence& sequence, int threads) {
  SeparableFuser<Floats>(sequence).run(threads);
  SeparableFuser<Bytes>(sequence).run(threads);
}

}  // namespace graft
