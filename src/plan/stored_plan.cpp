#include "plan/stored_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/sha256.h"
#include "graft/graft.h"
#include "kernel/kernel.h"
#include "plan/arena_check.h"

namespace graft {
namespace {

// File format: magic, version, then strings and lists of numbers, each after its count, then SHA-256 of all before.
constexpr std::array<char, 8> kMagic = {'G', 'R', 'F', 'T', 'P', 'L', 'A', 'N'};
constexpr std::uint64_t kFormat = 1;
constexpr std::size_t kDigestBytes = 32;

class Writer {
 public:
  Writer() { raw(kMagic.data(), kMagic.size()); }
  void number(std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) bytes_.push_back(static_cast<std::byte>(value >> shift));
  }
  void text(const std::string& value) {
    number(value.size());
    raw(value.data(), value.size());
  }
  void numbers(std::span<const std::int64_t> values) {
    number(values.size());
    for (const std::int64_t value : values) number(static_cast<std::uint64_t>(value));
  }
  std::vector<std::byte> finish() {
    const auto digest = sha256(bytes_);
    raw(reinterpret_cast<const char*>(digest.data()), digest.size());
    return std::move(bytes_);
  }

 private:
  void raw(const char* data, std::size_t size) {
    const auto* from = reinterpret_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& label) : bytes_(bytes), label_(label) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    const std::span<const std::byte> from = take(sizeof(value));
    for (std::size_t i = 0; i < sizeof(value); ++i) value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
    return value;
  }
  std::string text() {
    const std::span<const std::byte> from = take(number());
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  std::vector<std::int64_t> numbers() {
    const std::uint64_t count = number();
    GRAFT_CHECK(InvalidProgram, count <= bytes_.size() / sizeof(std::int64_t), label_, " is damaged: a list of ", count,
                " numbers in ", bytes_.size(), " bytes");
    std::vector<std::int64_t> values;
    values.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) values.push_back(static_cast<std::int64_t>(number()));
    return values;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> take(std::uint64_t size) {
    GRAFT_CHECK(InvalidProgram, size <= bytes_.size(), label_, " is damaged: it ends too early");
    const std::span<const std::byte> taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }
  std::span<const std::byte> bytes_;
  const std::string& label_;
};

}  // namespace

PlanOrigin plan_origin(const std::string& device) {
  return {str(version(), ", ggml ", GRAFT_GGML_COMMIT), device, isa_names()};
}

StoredPlan stored_plan_of(const Plan& plan, std::string method, int threads, std::size_t size_count) {
  StoredPlan out;
  out.method = std::move(method);
  out.threads = threads;
  out.sizes.assign(plan.key.begin(), plan.key.begin() + static_cast<std::ptrdiff_t>(size_count));
  out.arena_bytes = plan.arena_bytes;
  for (const Buffer& b : plan.buffers) {
    if (b.memory != MemoryKind::arena || b.first_use < 0) continue;
    out.lifetimes.push_back({b.bytes, b.first_use, b.last_use});
    out.offsets.push_back(b.offset);
  }
  return out;
}

std::vector<std::byte> encode(const StoredPlan& plan, const PlanOrigin& origin) {
  Writer writer;
  writer.number(kFormat);
  for (const std::string* text : {&origin.version, &origin.device, &origin.instructions, &plan.method})
    writer.text(*text);
  writer.number(static_cast<std::uint64_t>(plan.threads));
  writer.numbers(plan.sizes);
  std::vector<std::int64_t> bytes, first, last;
  for (const Lifetime& buffer : plan.lifetimes) {
    bytes.push_back(buffer.bytes);
    first.push_back(buffer.first);
    last.push_back(buffer.last);
  }
  for (const std::vector<std::int64_t>* list :
       {&std::as_const(bytes), &std::as_const(first), &std::as_const(last), &plan.offsets})
    writer.numbers(*list);
  writer.number(static_cast<std::uint64_t>(plan.arena_bytes));
  return writer.finish();
}

