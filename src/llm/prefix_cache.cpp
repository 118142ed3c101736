#include "llm/prefix_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/rethrow.h"
#include "base/sha256.h"
#include "load/program_impl.h"

namespace graft::llm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint64_t kMaxSerial = std::uint64_t{1} << 62;  // more than processes can have counted
constexpr std::size_t kMaxBlocks = std::numeric_limits<std::int32_t>::max() / 4;

// Four sums side by side, so that one multiplication does not wait for another. It finds what was written in part or
// damaged, not what somebody made to look right: who writes the file can write any keys and values.
std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15;
  std::array<std::uint64_t, 4> sums = {seed, seed + 1, seed + 2, seed + 3};
  const auto add = [&](std::size_t lane, std::uint64_t word) {
    sums[lane] = std::rotl(sums[lane] ^ word, 29) * kPrime;
  };
  std::size_t at = 0;
  for (; at + 32 <= bytes.size(); at += 32)
    for (std::size_t lane = 0; lane < 4; ++lane) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data() + at + 8 * lane, 8);
      add(lane, word);
    }
  for (; at < bytes.size(); ++at) add(at % 4, static_cast<std::uint64_t>(bytes[at]));
  std::uint64_t all = bytes.size();
  for (const std::uint64_t sum : sums) all = (all ^ sum ^ (sum >> 31)) * kPrime;
  return all ^ (all >> 32);
}

// What keys and values depend on: the package, graph and weights, and how the cache stores them.
std::array<std::uint8_t, 32> identity_of(Session& session) {
  const ProgramImpl& program = Internal::of(session.program());
  std::string all(program.fingerprint.begin(), program.fingerprint.end());
  bool from_files = !program.files.empty();
  for (const auto& file : program.files) {
    all += file->is_memory() ? str(checksum(file->bytes(), 0), "\n") : file->identity() + "\n";
    from_files = from_files && !file->is_memory();
  }
  if (!from_files)  // weights may be the caller's
    for (const std::span<const std::byte> weight : program.placed) all += str(checksum(weight, 0), "\n");
  for (const StateView& state : session.states()) all += str(state.name, " ", name(state.tensor.dtype), "\n");
  return sha256(std::as_bytes(std::span(all)));
}

}  // namespace

// A head of a page, the entries of all slots, from the next page on their keys and values. Little-endian.
class PrefixCache::File {
 public:
  File(const std::string& path, const std::array<std::uint8_t, 32>& model, std::size_t slots, std::size_t block_bytes)
      : path_(path), data_at_((kPage + slots * sizeof(Entry) + kPage - 1) / kPage * kPage), block_bytes_(block_bytes) {
    descriptor_ = uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); });
    check(descriptor_ >= 0, "open");
    try {
      begin(model, slots);
    } catch (...) {
      ::close(descriptor_);
      throw;
    }
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Whether it had blocks of this model.
  bool has_blocks() const { return has_blocks_; }

  // Throws SystemError, and InvalidProgram where the file has become shorter.
  void read_entries(std::span<Entry> entries) const { read(std::as_writable_bytes(entries), kPage); }
  void read_data(std::size_t slot, std::span<std::byte> data) const { read(data, data_at_ + slot * block_bytes_); }
  void write(std::size_t slot, const Entry& entry, std::span<const std::byte> data) {
    write(data, data_at_ + slot * block_bytes_);
    write(std::as_bytes(std::span(&entry, 1)), kPage + slot * sizeof(Entry));
  }

 private:
  struct Head {
    char magic[8];
    std::uint32_t version, block;
    std::uint64_t block_bytes, slots;
    std::array<std::uint8_t, 32> model;
    bool operator==(const Head&) const = default;
  };
  static constexpr Head kHead{{'G', 'R', 'A', 'F', 'T', 'P', 'F', 'X'}, 1, kBlock, 0, 0, {}};

  void begin(const std::array<std::uint8_t, 32>& model, std::size_t slots) {
    GRAFT_CHECK(Busy, uninterrupted([&] { return ::flock(descriptor_, LOCK_EX | LOCK_NB); }) == 0,
                "another process has the prefix cache '", path_, "'");
    struct stat status {};
    check(::fstat(descriptor_, &status) == 0, "examine");
    GRAFT_CHECK(InvalidArgument, S_ISREG(status.st_mode), "'", path_, "' is not a regular file");
    Head head = kHead, found{};
    head.block_bytes = block_bytes_;
    head.slots = slots;
    head.model = model;
    if (status.st_size > 0) {
      const bool whole = status.st_size >= static_cast<off_t>(sizeof(found));
      if (whole) read(std::as_writable_bytes(std::span(&found, 1)), 0);
      GRAFT_CHECK(InvalidArgument, whole && std::ranges::equal(found.magic, head.magic), "'", path_,
                  "' is something else than a prefix cache; it stays as it is");
    }
    const auto bytes = static_cast<off_t>(data_at_ + slots * block_bytes_);
    has_blocks_ = found == head && status.st_size == bytes;
    if (has_blocks_) return;
    for (const off_t size : {off_t{0}, bytes})
      check(uninterrupted([&] { return ::ftruncate(descriptor_, size); }) == 0, "resize");
    write(std::as_bytes(std::span(&head, 1)), 0);
  }

  void check(bool done, const char* what) const {
    if (!done)
      throw SystemError(str("cannot ", what, " the prefix cache '", path_,
                            "': ", std::error_code(errno, std::generic_category()).message()));
  }

  void read(std::span<std::byte> bytes, std::size_t at) const {
    while (!bytes.empty()) {
      const ssize_t n =
          uninterrupted([&] { return ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(at)); });
      check(n >= 0, "read");
      GRAFT_CHECK(InvalidProgram, n > 0, "the prefix cache '", path_, "' has become shorter");
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      at += static_cast<std::size_t>(n);
    }
  }

  void write(std::span<const std::byte> bytes, std::size_t at) { check(write_all(descriptor_, bytes, at), "write"); }

  const std::string path_;
  const std::size_t data_at_, block_bytes_;
  int descriptor_ = -1;
  bool has_blocks_ = false;
};

