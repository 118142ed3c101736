#include "feed.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graft/error.h"
#include "graft/graft.h"
#include "ir/program.h"

namespace graft::fuzz {
namespace {

constexpr std::int64_t kMaxInputElements = 1 << 12;
constexpr std::int64_t kMaxBytes = 1 << 20;  // of a plan and of states
constexpr std::int64_t kMaxLaunches = 4096;
constexpr auto kMaxTime = std::chrono::milliseconds(500);

Watch& watch() {
  static Watch current;
  return current;
}

// The smallest size that a method takes which is not empty, where it takes one.
std::int64_t size_of(const DimInfo& dim) { return std::clamp<std::int64_t>(2, dim.min, dim.max); }

// Inputs of zeros. False when they would be large.
bool make_inputs(const MethodInfo& method, std::vector<std::vector<std::byte>>& memory, std::vector<Value>& out) {
  for (const ValueInfo& input : method.inputs) {
    if (input.kind == Value::Kind::integer) {
      out.push_back(Value::of(input.dims.empty() ? std::int64_t{2} : size_of(input.dims[0])));
    } else if (input.kind == Value::Kind::real) {
      out.push_back(Value::of(0.5));
    } else if (input.kind == Value::Kind::boolean) {
      out.push_back(Value::of(true));
    } else if (input.kind == Value::Kind::tensor) {
      Shape shape;
      std::int64_t elements = 1;
      for (const DimInfo& dim : input.dims) {
        shape.push_back(size_of(dim));
        if (shape[shape.rank() - 1] > kMaxInputElements) return false;
        if ((elements *= shape[shape.rank() - 1]) > kMaxInputElements) return false;
      }
      memory.emplace_back(static_cast<std::size_t>(elements) * byte_size(input.dtype));
      out.push_back(Value::of(TensorView{memory.back().data(), input.dtype, shape}));
    } else {
      out.emplace_back();
    }
  }
  return true;
}

template <typename Load>
Fate feed(std::size_t file_bytes, Load&& load) {
  Fate fate;
  LoadOptions options;
  options.device = "cpu";
  options.max_plan_bytes = kMaxBytes;
  options.max_plan_launches = kMaxLaunches;
  options.on_phase = [&](std::string_view phase) { fate.verified |= phase == "weights"; };
  std::shared_ptr<const Program> program;
  try {
    const Loading watched(file_bytes);
    program = load(options);
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    return fate;
  }
  for (const std::string& name : program->method_names()) {
    try {
      std::vector<std::vector<std::byte>> memory;
      std::vector<Value> inputs;
      if (!make_inputs(program->method(name), memory, inputs)) continue;
      SessionOptions one;
      one.threads = 1;
      one.kv.length = 8;
      Session session(program, one);
      fate.planned = true;
      session.output_values(name, inputs);
      RunOptions run;
      run.deadline = std::chrono::steady_clock::now() + kMaxTime;
      session.run(name, inputs, run);
      fate.ran = true;
    } catch (const InternalError&) {
      throw;
    } catch (const Error&) {
    }
  }
  return fate;
}

}  // namespace

void set_watch(const Watch& to) { watch() = to; }

Loading::Loading(std::size_t file_bytes) {
  if (watch().begin) watch().begin(file_bytes);
}
Loading::~Loading() {
  if (watch().end) watch().end();
}

Fate feed_ir(std::span<const std::byte> blob) {
  // Weights of arbitrary bytes, with the sizes that the program states.
  std::map<std::string, std::size_t, std::less<>> sizes;
  try {
    for (const ir::Weight& weight : ir::parse(blob).weights) sizes[weight.key] = weight.byte_size;
  } catch (const Error&) {
    return {};
  }
  std::map<std::string, std::vector<std::byte>, std::less<>> weights;
  const auto find = [&](std::string_view key) -> std::span<const std::byte> {
    const auto size = sizes.find(key);
    if (size == sizes.end() || size->second > kMaxBytes) return {};
    auto [it, fresh] = weights.try_emplace(std::string(key), size->second);
    if (fresh) std::fill(it->second.begin(), it->second.end(), std::byte{1});
    return it->second;
  };
  std::size_t bytes = blob.size();
  for (const auto& [key, size] : sizes) bytes += size <= kMaxBytes ? size : 0;
  return feed(bytes, [&](const LoadOptions& options) { return Program::from_ir(blob, find, options); });
}

Fate feed_package(std::span<const std::byte> file) {
  struct alignas(16) Chunk {
    std::byte bytes[16];
  };
  std::vector<Chunk> aligned(file.size() / sizeof(Chunk) + 1);
  if (!file.empty()) std::memcpy(aligned.data(), file.data(), file.size());
  const std::span<const std::byte> bytes(aligned.data()->bytes, file.size());
  return feed(file.size(), [&](LoadOptions options) { return Program::load_memory(bytes, options); });
}

}  // namespace graft::fuzz