std::optional<StoredPlan> decode_stored_plan(std::span<const std::byte> bytes, const PlanOrigin& origin,
                                             const std::string& label) {
  GRAFT_CHECK(
      InvalidProgram,
      bytes.size() >= kMagic.size() + kDigestBytes && std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0,
      label, " is no stored plan");
  const std::span<const std::byte> hashed = bytes.first(bytes.size() - kDigestBytes);
  const auto digest = sha256(hashed);
  GRAFT_CHECK(InvalidProgram, std::memcmp(digest.data(), bytes.data() + hashed.size(), kDigestBytes) == 0, label,
              " is damaged: its checksum is wrong");
  Reader reader(hashed.subspan(kMagic.size()), label);
  if (reader.number() != kFormat) return std::nullopt;
  PlanOrigin made_by;
  made_by.version = reader.text();
  made_by.device = reader.text();
  made_by.instructions = reader.text();
  if (made_by != origin) return std::nullopt;
  StoredPlan plan;
  plan.method = reader.text();
  const std::uint64_t threads = reader.number();
  constexpr std::uint64_t kMostThreads = 1 << 16;
  GRAFT_CHECK(InvalidProgram, threads > 0 && threads <= kMostThreads, label, " is for ", threads, " threads");
  plan.threads = static_cast<int>(threads);
  plan.sizes = reader.numbers();
  const std::vector<std::int64_t> sizes = reader.numbers(), first = reader.numbers(), last = reader.numbers();
  plan.offsets = reader.numbers();
  plan.arena_bytes = static_cast<std::int64_t>(reader.number());
  GRAFT_CHECK(InvalidProgram,
              reader.at_end() && first.size() == sizes.size() && last.size() == sizes.size() &&
                  plan.offsets.size() == sizes.size(),
              label, " is damaged: its lists are of different lengths");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    GRAFT_CHECK(InvalidProgram,
                sizes[i] >= 0 && first[i] >= 0 && last[i] >= first[i] && std::in_range<std::int32_t>(last[i]), label,
                ": buffer ", i, " has ", sizes[i], " bytes and lives from launch ", first[i], " to ", last[i]);
    plan.lifetimes.push_back({sizes[i], static_cast<std::int32_t>(first[i]), static_cast<std::int32_t>(last[i])});
  }
  return plan;
}

bool fits(const StoredPlan& plan, std::span<const Lifetime> lifetimes) {
  return std::ranges::equal(plan.lifetimes, lifetimes, [](const Lifetime& a, const Lifetime& b) {
    return a.bytes == b.bytes && a.first == b.first && a.last == b.last;
  });
}

void check_layout(const StoredPlan& plan, std::int64_t alignment) {
  const std::string label = str("the stored plan of method '", plan.method, "'");
  // Upper bound: all buffers one after the other.
  std::int64_t most = 0;
  for (const Lifetime& buffer : plan.lifetimes) {
    std::int64_t rounded = 0;
    GRAFT_CHECK(InvalidProgram,
                !__builtin_add_overflow(buffer.bytes, alignment - 1, &rounded) &&
                    !__builtin_add_overflow(most, rounded / alignment * alignment, &most),
                label, ": its buffers are larger than memory");
  }
  GRAFT_CHECK(InvalidProgram, plan.arena_bytes >= 0 && plan.arena_bytes <= most, label, " has an arena of ",
              plan.arena_bytes, " bytes for buffers of ", most);
  for (std::size_t i = 0; i < plan.offsets.size(); ++i) {
    const std::int64_t bytes = plan.lifetimes[i].bytes, offset = plan.offsets[i];
    GRAFT_CHECK(InvalidProgram, offset >= 0 && bytes <= plan.arena_bytes && offset <= plan.arena_bytes - bytes, label,
                ": buffer ", i, " of ", bytes, " bytes at ", offset, " does not lie in the arena of ", plan.arena_bytes,
                " bytes");
  }
  if (const std::optional<std::string> wrong = find_overlap(plan.lifetimes, plan.offsets, alignment))
    throw InvalidProgram(str(label, ": ", *wrong));
}

}  // namespace graft
