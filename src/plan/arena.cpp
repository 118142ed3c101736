#include "plan/arena.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace graft {
namespace {

using Index = std::uint32_t;
using Order = std::vector<Index>;

constexpr std::int64_t kUnplaced = -1;
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// Steps (visits of a placed buffer, about a nanosecond each) that one greedy strategy may take. Keeps plans of any size
// well below a second, and the lists of conflicts below 64 MB.
constexpr std::int64_t kGreedyStepLimit = 40'000'000;
// Steps for the strategies after the two that always run, local search included. Keeps a plan of 200 buffers that
// misses the bound well below 150 microseconds.
constexpr std::int64_t kExtraSteps = 40'000;
// Cost in steps of sorting one entry of a conflict list.
constexpr std::int64_t kListedStepCost = 4;

// A buffer of at least one byte, its size rounded up.
struct Buffer {
  std::int64_t bytes;
  std::int32_t first;
  std::int32_t last;
};

// Which of the buffers alive at one launch is placed first.
enum class AtOneLaunch { largest, oldest, youngest, longest_to_live };

// State shared by all strategies: the buffers and what follows from their lifetimes.
class Planner {
 public:
  explicit Planner(std::vector<Buffer> buffers);

  void run();
  const std::vector<std::int64_t>& offsets() const { return best_; }
  std::int64_t bytes() const { return best_bytes_; }
  std::string_view strategy() const { return strategy_; }

 private:
  struct Block {
    std::int64_t offset;
    std::int64_t end;
  };
  struct Placed {
    Block block;
    std::int32_t first;
    std::int32_t last;
  };

  bool done() const { return best_bytes_ == bound_; }
  std::size_t size() const { return buffers_.size(); }
  void offer(std::string_view strategy, std::int64_t bytes);
  void list_conflicts();
  Order by_size() const;
  Order by_breadth(AtOneLaunch rule) const;
  std::int64_t best_fit_in_time(bool backwards);
  std::int64_t place_in_order(const Order& order, std::int64_t limit);
  void collect_listed(Index buffer);
  void collect_by_scan(const Buffer& buffer);
  void greedy(std::string_view strategy, Order order);
  std::vector<Index> kinds() const;
  void extra(std::string_view strategy, AtOneLaunch rule);
  void hang_one_kind();
  void search();

  std::vector<Buffer> buffers_;
  Order starts_;                    // buffers by first launch
  Order ends_;                      // buffers by last launch
  std::vector<std::int64_t> live_;  // per entry of starts_: bytes alive once it is
  std::int64_t bound_ = 0;          // the largest of live_
  std::int64_t greedy_steps_ = 0;   // cost of one greedy strategy
  std::int64_t budget_ = kExtraSteps;
  bool listed_ = false;                  // conflicts_ is filled; otherwise every placed buffer is checked
  std::vector<std::size_t> list_begin_;  // per buffer, into conflicts_
  Order conflicts_;

  std::vector<std::int64_t> offsets_;  // of the strategy that runs
  std::vector<bool> hang_;             // per buffer: placed from the top down
  std::vector<Placed> placed_;         // by offset; kept only when the conflicts are not listed
  std::vector<Block> blocks_;          // ranges that the next buffer must not overlap, by offset
  std::vector<std::int64_t> best_;
  std::int64_t best_bytes_ = kNoLimit;
  Order best_order_;  // the greedy order with the smallest arena, where local search begins
  std::int64_t best_order_bytes_ = kNoLimit;
  std::string_view strategy_ = "empty";
};

Planner::Planner(std::vector<Buffer> buffers)
    : buffers_(std::move(buffers)), offsets_(buffers_.size(), kUnplaced), hang_(buffers_.size(), false) {
  const std::size_t count = size();
  starts_.resize(count);
  for (std::size_t i = 0; i < count; ++i) starts_[i] = static_cast<Index>(i);
  ends_ = starts_;
  // Ties by index, everywhere: the layout must not depend on the sort algorithm of a standard library.
  std::sort(starts_.begin(), starts_.end(),
            [&](Index a, Index b) { return std::pair(buffers_[a].first, a) < std::pair(buffers_[b].first, b); });
  std::sort(ends_.begin(), ends_.end(),
            [&](Index a, Index b) { return std::pair(buffers_[a].last, a) < std::pair(buffers_[b].last, b); });

  live_.resize(count);
  std::int64_t live = 0;
  std::int64_t pairs = 0;
  std::size_t ended = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Buffer& buffer = buffers_[starts_[i]];
    for (; buffers_[ends_[ended]].last < buffer.first; ++ended) live -= buffers_[ends_[ended]].bytes;
    live += buffer.bytes;
    live_[i] = live;
    bound_ = std::max(bound_, live);
    pairs += static_cast<std::int64_t>(i - ended);
  }
  const auto all = static_cast<std::int64_t>(count) * static_cast<std::int64_t>(count) / 2;
  listed_ = pairs * kListedStepCost < all;
  greedy_steps_ = (listed_ ? pairs * kListedStepCost : all) + static_cast<std::int64_t>(count);
}

