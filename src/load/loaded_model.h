#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graft/registry.h"
#include "load/fold.h"
#include "load/program_impl.h"
#include "weight/weight_placer.h"

namespace graft {

// What programs of the same files and settings share while one of them lives: copies, conversions and packed weights,
// folded constants, and plans. What is made of weights is found by the addresses of what it was made from, and whoever
// holds it holds that too, so an address never stands for other bytes.
class LoadedModel {
 public:
  // That of programs whose weights lie in these objects (mapped files, or what owns memory), which live as long as the
  // model, and whose constants are computed with these settings: others may differ in bits. Without sources: one that
  // nobody else has.
  using Sources = std::vector<std::shared_ptr<const void>>;
  static std::shared_ptr<LoadedModel> of(Sources sources, const std::string& settings);

  // That of delegates whose package has this name and which claim no other content (SHA-256 and bytes by key of
  // weights).
  using Claims = std::map<std::string, std::pair<std::vector<std::uint8_t>, std::uint64_t>, std::less<>>;
  static std::shared_ptr<LoadedModel> of_content(const std::string& name, Claims claims);
  // What stands for the bytes of a weight of a delegate in `weights` and `constants`: equal for equal bytes under one
  // key, which are compared. They must stay until remove_sources().
  const void* identity(const std::string& key, std::span<const std::byte> bytes, const ProgramImpl& program);
  // Releases the pages of these bytes: most are not read again.
  void release_sources();
  // After everything that was made of them.
  void remove_sources(const ProgramImpl& program);

  // Held while a program places its weights and folds its constants. Recursive: LoadOptions::on_phase may load.
  std::recursive_mutex mutex;
  MadeWeights weights;
  ConstantPool constants;

  // Plans of programs with the same graphs and options; `program` says which.
  std::shared_ptr<PlanCache> plans(const std::string& program, std::size_t capacity);

  // From the end of a load until the program is destroyed.
  void add_user(const ProgramImpl& program);
  void remove_user(const ProgramImpl& program);

  // graft::Registry.
  static std::vector<std::shared_ptr<LoadedModel>> all();
  std::uint64_t id() const { return id_; }
  ModelInfo info() const;  // without programs: nobody uses it
  void unload();

 private:
  LoadedModel() = default;
  friend struct Models;

  std::uint64_t id_ = 0;
  Sources sources_;
  Claims claims_;  // Models::mutex
  mutable std::mutex users_mutex_;
  std::set<const ProgramImpl*> users_;
  ModelInfo first_;  // what the first program says of itself
  std::map<std::string, std::shared_ptr<PlanCache>> plans_;
  bool unloaded_ = false;

  // Equal bytes, by the programs that have them; its address is the identity.
  using Copies = std::map<const ProgramImpl*, std::span<const std::byte>>;
  std::mutex copies_mutex_;
  std::multimap<std::string, Copies, std::less<>> copies_;  // by key of the weight
};

}  // namespace graft
