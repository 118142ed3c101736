#include "weight/weights.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <numeric>

#include "base/check.h"
#include "base/json.h"
#include "base/sha256.h"
#include "weight/et_container.h"

namespace graft {
namespace {

constexpr std::string_view kGgufMagic = "GGUF";
constexpr std::string_view kIndexSuffix = ".index.json";
constexpr std::size_t kMostListed = 50;  // weights in one message
// Written by python/graft/llm/export.py.
constexpr std::string_view kWeightFiles = "graft.weights.json", kOtherStages = "graft.other_stages.json";

bool has_text(std::span<const std::byte> bytes, std::size_t at, std::string_view text) {
  return bytes.size() >= at + text.size() && std::memcmp(bytes.data() + at, text.data(), text.size()) == 0;
}

WeightFile read_one(const std::shared_ptr<const MappedFile>& file) {
  const std::span<const std::byte> bytes = file->bytes();
  if (has_text(bytes, 0, kGgufMagic)) return read_gguf(file);
  if (has_text(bytes, 4, kPtdIdentifier)) return read_ptd(file);
  GRAFT_CHECK(InvalidProgram, has_text(bytes, 8, "{"), "not a file of weights: neither .ptd nor safetensors nor GGUF");
  return read_safetensors(file);
}

// The shards of an index, each with the tensors that the index assigns to it.
std::vector<WeightFile> read_index(const std::shared_ptr<const MappedFile>& file, const OpenFile& open) {
  const std::vector<std::byte> text = file->read(0, file->bytes().size());
  const Json index = read_json<Json>(std::span(text), /*allow_exceptions=*/false);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  GRAFT_CHECK(InvalidProgram, map != index.end() && map->is_object(),
              "not an index of weights: it must be a JSON object with a 'weight_map'");
  std::map<std::string, WeightFile> shards;
  std::map<std::string, WeightFile> opened;
  for (const auto& [name, where] : map->items()) {
    GRAFT_CHECK(InvalidProgram, where.is_string(), "weight '", name, "': its shard must be a string");
    const auto shard = where.get<std::string>();
    GRAFT_CHECK(InvalidProgram, !shard.empty() && shard != ".." && shard.find('/') == std::string::npos, "weight '",
                name, "': its shard must be a file beside the index, found '", shard, "'");
    auto at = opened.find(shard);
    if (at == opened.end()) {
      const auto beside = open((std::filesystem::path(file->path()).parent_path() / shard).string());
      at = opened.emplace(shard, naming_file(beside->path(), [&] { return read_one(beside); })).first;
      shards.emplace(shard, WeightFile{beside, {}});
    }
    const auto tensor = at->second.tensors.find(name);
    GRAFT_CHECK(InvalidProgram, tensor != at->second.tensors.end(), "weight '", name, "' is not in its shard '", shard,
                "'");
    shards.at(shard).tensors.insert(*tensor);
  }
  std::vector<WeightFile> out;
  for (auto& [name, shard] : shards) out.push_back(std::move(shard));
  return out;
}

std::string hex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (std::uint8_t b : bytes) {
    out += digits[b >> 4];
    out += digits[b & 15];
  }
  return out;
}

// Formats may write a shape with different leading dimensions of size 1 (GGUF always has four).
std::vector<std::int64_t> without_leading_ones(const Shape& shape) {
  const auto sizes = shape.sizes();
  return {std::find_if(sizes.begin(), sizes.end(), [](std::int64_t size) { return size != 1; }), sizes.end()};
}

// f32 values may be stored in any type that converts to f32.
bool may_be_stored_as(const ir::Weight& weight, const Stored& stored) {
  const bool f32 = weight.dtype == DType::f32;
  if (!stored.is_plain()) return f32 && refuse_blocks(stored.block, weight.shape).empty();
  return stored.dtype == weight.dtype || (f32 && (stored.dtype == DType::f16 || stored.dtype == DType::bf16));
}

std::string label(const ir::Weight& weight) {
  return str("weight '", weight.key, weight.fqn == weight.key ? "'" : "' (" + weight.fqn + ")");
}

// Levenshtein distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t change = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, change});
    }
  }
  return row[b.size()];
}

}  // namespace

std::vector<WeightFile> open_weights(const std::string& path, const OpenFile& open) {
  const auto file = open(path);
  return naming_file(path, [&]() -> std::vector<WeightFile> {
    if (path.ends_with(kIndexSuffix)) return read_index(file, open);
    std::vector<WeightFile> out;
    out.push_back(read_one(file));
    return out;
  });
}

