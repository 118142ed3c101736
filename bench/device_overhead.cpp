// What graft adds around ggml's backend: runs of a package on a device, in turns with the same ggml graph that ggml
// alone uploads to, computes and downloads from. usage: graft_device_overhead PACKAGE.pte DEVICE [ROUNDS]
//
// The package takes f32 tensors of fixed sizes, and all of its launches run on the device. Outputs are compared, bit for
// bit.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device/device_copy.h"
#include "device/device_graph.h"
#include "device/program_device.h"
#include "graft/graft.h"
#include "load/program_impl.h"

namespace {

using namespace graft;
using Clock = std::chrono::steady_clock;

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

template <typename Run>
double milliseconds(Run&& run) {
  const Clock::time_point begin = Clock::now();
  run();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Buffers {
  std::vector<std::vector<float>> data;
  std::vector<Value> values;

  void add(const Shape& shape) {
    std::vector<float>& floats = data.emplace_back(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(std::sin(static_cast<double>(i)));
    values.push_back(Value::of(TensorView{floats.data(), DType::f32, shape}));
  }
};

// ggml alone: one graph of all launches, on a backend of its own.
class Ggml {
 public:
  Ggml(const ProgramImpl& program, const Plan& plan)
      : plan_(plan),
        device_(*program.on_device),
        backend_(ggml_backend_dev_init(device_.handle(), nullptr)),
        block_(device_.handle(), device_.name(), static_cast<std::size_t>(plan.device_block_bytes), "a benchmark") {
    std::vector<std::uint32_t> launches;
    for (std::uint32_t i = 0; i < plan.launches.size(); ++i) launches.push_back(i);
    graph_ = std::make_unique<DeviceGraph>(plan, launches);
    const LoadedMethod& method = program.methods[0];
    for (std::uint32_t id = 0; id < plan.allocations.size(); ++id) {
      const Allocation& a = plan.allocations[id];
      if (!a.on_device) continue;
      if (a.memory == MemoryKind::weight || a.memory == MemoryKind::constant) {
        const std::byte* host = a.memory == MemoryKind::weight ? method.weights[a.index]
                                                               : method.constants[a.index].memory->data();
        const std::vector<ProgramDevice::HostBytes> wanted{{host, static_cast<std::size_t>(a.bytes)}};
        const ProgramDevice::Resident there = device_.resident(wanted).front();
        graph_->rewrite(id, there.base, there.buffer);
      } else {
        graph_->rewrite(id, block_.base() + a.device_offset, block_.buffer());
      }
    }
  }
  ~Ggml() { ggml_backend_free(backend_); }
  Ggml(const Ggml&) = delete;
  Ggml& operator=(const Ggml&) = delete;

  void run(const Buffers& inputs, Buffers& outputs) {
    for (const Allocation& a : plan_.allocations)
      if (a.memory == MemoryKind::input)
        copy_to_device(backend_, block_.buffer(), block_.base() + a.device_offset,
                       reinterpret_cast<const std::byte*>(inputs.data[a.index].data()),
                       static_cast<std::size_t>(a.bytes));
    if (ggml_backend_graph_compute_async(backend_, graph_->graph()) != GGML_STATUS_SUCCESS) std::abort();
    for (const Allocation& a : plan_.allocations)
      if (a.memory == MemoryKind::output)
        copy_to_host(backend_, block_.buffer(), block_.base() + a.device_offset,
                     reinterpret_cast<std::byte*>(outputs.data[a.index].data()), static_cast<std::size_t>(a.bytes));
    ggml_backend_synchronize(backend_);
  }

 private:
  const Plan& plan_;
  const ProgramDevice& device_;
  ggml_backend_t backend_;
  DeviceMemory block_;
  std::unique_ptr<DeviceGraph> graph_;
};

int measure(const char* package, const char* device, int rounds) {
  LoadOptions options;
  options.device = device;
  const std::shared_ptr<const Program> program = Program::load(package, options);
  const ProgramImpl& impl = Internal::of(*program);
  Session session(program);
  Buffers inputs, outputs, by_ggml;
  for (const ValueInfo& input : impl.methods[0].info.inputs) {
    Shape shape;
    for (const DimInfo& dim : input.dims) shape.push_back(dim.min);
    inputs.add(shape);
  }
  for (const Value& output : session.run(impl.methods[0].info.name, inputs.values)) {
    outputs.add(output.tensor.shape);
    by_ggml.add(output.tensor.shape);
  }
  const std::shared_ptr<const Plan> plan = impl.plans->list().at(0).second;
  for (const Launch& launch : plan->launches)
    if (!launch.on_device) {
      std::fprintf(stderr, "%s runs on the CPU (%s)\n", plan->node_names[launch.node].c_str(),
                   kernel_name(launch).c_str());
      return 2;
    }
  Ggml ggml(impl, *plan);
  std::vector<double> here, there, ratios;
  for (int round = -2; round < rounds; ++round) {
    double a = 0, b = 0;
    const auto by_graft = [&] {
      a = milliseconds([&] { session.run_into(impl.methods[0].info.name, inputs.values, outputs.values); });
    };
    const auto by_itself = [&] { b = milliseconds([&] { ggml.run(inputs, by_ggml); }); };
    if (round % 2 == 0) {
      by_graft();
      by_itself();
    } else {
      by_itself();
      by_graft();
    }
    if (outputs.data != by_ggml.data) {
      std::fprintf(stderr, "the outputs differ\n");
      return 2;
    }
    if (round < 0) continue;
    here.push_back(a);
    there.push_back(b);
    ratios.push_back(a / b);
  }
  std::printf("%zu launches, %d rounds: graft %.3f ms, ggml alone %.3f ms (medians); ratio %.4f (median of rounds)\n",
              plan->launches.size(), rounds, median(here), median(there), median(ratios));
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "usage: graft_device_overhead PACKAGE.pte DEVICE [ROUNDS]\n");
    return 2;
  }
  return measure(argv[1], argv[2], argc == 4 ? std::atoi(argv[3]) : 40);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
