#include "text/grammar/matcher.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace graft::text::grammar {
namespace {

constexpr std::uint32_t kUnknown = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kDeepest = 512;              // calls within calls: deeper ones are not allowed to begin
constexpr std::size_t kMostConfigs = 1 << 18;        // of one grammar
constexpr std::size_t kMostMaskBytes = 32ull << 20;  // kept

std::uint64_t hash_of(const std::vector<std::uint32_t>& stacks, unsigned flags) {
  std::uint64_t hash = 0x9E3779B97F4A7C15ull + flags;
  for (const std::uint32_t id : stacks) hash = (hash ^ id) * 0xFF51AFD7ED558CCDull + (hash >> 29);
  return hash;
}

}  // namespace

Compiled::Compiled(Automaton automaton, std::shared_ptr<const GrammarVocabulary> vocabulary)
    : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)) {
  GRAFT_CHECK(InvalidArgument, vocabulary_, "a grammar needs a vocabulary");
  stacks_.resize(2);  // kEnd and kAnywhere
  places_.emplace_back();
  next_.emplace_back();
  std::size_t deepest = 0;
  for (const Trie::Node& node : trie().nodes()) deepest = std::max<std::size_t>(deepest, node.depth);
  path_.resize(deepest + 1);
  Place place;
  close(automaton_.start, kEnd, place);
  begin_ = config(std::move(place));
}

Compiled::StackId Compiled::stack(Automaton::Id state, StackId below) {
  const std::uint64_t key = std::uint64_t{state} << 32 | below;
  const auto [found, added] = stack_ids_.try_emplace(key, static_cast<StackId>(stacks_.size()));
  if (added) stacks_.push_back({state, below, stacks_[below].depth + 1});
  return found->second;
}

Compiled::Config Compiled::config(Place place) {
  std::ranges::sort(place.stacks);
  const auto unique_end = std::unique(place.stacks.begin(), place.stacks.end());
  place.stacks.erase(unique_end, place.stacks.end());
  if (place.stacks.empty() && !place.ends && !place.escapes) return kDead;
  const std::uint64_t hash = hash_of(place.stacks, (place.ends ? 1u : 0u) | (place.escapes ? 2u : 0u));
  for (auto [at, end] = config_ids_.equal_range(hash); at != end; ++at) {
    const Place& other = places_[at->second];
    if (other.stacks == place.stacks && other.ends == place.ends && other.escapes == place.escapes) return at->second;
  }
  GRAFT_CHECK(ExecutionError, places_.size() < kMostConfigs, "the text is too complex for its grammar");
  places_.push_back(std::move(place));
  next_.emplace_back();
  config_ids_.emplace(hash, static_cast<Config>(places_.size() - 1));
  return static_cast<Config>(places_.size() - 1);
}

// Adds all places that are reached without reading a byte.
void Compiled::close(Automaton::Id first_state, StackId first_below, Place& place) {
  std::vector<std::pair<Automaton::Id, StackId>> work = {{first_state, first_below}};
  while (!work.empty()) {
    const auto [state, below] = work.back();
    work.pop_back();
    const StackId id = stack(state, below);
    if (seen_.size() < stacks_.size()) seen_.resize(stacks_.size() * 2);
    if (seen_[id] == turn_) continue;
    seen_[id] = turn_;
    const Automaton::State& at = automaton_.states[state];
    if (!at.bytes.empty()) place.stacks.push_back(id);
    if (at.final) {
      if (below == kEnd)
        place.ends = true;
      else if (below == kAnywhere)
        place.escapes = true;
      else
        work.emplace_back(stacks_[below].state, stacks_[below].below);
    }
    for (const Automaton::Id to : at.empty) work.emplace_back(to, below);
    for (const Automaton::Call& call : at.calls) {
      // A call that nothing follows needs no place to come back to, so that right recursion does not grow.
      const StackId back = automaton_.states[call.back].returns ? below : stack(call.back, below);
      if (stacks_[back].depth < kDeepest) work.emplace_back(call.rule_start, back);
    }
  }
}

Compiled::Config Compiled::step(Config from, std::uint8_t byte) {
  if (from == kDead) return kDead;
  std::vector<Config>& known = next_[from];
  if (known.empty()) known.assign(automaton_.classes, kUnknown);
  const std::size_t byte_class = automaton_.class_of[byte];
  if (known[byte_class] != kUnknown) return known[byte_class];
  Place place;
  ++turn_;
  for (std::size_t i = 0; i < places_[from].stacks.size(); ++i) {
    const Stack at = stacks_[places_[from].stacks[i]];
    for (const auto& edge : automaton_.states[at.state].bytes)
      if (byte >= edge.first && byte <= edge.last) close(edge.to, at.below, place);
  }
  const Config to = config(std::move(place));
  next_[from][byte_class] = to;
  return to;
}

Compiled::Config Compiled::begin() { return begin_; }