std::vector<std::string> weight_files_of(const WeightFile& package) {
  const auto found = package.tensors.find(kWeightFiles);
  if (found == package.tensors.end()) return {};
  return naming_file(package.file->path(), [&] {
    const Json names = read_json<Json>(found->second.bytes, /*allow_exceptions=*/false);
    GRAFT_CHECK(InvalidProgram, names.is_array(), "'", kWeightFiles, "' must be a JSON list of paths");
    std::vector<std::string> out;
    for (const Json& name : names) {
      GRAFT_CHECK(InvalidProgram, name.is_string() && !name.get<std::string>().empty(), "'", kWeightFiles,
                  "' must be a list of paths, item ", out.size(), " is none");
      out.push_back((std::filesystem::path(package.file->path()).parent_path() / name.get<std::string>()).string());
    }
    return out;
  });
}

OtherStages other_stages_of(const WeightFile& package) {
  OtherStages out;
  const auto found = package.tensors.find(kOtherStages);
  if (found == package.tensors.end()) return out;
  return naming_file(package.file->path(), [&] {
    try {
      const Json json = read_json<Json>(found->second.bytes);
      out.linear_bytes = json.at("linear_bytes").get<std::int64_t>();
      for (const Json& key : json.at("read_so")) out.read_so.insert(key.get<std::string>());
    } catch (const Json::exception& error) {
      throw InvalidProgram(str("'", kOtherStages, "' cannot be read: ", error.what()));
    }
    GRAFT_CHECK(InvalidProgram, out.linear_bytes >= 0, "'", kOtherStages, "' has ", out.linear_bytes, " bytes");
    return out;
  });
}

void check_size(const ir::Weight& weight, const FoundWeight& found) {
  const std::uint64_t expected = found.stored ? stored_bytes(*found.stored, weight.shape) : weight.byte_size;
  if (found.bytes.size() == expected) return;
  throw InvalidProgram(
      str(label(weight), " must have ", expected, " bytes, ", found.where, " has ", found.bytes.size()));
}

void verify_hash(const ir::Weight& weight, const FoundWeight& found) {
  if (weight.sha256.empty()) return;
  const auto digest = sha256(found.bytes);
  GRAFT_CHECK(InvalidProgram, std::equal(digest.begin(), digest.end(), weight.sha256.begin(), weight.sha256.end()),
              found.where, ": weight '", weight.key, "' (", weight.fqn,
              ") is not what was exported: its SHA-256 must be ", hex(weight.sha256), ", found ", hex(digest));
}

std::string close_names(std::string_view name, const std::vector<std::string_view>& names) {
  constexpr std::size_t kMost = 3;
  constexpr std::size_t kLongest = 256;  // bytes compared: names come from files
  std::vector<std::pair<std::size_t, std::string_view>> ranked;
  for (std::string_view other : names) {
    // A checkpoint usually differs from a program by a prefix ("model.").
    const bool part = other.ends_with("." + std::string(name)) || name.ends_with("." + std::string(other));
    const std::size_t edits = part ? 0 : distance(name.substr(0, kLongest), other.substr(0, kLongest));
    if (part || edits <= name.size() / 3) ranked.emplace_back(edits, other);
  }
  std::sort(ranked.begin(), ranked.end());
  std::string out;
  for (std::size_t i = 0; i < std::min(kMost, ranked.size()); ++i)
    out += str(i == 0 ? "'" : ", '", ranked[i].second, "'");
  return out;
}

void WeightStore::add_files(const std::string& path, const OpenFile& open) {
  for (WeightFile& file : open_weights(path, open)) files_.push_back(std::move(file));
}

std::optional<FoundWeight> WeightStore::look_up(const ir::Weight& weight) {
  for (const std::string* name : {&weight.key, &weight.fqn}) {
    if (auto found = in_memory(*name, weight)) return found;
    if (auto found = in_files(*name, weight)) return found;
    if (weight.key == weight.fqn) break;
  }
  return std::nullopt;
}

FoundWeight WeightStore::find(const ir::Weight& weight) {
  if (auto found = look_up(weight)) return *found;
  throw NotFound(none_of({&weight}));
}

void WeightStore::check(const std::vector<const ir::Weight*>& weights) {
  std::set<std::string_view> seen;
  std::vector<const ir::Weight*> missing;
  std::vector<std::string> wrong;
  std::exception_ptr first;
  for (const ir::Weight* weight : weights) {
    if (!seen.insert(weight->key).second) continue;
    try {
      if (!look_up(*weight)) missing.push_back(weight);
    } catch (const Error& error) {
      if (!first) first = std::current_exception();
      wrong.emplace_back(error.what());
    }
  }
  if (missing.empty() && wrong.empty()) return;
  if (wrong.empty()) throw NotFound(none_of(missing));
  if (missing.empty() && wrong.size() == 1) std::rethrow_exception(first);
  std::string text = str(missing.size() + wrong.size(), " of ", seen.size(), " weights do not fit the program");
  for (std::size_t i = 0; i < std::min(wrong.size(), kMostListed); ++i) text += "\n  " + wrong[i];
  if (wrong.size() > kMostListed) text += str("\n  and ", wrong.size() - kMostListed, " more");
  if (!missing.empty()) text += "\n  " + none_of(missing);
  throw InvalidProgram(text);
}