// Two sweeps over the launches, one to count and one to fill, so that no list of pairs is needed.
void Planner::list_conflicts() {
  Order alive;
  const auto sweep = [&](auto&& visit) {
    alive.clear();
    for (const Index buffer : starts_) {
      std::erase_if(alive, [&](Index other) { return buffers_[other].last < buffers_[buffer].first; });
      for (const Index other : alive) visit(buffer, other);
      alive.push_back(buffer);
    }
  };
  list_begin_.assign(size() + 1, 0);
  sweep([&](Index a, Index b) {
    ++list_begin_[a + 1];
    ++list_begin_[b + 1];
  });
  for (std::size_t i = 0; i < size(); ++i) list_begin_[i + 1] += list_begin_[i];
  conflicts_.resize(list_begin_.back());
  std::vector<std::size_t> fill(list_begin_.begin(), list_begin_.end() - 1);
  sweep([&](Index a, Index b) {
    conflicts_[fill[a]++] = b;
    conflicts_[fill[b]++] = a;
  });
}

void Planner::offer(std::string_view strategy, std::int64_t bytes) {
  if (bytes >= best_bytes_) return;
  best_bytes_ = bytes;
  best_ = offsets_;
  strategy_ = strategy;
}

// ggml's graph allocator: in launch order, the smallest free block that fits (the highest among equals), the open end
// if none does; adjacent freed blocks merge. Backwards, it plans from the last launch to the first.
std::int64_t Planner::best_fit_in_time(bool backwards) {
  const std::size_t count = size();
  std::map<std::int64_t, std::int64_t> free_at;             // offset to bytes, below `top`
  std::set<std::pair<std::int64_t, std::int64_t>> by_size;  // (bytes, -offset)
  std::int64_t top = 0;                                     // the open end begins here
  std::int64_t peak = 0;
  const auto drop = [&](std::map<std::int64_t, std::int64_t>::iterator block) {
    by_size.erase({block->second, -block->first});
    return free_at.erase(block);
  };
  const auto release = [&](std::int64_t offset, std::int64_t bytes) {
    auto above = free_at.lower_bound(offset);
    if (above != free_at.begin()) {
      const auto below = std::prev(above);
      if (below->first + below->second == offset) {
        offset = below->first;
        bytes += below->second;
        above = drop(below);
      }
    }
    if (above != free_at.end() && above->first == offset + bytes) {
      bytes += above->second;
      drop(above);
    }
    if (offset + bytes == top) {
      top = offset;
    } else {
      free_at.emplace(offset, bytes);
      by_size.emplace(bytes, -offset);
    }
  };

  std::size_t ended = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Index buffer = backwards ? ends_[count - 1 - i] : starts_[i];
    const auto ended_before = [&] {
      if (backwards) return buffers_[starts_[count - 1 - ended]].first > buffers_[buffer].last;
      return buffers_[ends_[ended]].last < buffers_[buffer].first;
    };
    for (; ended_before(); ++ended) {
      const Index old = backwards ? starts_[count - 1 - ended] : ends_[ended];
      release(offsets_[old], buffers_[old].bytes);
    }
    const std::int64_t bytes = buffers_[buffer].bytes;
    auto fit = by_size.lower_bound({bytes, std::numeric_limits<std::int64_t>::min()});
    if (fit == by_size.end()) {
      offsets_[buffer] = top;
      top += bytes;
      peak = std::max(peak, top);
      continue;
    }
    const std::int64_t block_bytes = fit->first;
    const std::int64_t offset = -fit->second;
    offsets_[buffer] = offset;
    drop(free_at.find(offset));
    if (block_bytes > bytes) {
      free_at.emplace(offset + bytes, block_bytes - bytes);
      by_size.emplace(block_bytes - bytes, -(offset + bytes));
    }
  }
  return peak;
}

