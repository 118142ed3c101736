#include "weight/weight_placer.h"

#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/check.h"
#include "base/log.h"
#include "base/sha256.h"
#include "weight/panels.h"
#include "weight/stored_weight.h"

namespace graft {
namespace {

// Blocks contain 16-bit scales.
constexpr std::size_t kBlockAlignment = 2;

ggml_type ggml_type_of(const Stored& stored) {
  if (!stored.is_plain()) return static_cast<ggml_type>(stored.block);
  return stored.dtype == DType::bf16 ? GGML_TYPE_BF16 : GGML_TYPE_F16;
}

}  // namespace

FoundWeight WeightPlacer::find(const ir::Weight& weight, const FindWeight& find) {
  FoundWeight found = find(weight);
  if (!found.stored) found.stored = stored_of(weight);
  found.panels = found.stored->kind == Stored::Kind::panels;
  if (found.panels) found.stored->kind = Stored::Kind::blocks;
  // Trust only the hashes of a package's own data to find tied weights: a checkpoint may hold two values where the
  // exported model had one.
  if (found.origin == FoundWeight::Origin::package && !weight.sha256.empty())
    found.bytes = tied_.try_emplace({weight.sha256, found.bytes.size()}, found.bytes).first->second;
  const auto [placed, fresh] = placed_.try_emplace(found.bytes.data(), found.bytes);
  if (fresh || placed->second.size() < found.bytes.size()) {
    if (verify_hashes_) verify_hash(weight, found);
    const std::uint64_t counted = fresh ? 0 : placed->second.size();
    placed->second = found.bytes;
    stats_.weight_count += fresh && !found.bytes.empty();
    stats_.weight_bytes += found.bytes.size() - counted;
    if (found.origin == FoundWeight::Origin::memory) stats_.given_bytes += found.bytes.size() - counted;
  }
  return found;
}

std::vector<std::span<const std::byte>> WeightPlacer::placed() const {
  std::vector<std::span<const std::byte>> out;
  for (const auto& [address, bytes] : placed_) out.push_back(bytes);
  return out;
}

std::optional<std::string> WeightPlacer::content(const ir::Weight& weight, const FoundWeight& found) {
  if (store_ == nullptr) return std::nullopt;
  const auto stated = [&](std::span<const std::uint8_t> hash) {
    return str("sha256 ", std::string(hash.begin(), hash.end()), " ", found.bytes.size());
  };
  if (found.origin == FoundWeight::Origin::package && weight.sha256.size() == std::tuple_size_v<Digest>)
    return stated(weight.sha256);
  if (found.file && !found.file->is_memory())
    return str("file ", found.file->identity(), " ", found.bytes.data() - found.file->bytes().data(), " ",
               found.bytes.size());
  if (!hash_content_) return std::nullopt;
  std::string& known = hashed_[found.bytes.data()];
  if (known.empty()) known = stated(sha256(found.bytes));
  return known;
}

bool WeightPlacer::confirm(const ir::Weight& weight, const FoundWeight& found) {
  if (found.origin != FoundWeight::Origin::package || weight.sha256.size() != std::tuple_size_v<Digest>) return true;
  const auto [known, fresh] = confirmed_.try_emplace(found.bytes.data(), false);
  if (fresh) known->second = std::ranges::equal(sha256(found.bytes), weight.sha256);
  if (!known->second) unconfirmed_ = str("weight '", weight.key, "' in ", found.where);
  return known->second;
}

std::byte* WeightPlacer::made(MadeWeights::Map& known, std::string_view how, const ir::Weight& weight,
                              const FoundWeight& found, std::size_t bytes, const std::function<AlignedMemory()>& make) {
  std::weak_ptr<const AlignedMemory>& entry = known[{identity(weight, found), found.bytes.size()}];
  MadeWeights::Memory memory = entry.lock();
  const bool mine = memory && std::ranges::find(made_, memory) != made_.end();
  if (mine && store_ == nullptr) return memory->data();
  std::optional<Digest> digest;
  if (const auto of = content(weight, found))
    digest = store_->digest(
        str(how, " ", found.stored->str(), found.panels ? " panels " : " ", weight.shape.str(), " of ", *of));
  if (memory) {
    if (!mine) stats_.shared_bytes += memory->size();
  } else if (std::optional<AlignedMemory> stored = digest ? store_->find(*digest, bytes) : std::nullopt) {
    entry = memory = std::make_shared<const AlignedMemory>(*std::move(stored));
  } else {
    AlignedMemory fresh = make();
    if (digest && store_->keeps(bytes) && confirm(weight, found)) fresh = store_->keep(*digest, std::move(fresh));
    entry = memory = std::make_shared<const AlignedMemory>(std::move(fresh));
  }
  if (digest && store_->records() && confirm(weight, found)) store_->recorded(*digest, memory);
  if (!mine) made_.push_back(memory);
  return memory->data();
}

std::byte* WeightPlacer::as_stored(const ir::Weight& weight, const FoundWeight& found) {
  if (found.panels) return as_blocks(weight, found);
  const std::size_t alignment = found.stored->is_plain() ? byte_size(found.stored->dtype) : kBlockAlignment;
  if (reinterpret_cast<std::uintptr_t>(found.bytes.data()) % alignment == 0)
    return const_cast<std::byte*>(found.bytes.data());  // never written: launches only read weights
  return made(shared_->copies, "copy", weight, found, found.bytes.size(), [&] {
    AlignedMemory memory = AlignedMemory::on_huge_pages(found.bytes.size());
    std::memcpy(memory.data(), found.bytes.data(), found.bytes.size());
    ++stats_.copied_count;
    stats_.copied_bytes += found.bytes.size();
    log(LogLevel::info,
        str("weight '", weight.fqn, "' copied: its address in the file is not a multiple of ", alignment));
    return memory;
  });
}

std::byte* WeightPlacer::converted(const ir::Weight& weight, const FoundWeight& found) {
  const TensorDesc desc(DType::f32, weight.shape);
  return made(shared_->conversions, "f32", weight, found, desc.byte_count(), [&] {
    AlignedMemory memory = AlignedMemory::on_huge_pages(desc.byte_count());
    if (desc.numel() > 0) {
      const auto to_float = ggml_get_type_traits(ggml_type_of(*found.stored))->to_float;
      const std::byte* from = as_stored(weight, found);
      to_float(from, reinterpret_cast<float*>(memory.data()), desc.numel());
    }
    ++stats_.converted_count;
    stats_.converted_bytes += desc.byte_count();
    log(LogLevel::info, str("weight '", weight.fqn, "' converted from ", found.stored->str(), " to f32"));
    return memory;
  });
}

std::byte* WeightPlacer::as_blocks(const ir::Weight& weight, const FoundWeight& found) {
  const std::size_t bytes = stored_bytes(*found.stored, weight.shape);
  return made(shared_->copies, "blocks", weight, found, bytes, [&] {
    AlignedMemory memory = AlignedMemory::on_huge_pages(bytes);
    const auto [rows, depth] = matrix_size(weight.shape);
    unpack_panels(*panel_format_of(found.stored->block), found.bytes.data(), rows, depth, memory.data(), threads_);
    if (found.file) found.file->release(found.bytes);
    ++stats_.copied_count;
    stats_.copied_bytes += memory.size();
    log(LogLevel::info, str("weight '", weight.fqn, "' lies in the package in panels and is unpacked to blocks"));
    return memory;
  });
}

std::byte* WeightPlacer::in_panels(ir::Weight& weight, const FoundWeight& found) {
  const PanelFormat format = *panel_format_of(found.stored->block);
  const MatrixSize size = matrix_size(weight.shape);
  const auto bytes = static_cast<std::size_t>(panels_bytes(format, size.rows, size.depth));
  set_panels(weight, bytes);
  if (found.panels && reinterpret_cast<std::uintptr_t>(found.bytes.data()) % kAlignment == 0)
    return const_cast<std::byte*>(found.bytes.data());  // never written, as in as_stored()
  return made(shared_->panels, "panels", weight, found, bytes, [&] {
    AlignedMemory memory = AlignedMemory::on_huge_pages(bytes);
    if (found.panels) {
      std::memcpy(memory.data(), found.bytes.data(), bytes);
    } else {
      pack_panels(format, found.bytes.data(), size.rows, size.depth, memory.data(), threads_);
    }
    ++stats_.packed_count;
    stats_.packed_bytes += bytes;
    if (found.file) found.file->release(found.bytes);
    return memory;
  });
}

}  // namespace graft