std::string WeightStore::none_of(const std::vector<const ir::Weight*>& weights) const {
  std::string searched;
  for (const WeightFile& file : files_) searched += (searched.empty() ? "'" : ", '") + file.file->path() + "'";
  std::string text = "no ";
  for (std::size_t i = 0; i < std::min(weights.size(), kMostListed); ++i)
    text += (i == 0 ? "" : ", ") + label(*weights[i]);
  if (weights.size() > kMostListed) text += str(" and ", weights.size() - kMostListed, " more");
  const std::string close = like(*weights[0]);
  return str(
      text, " in ", searched, close.empty() ? "" : "; names like it there: ", close,
      weights.size() == 1 ? "; give the file that holds it (weights)" : "; give the files that hold them (weights)");
}

std::optional<FoundWeight> WeightStore::in_memory(const std::string& name, const ir::Weight& weight) {
  const auto found = memory_.find(name);
  if (found == memory_.end()) return std::nullopt;
  used_.insert(name);
  const TensorView& given = found->second;
  const Stored stored = Stored::as(given.dtype);
  const TensorDesc expected(weight.dtype, weight.shape), found_desc(given.dtype, given.shape);
  GRAFT_CHECK(InvalidArgument, may_be_stored_as(weight, stored) && given.shape == weight.shape, label(weight),
              " must be ", expected.str(), ", the memory given is ", found_desc.str());
  const std::size_t bytes = found_desc.byte_count();
  GRAFT_CHECK(InvalidArgument, given.data || bytes == 0, label(weight), ": the memory given is null");
  GRAFT_CHECK(InvalidArgument, reinterpret_cast<std::uintptr_t>(given.data) % byte_size(given.dtype) == 0,
              label(weight), ": the memory given must be aligned to ", byte_size(given.dtype),
              " bytes, its address is ", given.data);
  FoundWeight out{
      {static_cast<const std::byte*>(given.data), bytes}, FoundWeight::Origin::memory, "the memory given", stored};
  return out;
}

std::optional<FoundWeight> WeightStore::in_files(const std::string& name, const ir::Weight& weight) const {
  const WeightFile* holder = nullptr;
  const StoredTensor* tensor = nullptr;
  for (const WeightFile& file : files_) {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) continue;
    GRAFT_CHECK(InvalidProgram, !tensor, "data '", name, "' is in '", holder ? holder->file->path() : "",
                "' and again in '", file.file->path(), "'");
    holder = &file;
    tensor = &found->second;
  }
  if (!tensor) return std::nullopt;
  const std::string where = "'" + holder->file->path() + "'";
  if (!tensor->type.empty()) {
    GRAFT_CHECK(Unsupported, tensor->stored, label(weight), " is stored as ", tensor->type, " in ", where,
                ", a type that graft does not compute with");
    GRAFT_CHECK(InvalidProgram, may_be_stored_as(weight, *tensor->stored), label(weight), " must have dtype ",
                graft::name(weight.dtype), ", ", where, " has ", tensor->type);
    GRAFT_CHECK(InvalidProgram,
                tensor->shape && without_leading_ones(*tensor->shape) == without_leading_ones(weight.shape),
                label(weight), " must have sizes ", weight.shape.str(), ", ", where, " has ",
                tensor->shape ? tensor->shape->str() : str("more than ", kMaxRank, " of them"));
  }
  FoundWeight out{tensor->bytes, holder == &files_[0] ? FoundWeight::Origin::package : FoundWeight::Origin::file, where,
                  tensor->stored, holder->file};
  check_size(weight, out);
  return out;
}

std::string WeightStore::like(const ir::Weight& weight) const {
  std::vector<std::string_view> names;
  for (const WeightFile& file : files_)
    for (const auto& [name, tensor] : file.tensors) names.push_back(name);
  for (const auto& [name, view] : memory_) names.push_back(name);
  return close_names(weight.fqn.empty() ? weight.key : weight.fqn, names);
}

void WeightStore::check_memory_used() const {
  std::string unused;
  std::size_t count = 0;
  for (const auto& [name, view] : memory_)
    if (!used_.contains(name) && ++count <= kMostListed) unused += str(count == 1 ? "'" : ", '", name, "'");
  if (count > kMostListed) unused += str(" and ", count - kMostListed, " more");
  GRAFT_CHECK(InvalidArgument, count == 0, "memory was given for weight", count == 1 ? " " : "s ", unused,
              ", which the program does not have");
}

}  // namespace graft