PrefixCache::PrefixCache(Session& session, const PrefixCacheOptions& options)
    : session_(session), block_bytes_(session.kv_token_bytes() * kBlock) {
  for (const StateInfo& state : Internal::of(session.program()).states)
    GRAFT_CHECK(Unsupported, state.state.kind != ir::StateKind::plain,
                "a prefix cache keeps keys and values; the model has another state, '", state.state.fqn, "'");
  GRAFT_CHECK(Unsupported, !Internal::of(session.program()).has_recurrent_states(),
              "a prefix cache keeps keys and values of tokens; the model has recurrent states, which are those of all "
              "tokens of a row together");
  const std::uint64_t room = options.max_bytes / std::max<std::size_t>(block_bytes_, 1);
  GRAFT_CHECK(InvalidArgument, room >= 1, "a prefix cache of ", options.max_bytes, " bytes has no room for a block of ",
              kBlock, " tokens, ", block_bytes_, " bytes");
  const auto slots = static_cast<std::size_t>(std::min<std::uint64_t>(room, kMaxBlocks));
  entries_.resize(slots);
  nodes_.resize(slots);
  buckets_.assign(std::bit_ceil(slots), kNone);
  for (std::size_t slot = slots; slot-- > 0;) empty_.push_back(static_cast<std::int32_t>(slot));
  stats_.max_blocks = slots;
  stats_.block_bytes = block_bytes_;
  memory_ = AlignedMemory((options.file.empty() ? slots : 1) * block_bytes_);
  if (options.file.empty()) return;
  file_ = std::make_unique<File>(options.file, identity_of(session), slots, block_bytes_);
  if (file_->has_blocks()) read_file();
}

PrefixCache::~PrefixCache() = default;

// Blocks come before those that continue them: their serials are smaller.
void PrefixCache::read_file() {
  std::vector<Entry> found(entries_.size());
  file_->read_entries(found);
  std::vector<std::int32_t> order;
  for (std::size_t slot = 0; slot < found.size(); ++slot)
    if (found[slot].serial != 0 && found[slot].serial < kMaxSerial) order.push_back(static_cast<std::int32_t>(slot));
  const auto serial = [&](std::int32_t slot) { return found[static_cast<std::size_t>(slot)].serial; };
  std::ranges::sort(order, {}, serial);
  std::vector<std::int32_t> taken;  // in the order of their serials
  for (const std::int32_t slot : order) {
    const Entry& entry = found[static_cast<std::size_t>(slot)];
    std::int32_t parent = kNone;
    if (entry.parent != 0) {
      const auto at = std::ranges::lower_bound(taken, entry.parent, {}, serial);
      if (at == taken.end() || serial(*at) != entry.parent) continue;  // it was replaced
      parent = *at;
    }
    if (!taken.empty() && serial(taken.back()) == entry.serial) continue;  // of a damaged file
    entries_[static_cast<std::size_t>(slot)] = entry;
    insert(slot, parent);
    nodes_[static_cast<std::size_t>(slot)].checked = false;
    taken.push_back(slot);
  }
  if (!taken.empty()) next_serial_ = serial(taken.back()) + 1;
  std::erase_if(empty_, [&](std::int32_t slot) { return entries_[static_cast<std::size_t>(slot)].serial != 0; });
  for (const std::int32_t slot : taken) touch_path(slot);
}