Compiled::Config Compiled::after(Config from, std::string_view text) {
  const std::lock_guard lock(mutex_);
  for (const char c : text) from = step(from, static_cast<std::uint8_t>(c));
  return from;
}

bool Compiled::may_end(Config at) {
  const std::lock_guard lock(mutex_);
  return places_[at].ends;
}

bool Compiled::only_ends(Config at) {
  const std::lock_guard lock(mutex_);
  return places_[at].ends && places_[at].stacks.empty();
}

void Compiled::set_tokens(std::uint32_t node, Bits& bits) const {
  for (const std::int64_t id : trie().tokens_of(node)) bits[static_cast<std::size_t>(id) / 32] |= 1u << (id % 32);
}

// Allows the tokens of nodes [begin, end) that the configuration survives. `from` is that before the first node, whose
// depth is base_depth + 1.
void Compiled::walk(Config from, std::uint32_t begin, std::uint32_t end, std::size_t base_depth, Bits& bits) {
  const auto nodes = trie().nodes();
  path_[base_depth] = from;
  for (std::uint32_t n = begin; n < end;) {
    const Trie::Node& node = nodes[n];
    const Config at = step(path_[node.depth - 1u], node.byte);
    if (at == kDead) {
      n = node.end;
      continue;
    }
    path_[node.depth] = at;
    set_tokens(n, bits);
    ++n;
  }
}

const Compiled::LocalMask& Compiled::local_mask(Config local) {
  if (const auto found = local_masks_.find(local); found != local_masks_.end()) return found->second;
  LocalMask made;
  made.bits.resize(trie().words());
  const auto nodes = trie().nodes();
  std::vector<std::uint8_t> escaped(path_.size());
  path_[0] = local;
  escaped[0] = places_[local].escapes;
  for (std::uint32_t n = 0; n < nodes.size();) {
    const Trie::Node& node = nodes[n];
    const Config at = step(path_[node.depth - 1u], node.byte);
    if (at == kDead) {
      // From where the rule has ended its caller may go on.
      if (escaped[node.depth - 1u]) made.open.push_back(n);
      n = node.end;
      continue;
    }
    path_[node.depth] = at;
    escaped[node.depth] = escaped[node.depth - 1u] || places_[at].escapes;
    set_tokens(n, made.bits);
    ++n;
  }
  return local_masks_.emplace(local, std::move(made)).first->second;
}

const Compiled::Bits& Compiled::mask(Config at) {
  if (const auto found = masks_.find(at); found != masks_.end()) return found->second;
  make_room();
  Bits bits(trie().words());
  // Stacks of one caller together: what they allow within their rule is known for all callers.
  std::vector<StackId> stacks = places_[at].stacks;
  std::ranges::sort(stacks, {}, [&](StackId id) { return std::pair(stacks_[id].below, id); });
  std::vector<std::uint32_t> open;
  for (std::size_t i = 0; i < stacks.size();) {
    const StackId below = stacks_[stacks[i]].below;
    Place place;
    for (; i < stacks.size() && stacks_[stacks[i]].below == below; ++i)
      place.stacks.push_back(stack(stacks_[stacks[i]].state, kAnywhere));
    const LocalMask& local = local_mask(config(std::move(place)));
    for (std::size_t w = 0; w < bits.size(); ++w) bits[w] |= local.bits[w];
    open.insert(open.end(), local.open.begin(), local.open.end());
  }
  std::ranges::sort(open);
  const auto nodes = trie().nodes();
  std::uint32_t done = 0;  // nodes before are walked
  for (const std::uint32_t node : open) {
    if (node < done) continue;
    done = nodes[node].end;
    const std::size_t before = nodes[node].depth - 1u;
    const std::string_view text = trie().bytes_of(trie().tokens()[nodes[node].first_token]);
    Config from = at;
    for (std::size_t i = 0; i < before && from != kDead; ++i) from = step(from, static_cast<std::uint8_t>(text[i]));
    if (from != kDead) walk(from, node, nodes[node].end, before, bits);
  }
  if (places_[at].ends)
    for (const std::int64_t id : trie().eos()) bits[static_cast<std::size_t>(id) / 32] |= 1u << (id % 32);
  return masks_.emplace(at, std::move(bits)).first->second;
}

void Compiled::make_room() {
  const std::size_t bytes = trie().words() * sizeof(std::uint32_t);
  if (masks_.size() * bytes > kMostMaskBytes) masks_.clear();
  if (local_masks_.size() * bytes > kMostMaskBytes) local_masks_.clear();
}

void Compiled::allowed(Config at, std::span<std::uint32_t> words) {
  const std::lock_guard lock(mutex_);
  const Bits& bits = mask(at);
  GRAFT_CHECK(InvalidArgument, words.size() >= bits.size(), "the mask of ", trie().size(), " tokens needs ",
              bits.size(), " words, found ", words.size());
  std::ranges::fill(std::ranges::copy(bits, words.begin()).out, words.end(), 0u);
}

}  // namespace graft::text::grammar