Order Planner::by_size() const {
  Order order = starts_;
  std::sort(order.begin(), order.end(),
            [&](Index a, Index b) { return std::pair(-buffers_[a].bytes, a) < std::pair(-buffers_[b].bytes, b); });
  return order;
}

// Busiest launch first, with all buffers alive there in the order of the rule, then the next busiest. A buffer is
// sorted by the busiest launch of its life, found by a sparse table of range maxima. Buffers that begin or end together
// are placed side by side by a rule on time, so that they leave one contiguous gap.
Order Planner::by_breadth(AtOneLaunch rule) const {
  const std::size_t count = size();
  std::vector<std::vector<Index>> busiest{Order(count)};  // into starts_
  for (std::size_t i = 0; i < count; ++i) busiest[0][i] = static_cast<Index>(i);
  const auto busier = [&](Index a, Index b) { return live_[b] > live_[a] ? b : a; };
  for (std::size_t width = 1; 2 * width <= count; width *= 2) {
    const std::vector<Index>& half = busiest.back();
    std::vector<Index> level(count - 2 * width + 1);
    for (std::size_t i = 0; i < level.size(); ++i) level[i] = busier(half[i], half[i + width]);
    busiest.push_back(std::move(level));
  }
  Order key(count);
  for (std::size_t begin = 0; begin < count; ++begin) {
    const Buffer& buffer = buffers_[starts_[begin]];
    const auto after =
        std::upper_bound(starts_.begin() + static_cast<std::ptrdiff_t>(begin), starts_.end(), buffer.last,
                         [&](std::int32_t last, Index other) { return last < buffers_[other].first; });
    const auto end = static_cast<std::size_t>(after - starts_.begin());
    const auto level = static_cast<std::size_t>(std::bit_width(end - begin) - 1);
    key[starts_[begin]] = busier(busiest[level][begin], busiest[level][end - (std::size_t{1} << level)]);
  }
  const auto rank = [&](Index i) -> std::int64_t {
    switch (rule) {
      case AtOneLaunch::largest:
        return -buffers_[i].bytes;
      case AtOneLaunch::oldest:
        return buffers_[i].first;
      case AtOneLaunch::youngest:
        return -std::int64_t{buffers_[i].first};
      case AtOneLaunch::longest_to_live:
        return -std::int64_t{buffers_[i].last};
    }
    GRAFT_ASSERT(false);
  };
  Order order = starts_;
  std::sort(order.begin(), order.end(), [&](Index a, Index b) {
    if (key[a] != key[b]) return std::pair(-live_[key[a]], key[a]) < std::pair(-live_[key[b]], key[b]);
    return std::tuple(rank(a), -buffers_[a].bytes, a) < std::tuple(rank(b), -buffers_[b].bytes, b);
  });
  return order;
}

// Both fill blocks_ with the placed buffers that conflict with this one, by offset.
void Planner::collect_listed(Index buffer) {
  blocks_.clear();
  for (std::size_t i = list_begin_[buffer]; i < list_begin_[buffer + 1]; ++i) {
    const Index other = conflicts_[i];
    if (offsets_[other] == kUnplaced) continue;
    blocks_.push_back({offsets_[other], offsets_[other] + buffers_[other].bytes});
  }
  std::sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) { return a.offset < b.offset; });
}

void Planner::collect_by_scan(const Buffer& buffer) {
  blocks_.resize(placed_.size());
  std::size_t count = 0;
  for (const Placed& other : placed_) {  // branchless: whether two lives overlap cannot be predicted
    blocks_[count] = other.block;
    count += static_cast<std::size_t>((other.first <= buffer.last) & (buffer.first <= other.last));
  }
  blocks_.resize(count);
}

