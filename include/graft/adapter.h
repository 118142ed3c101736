#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graft/export.h"
#include "graft/graft.h"
#include "graft/tensor.h"

// LoRA adapters: low-rank updates of linear layers, chosen per run and per row of a batch, beside the weights that they
// leave as they are, quantized ones too.
//
//   auto program = graft::Program::load("model.pte", {.max_adapter_rank = 64});
//   auto adapter = graft::Adapter::load(program, "folder");
//   const graft::Adapter* rows[] = {adapter.get(), nullptr};  // the second row of the batch has none
//   session.run("forward", inputs, {.adapters = rows});
//
// They are no part of a plan: loading one, dropping one and choosing others makes no plan and no copy.
namespace graft {

// What an adapter adds to the result of one linear layer x W^T: scale * (x A^T) B^T.
struct AdapterLayer {
  std::string module;  // qualified name of the layer ("model.layers.0.self_attn.q_proj")
  TensorView a;        // [rank, in], f32, f16 or bf16
  TensorView b;        // [out, rank], of the same type
  double scale = 1;    // lora_alpha / rank, or what the adapter has instead
};

// An adapter that fits a program: names, shapes and ranks were checked against its layers. It holds its numbers as f32.
// Immutable; shared by any number of threads and sessions of the program.
class GRAFT_API Adapter {
 public:
  // A folder that peft's save_pretrained wrote, its adapter_model.safetensors, or a GGUF file of llama.cpp's
  // convert_lora_to_gguf. Throws NotFound for files that are not there, InvalidProgram for damaged ones, Unsupported
  // for what is no plain LoRA (DoRA, biases, whole modules, embeddings) and for a program without max_adapter_rank,
  // InvalidArgument for an adapter that does not fit: the message names the layer, what it has and what was found.
  static std::shared_ptr<const Adapter> load(const std::shared_ptr<const Program>& program, const std::string& path);
  // Of numbers in memory, which are copied. Throws as load() does.
  static std::shared_ptr<const Adapter> of(const std::shared_ptr<const Program>& program,
                                           std::span<const AdapterLayer> layers);
  ~Adapter();
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  std::size_t layers() const;  // that it changes
  std::int64_t rank() const;   // the largest
  std::uint64_t bytes() const;
  std::uint64_t id() const;  // of its numbers and names: equal for equal adapters, in all processes; not 0

 private:
  friend struct AdapterAccess;
  struct Impl;
  explicit Adapter(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Qualified names of the layers that adapters of the program can change; empty without max_adapter_rank.
GRAFT_API std::vector<std::string> adapter_modules(const Program& program);

// Adapters of a program by name, for any number of threads. What uses an adapter holds it: replacing or removing one
// changes nothing for those that run.
class GRAFT_API Adapters {
 public:
  explicit Adapters(std::shared_ptr<const Program> program);

  // Under this name, in the place of what has it. Throws what Adapter::load throws, and InvalidArgument for an empty
  // name.
  void load(const std::string& name, const std::string& path);
  void add(const std::string& name, std::shared_ptr<const Adapter> adapter);
  // Both throw NotFound, listing the names that there are.
  void remove(std::string_view name);
  std::shared_ptr<const Adapter> find(std::string_view name) const;
  bool has(std::string_view name) const;
  std::vector<std::string> names() const;

 private:
  std::shared_ptr<const Program> program_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Adapter>, std::less<>> adapters_;
};

}  // namespace graft