std::size_t PrefixCache::bucket_of(std::uint64_t parent, std::uint64_t salt, const std::int32_t* tokens) const {
  const auto bytes = std::as_bytes(std::span(tokens, static_cast<std::size_t>(kBlock)));
  return static_cast<std::size_t>(checksum(bytes, parent * 31 + salt)) & (buckets_.size() - 1);
}

std::int32_t PrefixCache::child(std::int32_t parent, std::uint64_t salt, Tokens tokens) const {
  std::int32_t narrow[kBlock];
  std::ranges::transform(tokens, narrow, [](std::int64_t id) { return static_cast<std::int32_t>(id); });
  std::int32_t slot = buckets_[bucket_of(serial_of(parent), salt, narrow)];
  for (; slot != kNone; slot = nodes_[static_cast<std::size_t>(slot)].next) {
    const Entry& entry = entries_[static_cast<std::size_t>(slot)];
    if (entry.parent == serial_of(parent) && entry.salt == salt && std::ranges::equal(entry.tokens, narrow)) break;
  }
  return slot;
}

std::int32_t PrefixCache::walk(Tokens tokens, std::uint64_t salt, std::int64_t* length) const {
  std::int32_t last = kNone;
  for (*length = 0; *length + kBlock <= std::ssize(tokens); *length += kBlock) {
    const std::int32_t next = child(last, salt, tokens.subspan(static_cast<std::size_t>(*length), kBlock));
    if (next == kNone || nodes_[static_cast<std::size_t>(next)].damaged) break;
    last = next;
  }
  return last;
}

std::int64_t PrefixCache::find(Tokens tokens, std::uint64_t salt) const {
  std::int64_t length = 0;
  walk(tokens, salt, &length);
  return length;
}

std::int64_t PrefixCache::restore(Tokens tokens, std::uint64_t salt, std::int64_t from, std::int64_t row) {
  std::int32_t slot = kNone;
  for (std::int64_t length = 0; length + kBlock <= std::ssize(tokens); length += kBlock) {
    slot = child(slot, salt, tokens.subspan(static_cast<std::size_t>(length), kBlock));
    if (slot == kNone) return std::max(from, length);
    if (length < from) continue;
    const auto at = static_cast<std::size_t>(slot);
    const std::span<std::byte> data = data_of(slot);
    if (file_) {
      bool good = !nodes_[at].damaged;
      try {
        if (good) file_->read_data(at, data);
        good = good && (nodes_[at].checked || entries_[at].checksum == checksum_of(entries_[at], data));
      } catch (const std::exception&) {
        good = false;
      }
      if (!good) {
        stats_.damaged += nodes_[at].damaged ? 0 : 1;
        nodes_[at].damaged = true;
        return length;
      }
      nodes_[at].checked = true;
    }
    session_.kv_copy_in(row, length, kBlock, data);
    ++stats_.restored;
  }
  touch_path(slot);
  return std::ssize(tokens) / kBlock * kBlock;
}

void PrefixCache::store(Tokens tokens, std::uint64_t salt, std::int64_t row) {
  if (!stats_.error.empty()) return;
  std::int64_t length = 0;
  std::int32_t last = walk(tokens, salt, &length);
  touch_path(last);
  for (; length + kBlock <= std::ssize(tokens); length += kBlock) {
    const Tokens block = tokens.subspan(static_cast<std::size_t>(length), kBlock);
    if (const std::int32_t damaged = child(last, salt, block); damaged != kNone) {
      Entry entry = entries_[static_cast<std::size_t>(damaged)];
      if (!keep(damaged, entry, length, row)) return;
      last = damaged;
      continue;
    }
    const std::int32_t slot = make_room(last);
    if (slot == kNone) return;
    Entry entry{next_serial_, serial_of(last), salt, 0, {}};
    std::ranges::transform(block, entry.tokens, [](std::int64_t id) { return static_cast<std::int32_t>(id); });
    if (!keep(slot, entry, length, row)) {
      empty_.push_back(slot);
      return;
    }
    ++next_serial_;
    insert(slot, last);
    ++stats_.stored;
    last = slot;
    touch_path(last);
  }
}