// Best fit in the given order: each buffer goes into the smallest gap that fits between the placed ones, else on top of
// them (those in hang_ below the bound, if they fit). Returns the peak, or kNoLimit as soon as it would exceed `limit`.
std::int64_t Planner::place_in_order(const Order& order, std::int64_t limit) {
  std::fill(offsets_.begin(), offsets_.end(), kUnplaced);
  placed_.clear();
  std::int64_t peak = 0;
  for (const Index index : order) {
    const Buffer buffer = buffers_[index];
    if (listed_) {
      collect_listed(index);
    } else {
      collect_by_scan(buffer);
    }
    std::int64_t floor = 0;
    std::int64_t best = kUnplaced;
    std::int64_t best_gap = kNoLimit;
    for (const Block& other : blocks_) {
      const std::int64_t gap = other.offset - floor;
      if (gap >= buffer.bytes && gap < best_gap) {
        best = floor;
        best_gap = gap;
      }
      floor = std::max(floor, other.end);
    }
    if (best == kUnplaced) best = hang_[index] ? std::max(floor, bound_ - buffer.bytes) : floor;
    const std::int64_t end = best + buffer.bytes;
    if (end > limit) return kNoLimit;
    peak = std::max(peak, end);
    offsets_[index] = best;
    if (!listed_) {
      const auto above = std::upper_bound(placed_.begin(), placed_.end(), best,
                                          [](std::int64_t offset, const Placed& p) { return offset < p.block.offset; });
      placed_.insert(above, {{best, end}, buffer.first, buffer.last});
    }
  }
  return peak;
}

void Planner::greedy(std::string_view strategy, Order order) {
  const std::int64_t peak = place_in_order(order, kNoLimit);
  offer(strategy, peak);
  if (peak >= best_order_bytes_) return;
  best_order_bytes_ = peak;
  best_order_ = std::move(order);
}

// Buffers of equal size and length of life: the layers of a network repeat them, and they must change together.
std::vector<Index> Planner::kinds() const {
  std::map<std::pair<std::int64_t, std::int64_t>, Index> known;
  std::vector<Index> kinds(size());
  for (std::size_t i = 0; i < size(); ++i) {
    const std::pair key(buffers_[i].bytes, std::int64_t{buffers_[i].last} - buffers_[i].first);
    kinds[i] = known.emplace(key, static_cast<Index>(known.size())).first->second;
  }
  return kinds;
}

// Local search: moves a buffer that ends at the peak forward in the order, with all of its kind; a step that does not
// raise the peak is kept.
void Planner::search() {
  if (done() || size() < 2 || budget_ < 2 * greedy_steps_) return;
  budget_ -= greedy_steps_;
  const std::vector<Index> kind = kinds();
  Order order = best_order_;
  std::int64_t current = place_in_order(order, kNoLimit);
  std::vector<std::int64_t> kept = offsets_;
  std::uint64_t random = 0x9e3779b97f4a7c15U;
  const auto below = [&](std::size_t end) {  // xorshift: a fixed sequence, the same everywhere
    random ^= random << 13U;
    random ^= random >> 7U;
    random ^= random << 17U;
    return static_cast<std::size_t>(random % end);
  };
  const auto move = [](Order& in, std::size_t from, std::size_t to) {
    const auto at = in.begin() + static_cast<std::ptrdiff_t>(from);
    std::rotate(in.begin() + static_cast<std::ptrdiff_t>(to), at, at + 1);
  };
  std::vector<std::size_t> tops;
  for (; budget_ >= greedy_steps_ && !done(); budget_ -= greedy_steps_) {
    tops.clear();
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (kept[order[i]] + buffers_[order[i]].bytes == current) tops.push_back(i);
    }
    // Every fourth step takes any buffer, so that two cannot swap forever.
    const bool any = below(4) == 0 || tops.empty();
    const std::size_t from = any ? 1 + below(order.size() - 1) : tops[below(tops.size())];
    const std::size_t to = below(from);
    const Index moved = kind[order[from]];
    const Index passed = kind[order[to]];
    Order next = order;
    if (moved == passed) {
      move(next, from, to);
    } else {
      for (std::size_t i = 0; i < next.size(); ++i) {
        if (kind[next[i]] != moved) continue;
        const Buffer& buffer = buffers_[next[i]];
        for (std::size_t j = i; j-- > 0;) {
          const Buffer& other = buffers_[next[j]];
          if (kind[next[j]] != passed || other.first > buffer.last || buffer.first > other.last) continue;
          move(next, i, j);
          break;
        }
      }
    }
    const std::int64_t peak = place_in_order(next, current);
    if (peak > current) continue;
    offer("local search", peak);
    current = peak;
    order = std::move(next);
    kept = offsets_;
  }
}

