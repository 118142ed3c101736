#include "load/loaded_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/file_pages.h"
#include "base/rethrow.h"
#include "weight/packed_file.h"

namespace graft {

// The models of the process.
struct Models {
  using Key = std::pair<std::vector<const void*>, std::string>;

  std::mutex mutex;
  std::uint64_t last_id = 0;
  std::map<std::uint64_t, std::weak_ptr<LoadedModel>> by_id;
  std::map<Key, std::weak_ptr<LoadedModel>> by_key;
  std::multimap<std::string, std::weak_ptr<LoadedModel>> by_name;  // of delegates

  // Never destroyed: programs may be destroyed while the process ends.
  static Models& get() {
    static auto* models = new Models;
    return *models;
  }

  // The mutex is held.
  std::shared_ptr<LoadedModel> make() {
    std::erase_if(by_id, [](const auto& entry) { return entry.second.expired(); });
    std::erase_if(by_key, [](const auto& entry) { return entry.second.expired(); });
    std::erase_if(by_name, [](const auto& entry) { return entry.second.expired(); });
    std::shared_ptr<LoadedModel> model(new LoadedModel);
    model->id_ = ++last_id;
    by_id[model->id_] = model;
    return model;
  }
};

std::shared_ptr<LoadedModel> LoadedModel::of(Sources sources, const std::string& settings) {
  Models& models = Models::get();
  Models::Key key{{}, settings};
  for (const auto& source : sources) key.first.push_back(source.get());
  std::ranges::sort(key.first);
  const std::lock_guard lock(models.mutex);
  if (sources.empty()) return models.make();
  if (const auto known = models.by_key.find(key); known != models.by_key.end())
    if (std::shared_ptr<LoadedModel> model = known->second.lock()) return model;
  std::shared_ptr<LoadedModel> model = models.make();
  model->sources_ = std::move(sources);
  models.by_key[std::move(key)] = model;
  return model;
}

std::shared_ptr<LoadedModel> LoadedModel::of_content(const std::string& name, Claims claims) {
  const auto contradict = [](const Claims& a, const Claims& b) {
    return std::ranges::any_of(a, [&](const auto& claim) {
      const auto other = b.find(claim.first);
      return other != b.end() && other->second != claim.second;
    });
  };
  Models& models = Models::get();
  const std::lock_guard lock(models.mutex);
  const auto [begin, end] = models.by_name.equal_range(name);
  for (auto entry = begin; entry != end; ++entry) {
    std::shared_ptr<LoadedModel> model = entry->second.lock();
    if (!model || contradict(claims, model->claims_)) continue;
    model->claims_.merge(claims);
    return model;
  }
  std::shared_ptr<LoadedModel> model = models.make();
  model->claims_ = std::move(claims);
  models.by_name.emplace(name, model);
  return model;
}

const void* LoadedModel::identity(const std::string& key, std::span<const std::byte> bytes,
                                  const ProgramImpl& program) {
  const auto same = [&](std::span<const std::byte> other) {
    return other.size() == bytes.size() && (other.data() == bytes.data() || bytes.empty() ||
                                            std::memcmp(other.data(), bytes.data(), bytes.size()) == 0);
  };
  const std::lock_guard lock(copies_mutex_);
  const auto [begin, end] = copies_.equal_range(key);
  for (auto entry = begin; entry != end; ++entry) {
    Copies& copies = entry->second;
    const auto mine = copies.find(&program);
    if (mine == copies.end() ? !same(copies.begin()->second) : mine->second.data() != bytes.data()) continue;
    copies[&program] = bytes;
    return &copies;
  }
  return &copies_.emplace(key, Copies{{&program, bytes}})->second;
}

void LoadedModel::release_sources() {
  constexpr std::size_t kWorthIt = std::size_t{4} << 20;
  std::vector<std::span<const std::byte>> all;
  std::size_t bytes_of_all = 0;
  const std::lock_guard lock(copies_mutex_);  // nobody unmaps them
  for (const auto& [key, copies] : copies_)
    for (const auto& [program, bytes] : copies) {
      all.push_back(bytes);
      bytes_of_all += bytes.size();
    }
  if (bytes_of_all >= kWorthIt) release_file_pages(all);
}

void LoadedModel::remove_sources(const ProgramImpl& program) {
  const std::lock_guard lock(copies_mutex_);
  for (auto& [key, copies] : copies_) copies.erase(&program);
  std::erase_if(copies_, [](const auto& entry) { return entry.second.empty(); });
}

std::shared_ptr<PlanCache> LoadedModel::plans(const std::string& program, std::size_t capacity) {
  const std::lock_guard lock(users_mutex_);
  std::shared_ptr<PlanCache>& plans = plans_[program];
  if (!plans) plans = std::make_shared<PlanCache>(capacity);
  return plans;
}

void LoadedModel::add_user(const ProgramImpl& program) {
  const std::lock_guard lock(users_mutex_);
  users_.insert(&program);
  if (!first_.content.empty()) return;
  first_.path = program.is_delegate ? "a program of ExecuTorch" : program.source;
  first_.device = program.device;
  first_.content = hex(program.fingerprint);
}

void LoadedModel::remove_user(const ProgramImpl& program) {
  const std::lock_guard lock(users_mutex_);
  users_.erase(&program);
}

std::vector<std::shared_ptr<LoadedModel>> LoadedModel::all() {
  Models& models = Models::get();
  std::vector<std::shared_ptr<LoadedModel>> out;
  const std::lock_guard lock(models.mutex);
  for (const auto& [id, held] : models.by_id)
    if (std::shared_ptr<LoadedModel> model = held.lock()) out.push_back(std::move(model));
  return out;
}

ModelInfo LoadedModel::info() const {
  const std::lock_guard lock(users_mutex_);
  ModelInfo out = first_;
  out.id = id_;
  out.unloaded = unloaded_;
  std::set<const void*> counted;
  for (const ProgramImpl* program : users_) {
    ++out.programs;
    out.delegates += program->is_delegate;
    for (const auto& file : program->files)
      if (counted.insert(file.get()).second) out.mapped_bytes += file->bytes().size();
    if (program->files.empty())
      for (const std::span<const std::byte> weight : program->placed)
        if (counted.insert(weight.data()).second) out.mapped_bytes += weight.size();
    const auto count = [&](const AlignedMemory& memory, std::uint64_t& bytes) {
      if (!counted.insert(&memory).second) return;
      bytes += memory.size();
      if (memory.in_file()) out.packed_file_bytes += memory.size();
    };
    for (const auto& memory : program->made_weights) count(*memory, out.packed_bytes);
    for (const LoadedMethod& method : program->methods)
      for (const FoldedConstant& constant : method.constants) count(*constant.memory, out.constant_bytes);
    if (!counted.insert(program->plans.get()).second) continue;
    for (const auto& [method, plan] : program->plans->list()) {
      ++out.plans;
      out.plan_bytes += host_bytes(*plan);
    }
  }
  return out;
}

void LoadedModel::unload() {
  Models& models = Models::get();
  {
    const std::lock_guard lock(models.mutex);
    const auto is_this = [&](const auto& entry) { return entry.second.lock().get() == this; };
    std::erase_if(models.by_key, is_this);
    std::erase_if(models.by_name, is_this);
  }
  const std::lock_guard lock(users_mutex_);
  unloaded_ = true;
  for (const auto& [program, plans] : plans_) plans->clear();
  plans_.clear();
  for (const ProgramImpl* program : users_)
    for (const auto& file : program->files) MappedFile::forget(*file);
}

std::vector<ModelInfo> Registry::models() try {
  std::vector<ModelInfo> out;
  for (const auto& model : LoadedModel::all())
    if (ModelInfo info = model->info(); info.programs > 0) out.push_back(std::move(info));
  return out;
} catch (...) {
  rethrow_typed();
}

void Registry::unload(std::uint64_t id) try {
  std::string known;
  for (const auto& model : LoadedModel::all()) {
    if (model->info().programs == 0) continue;
    if (model->id() == id) return model->unload();
    known += str(known.empty() ? "" : ", ", model->id());
  }
  throw NotFound(str("no model ", id, " is loaded; ", known.empty() ? "there is none" : "there are: " + known));
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