// Of a row's tokens from `first` on. False where a layer has lost some of them, or the file cannot be written.
bool PrefixCache::keep(std::int32_t slot, Entry& entry, std::int64_t first, std::int64_t row) noexcept {
  const auto at = static_cast<std::size_t>(slot);
  const std::span<std::byte> data = data_of(slot);
  try {
    if (!session_.kv_copy_out(row, first, kBlock, data)) return false;
  } catch (const std::exception&) {  // no memory
    return false;
  }
  if (file_) {
    entry.checksum = checksum_of(entry, data);
    try {
      file_->write(at, entry, data);
    } catch (const std::exception& error) {
      give_up(error.what());
      return false;
    }
  }
  entries_[at] = entry;
  nodes_[at].checked = true;
  nodes_[at].damaged = false;
  return true;
}

void PrefixCache::give_up(const char* why) noexcept {
  try {
    stats_.error = why;
  } catch (const std::bad_alloc&) {  // the next block fails too, or there was no reason to give up
  }
}

std::int32_t PrefixCache::make_room(std::int32_t parent) {
  if (empty_.empty()) {
    // What a block continues was used as lately as the block itself: the oldest one is continued by none.
    const std::int32_t slot = oldest_;
    if (slot == kNone || slot == parent || nodes_[static_cast<std::size_t>(slot)].children > 0) return kNone;
    remove(slot);
    ++stats_.evicted;
  }
  const std::int32_t slot = empty_.back();
  empty_.pop_back();
  return slot;
}

// `entries_` has it already; it is the newest then.
void PrefixCache::insert(std::int32_t slot, std::int32_t parent) {
  const auto at = static_cast<std::size_t>(slot);
  const Entry& entry = entries_[at];
  std::int32_t& bucket = buckets_[bucket_of(entry.parent, entry.salt, entry.tokens)];
  nodes_[at] = {};
  nodes_[at].parent = parent;
  nodes_[at].next = std::exchange(bucket, slot);
  if (parent != kNone) ++nodes_[static_cast<std::size_t>(parent)].children;
  link_newest(slot);
  ++stats_.blocks;
}

void PrefixCache::remove(std::int32_t slot) {
  const auto at = static_cast<std::size_t>(slot);
  Entry& entry = entries_[at];
  std::int32_t* link = &buckets_[bucket_of(entry.parent, entry.salt, entry.tokens)];
  while (*link != slot) link = &nodes_[static_cast<std::size_t>(*link)].next;
  *link = nodes_[at].next;
  if (nodes_[at].parent != kNone) --nodes_[static_cast<std::size_t>(nodes_[at].parent)].children;
  unlink(slot);
  entry = {};
  empty_.push_back(slot);
  --stats_.blocks;
}

// From the last block on, so that what a block continues is newer than it.
void PrefixCache::touch_path(std::int32_t slot) {
  for (; slot != kNone; slot = nodes_[static_cast<std::size_t>(slot)].parent) {
    unlink(slot);
    link_newest(slot);
  }
}

void PrefixCache::link_newest(std::int32_t slot) {
  Node& node = nodes_[static_cast<std::size_t>(slot)];
  node.newer = kNone;
  node.older = newest_;
  if (newest_ != kNone) nodes_[static_cast<std::size_t>(newest_)].newer = slot;
  if (oldest_ == kNone) oldest_ = slot;
  newest_ = slot;
}

void PrefixCache::unlink(std::int32_t slot) {
  const Node& node = nodes_[static_cast<std::size_t>(slot)];
  (node.newer == kNone ? newest_ : nodes_[static_cast<std::size_t>(node.newer)].older) = node.older;
  (node.older == kNone ? oldest_ : nodes_[static_cast<std::size_t>(node.older)].newer) = node.newer;
}

std::uint64_t PrefixCache::checksum_of(const Entry& entry, std::span<const std::byte> data) const {
  Entry alone = entry;
  alone.checksum = 0;
  return checksum(data, checksum(std::as_bytes(std::span(&alone, 1)), 1));
}

std::span<std::byte> PrefixCache::data_of(std::int32_t slot) {
  return {memory_.data() + (file_ ? 0 : static_cast<std::size_t>(slot) * block_bytes_), block_bytes_};
}

}  // namespace graft::llm

namespace graft {

std::uint64_t PrefixCacheOptions::block_bytes(const std::shared_ptr<const LanguageModel>& model,
                                              const DecoderOptions& decoder) try {
  DecoderOptions one = decoder;
  one.rows = 1;
  return Decoder(model, one).session().kv_token_bytes() * llm::PrefixCache::kBlock;
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