// Runs a greedy strategy if the budget allows it.
void Planner::extra(std::string_view strategy, AtOneLaunch rule) {
  if (done() || budget_ < greedy_steps_) return;
  budget_ -= greedy_steps_;
  greedy(strategy, by_breadth(rule));
}

// Two busy launches of a layer often want one long-lived buffer, such as the residual stream, at opposite ends: placed
// from the bottom up, it would lie in the middle at the second one. So one kind at a time is placed from the top down.
// May use three quarters of the remaining budget.
void Planner::hang_one_kind() {
  const std::int64_t keep = budget_ / 4;
  if (done() || budget_ - greedy_steps_ < keep) return;
  const std::vector<Index> kind = kinds();
  const Order order = by_breadth(AtOneLaunch::oldest);
  const Index count = *std::max_element(kind.begin(), kind.end()) + 1;
  for (Index hung = 0; hung < count && budget_ - greedy_steps_ >= keep && !done(); ++hung, budget_ -= greedy_steps_) {
    for (std::size_t i = 0; i < size(); ++i) hang_[i] = kind[i] == hung;
    offer("greedy by breadth, one kind from the top", place_in_order(order, best_bytes_));
  }
  std::fill(hang_.begin(), hang_.end(), false);
}

void Planner::run() {
  offer("best fit in launch order", best_fit_in_time(false));
  if (done()) return;
  if (greedy_steps_ <= kGreedyStepLimit) {
    if (listed_) list_conflicts();
    greedy("greedy by size", by_size());
    if (!done()) greedy("greedy by breadth, oldest first", by_breadth(AtOneLaunch::oldest));
  }
  if (!done()) offer("best fit in reverse launch order", best_fit_in_time(true));
  extra("greedy by breadth, longest to live first", AtOneLaunch::longest_to_live);
  hang_one_kind();
  extra("greedy by breadth, largest first", AtOneLaunch::largest);
  extra("greedy by breadth, youngest first", AtOneLaunch::youngest);
  search();
}

}  // namespace

ArenaLayout plan_arena(std::span<const Lifetime> lifetimes, std::int64_t alignment) {
  GRAFT_ASSERT(alignment > 0 && std::has_single_bit(static_cast<std::uint64_t>(alignment)));
  GRAFT_ASSERT(lifetimes.size() < std::numeric_limits<Index>::max());
  std::vector<Buffer> buffers;
  std::vector<std::size_t> sources;
  std::int64_t sum = 0;  // bounds every offset below: a buffer begins at 0 or on top of another
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    const Lifetime& lifetime = lifetimes[i];
    GRAFT_ASSERT(lifetime.bytes >= 0 && lifetime.first <= lifetime.last);
    if (lifetime.bytes == 0) continue;
    std::int64_t rounded = 0;
    const bool fits = !__builtin_add_overflow(lifetime.bytes, alignment - 1, &rounded) &&
                      !__builtin_add_overflow(sum, rounded & -alignment, &sum);
    GRAFT_CHECK(Unsupported, fits, "arena: expected sizes that add up to less than 2^63 bytes, found buffer ", i,
                " of ", lifetime.bytes, " bytes after ", sum);
    buffers.push_back({rounded & -alignment, lifetime.first, lifetime.last});
    sources.push_back(i);
  }
  ArenaLayout layout;
  layout.offsets.assign(lifetimes.size(), 0);
  layout.strategy = "empty";
  if (buffers.empty()) return layout;
  Planner planner(std::move(buffers));
  planner.run();
  for (std::size_t i = 0; i < sources.size(); ++i) layout.offsets[sources[i]] = planner.offsets()[i];
  layout.bytes = planner.bytes();
  layout.strategy = planner.strategy();
  return layout;
}

}  // namespace graft
