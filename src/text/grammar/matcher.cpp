#include "text/grammar/matcher.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "base/check.h"

namespace graft::text::grammar {
namespace {

constexpr std::uint32_t kDeepest = 512;              // calls within calls: deeper ones are not allowed to begin
constexpr std::size_t kMostConfigs = 1 << 18;        // of one grammar
constexpr std::size_t kMostSteps = 1 << 25;          // that the table of steps has room for
constexpr std::size_t kMostMaskBytes = 32ull << 20;  // kept

// Of comparisons of configurations: pairs of one; the configurations that a grammar may have before there are no more.
constexpr std::size_t kMostPairs = 1000, kMostConfigsCompared = kMostConfigs / 8;
constexpr std::size_t kReferences = 4;
constexpr std::uint32_t kAlikeEnough = 16;  // bytes: few tokens are longer

std::uint64_t hash_of(const std::vector<std::uint32_t>& stacks, unsigned flags) {
  std::uint64_t hash = 0x9E3779B97F4A7C15ull + flags;
  for (const std::uint32_t id : stacks) hash = (hash ^ id) * 0xFF51AFD7ED558CCDull + (hash >> 29);
  return hash;
}

void set_range(std::vector<std::uint32_t>& bits, std::uint32_t begin, std::uint32_t end) {
  for (; begin < end && begin % 32 != 0; ++begin) bits[begin / 32] |= 1u << (begin % 32);
  for (; begin + 32 <= end; begin += 32) bits[begin / 32] = ~0u;
  for (; begin < end; ++begin) bits[begin / 32] |= 1u << (begin % 32);
}

void copy_range(std::vector<std::uint32_t>& bits, const std::vector<std::uint32_t>& from, std::uint32_t begin,
                std::uint32_t end) {
  const auto copy = [&](std::uint32_t word, std::uint32_t mask) { bits[word] |= from[word] & mask; };
  if (begin >= end) return;
  const std::uint32_t first = begin / 32, last = (end - 1) / 32;
  const std::uint32_t low = ~0u << (begin % 32), high = ~0u >> (31 - (end - 1) % 32);
  if (first == last) return copy(first, low & high);
  copy(first, low);
  for (std::uint32_t word = first + 1; word < last; ++word) bits[word] = from[word];
  copy(last, high);
}

}  // namespace

Compiled::Compiled(Automaton automaton, std::shared_ptr<const GrammarVocabulary> vocabulary)
    : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)) {
  GRAFT_CHECK(InvalidArgument, vocabulary_, "a grammar needs a vocabulary");
  stacks_.resize(2);  // kEnd and kAnywhere
  places_.emplace_back();
  next_.resize(automaton_.classes, kDead);
  std::size_t deepest = 0;
  for (const Trie::Node& node : trie().nodes()) deepest = std::max<std::size_t>(deepest, node.depth);
  path_.resize(deepest + 1);
  byte_of_class_.resize(automaton_.classes);
  for (unsigned byte = 0; byte < 256; ++byte)
    byte_of_class_[automaton_.class_of[byte]] = static_cast<std::uint8_t>(byte);
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
  GRAFT_CHECK(ExecutionError, places_.size() < kMostConfigs && next_.size() < kMostSteps,
              "the text is too complex for its grammar");
  places_.push_back(std::move(place));
  next_.resize(next_.size() + automaton_.classes, kUnknown);
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

Compiled::Config Compiled::make_step(Config from, std::uint8_t byte) {
  Place place;
  ++turn_;
  for (std::size_t i = 0; i < places_[from].stacks.size(); ++i) {
    const Stack at = stacks_[places_[from].stacks[i]];
    for (const auto& edge : automaton_.states[at.state].bytes)
      if (byte >= edge.first && byte <= edge.last) close(edge.to, at.below, place);
  }
  const Config to = config(std::move(place));
  next_[from * automaton_.classes + automaton_.class_of[byte]] = to;
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

// Allows the tokens of nodes [begin, end) that the configuration survives. `from` is that before the first node, whose
// depth is base_depth + 1.
void Compiled::walk(Config from, std::uint32_t begin, std::uint32_t end, std::size_t base_depth, const Reference& like,
                    Bits& bits) {
  const auto nodes = trie().nodes();
  const std::uint32_t alike = like.bytes;
  path_[base_depth] = from;
  std::uint32_t alive = begin;  // from here on, up to n
  const auto skip = [&](std::uint32_t n) {
    set_range(bits, trie().first_token(alive), trie().first_token(n));
    return alive = trie().end(n);
  };
  for (std::uint32_t n = begin; n < end;) {
    const Trie::Node& node = nodes[n];
    if (node.deepest <= alike) {
      copy_range(bits, like.mask->places, trie().first_token(n), trie().first_token(trie().end(n)));
      n = skip(n);
      continue;
    }
    const Config at = step(path_[node.depth - 1u], node.byte);
    if (at == kDead) {
      n = skip(n);
      continue;
    }
    path_[node.depth] = at;
    ++n;
  }
  set_range(bits, trie().first_token(alive), trie().first_token(end));
}

// How many bytes a token may have, at most, for two configurations to be known to allow the same ones. Those of
// counters ("at most 20 more") are alike up to where one ends.
std::uint32_t Compiled::bytes_alike(Config a, Config b) {
  constexpr std::uint32_t kAlways = 0xFFFF;
  std::vector<std::pair<Config, Config>> pairs = {{a, b}};
  std::unordered_set<std::uint64_t> seen;
  const std::size_t most_configs = std::min(places_.size() + kMostPairs, kMostConfigsCompared);
  for (std::size_t i = 0, length = 0;; ++length) {
    const std::size_t end = pairs.size();
    if (i == end) return kAlways;
    const auto checked = static_cast<std::uint32_t>(length == 0 ? 0 : length - 1);
    if (checked == kAlikeEnough) return checked;
    for (; i < end; ++i) {
      const auto [x, y] = pairs[i];
      if (x == kDead || y == kDead) return checked;
      for (const std::uint8_t byte : byte_of_class_) {
        if (pairs.size() > kMostPairs || places_.size() > most_configs) return checked;
        const Config next_x = step(x, byte), next_y = step(y, byte);
        if (next_x != next_y && seen.insert(std::uint64_t{next_x} << 32 | next_y).second)
          pairs.emplace_back(next_x, next_y);
      }
    }
  }
}

const Compiled::LocalMask& Compiled::local_mask(Config local) {
  if (const auto found = local_masks_.find(local); found != local_masks_.end()) return found->second;
  LocalMask made;
  made.bits.resize((trie().tokens().size() + 31) / 32);
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
      n = trie().end(n);
      continue;
    }
    path_[node.depth] = at;
    escaped[node.depth] = escaped[node.depth - 1u] || places_[at].escapes;
    ++n;
    set_range(made.bits, trie().first_token(n - 1), trie().first_token(n));
  }
  return local_masks_.emplace(local, std::move(made)).first->second;
}

std::uint64_t Compiled::innermost(Config at) const {
  std::uint32_t shallowest = kDeepest;
  for (const StackId id : places_[at].stacks) shallowest = std::min(shallowest, stacks_[id].depth);
  std::vector<std::uint32_t> states;
  for (StackId id : places_[at].stacks)
    for (; stacks_[id].depth >= shallowest && id != kEnd; id = stacks_[id].below) states.push_back(stacks_[id].state);
  return hash_of(states, 0);
}

// Among the masks that there are. First the one of the same place in other calls (another item of a list), then the
// last.
Compiled::Reference Compiled::reference(Config at) {
  Reference best;
  const auto consider = [&](std::uint64_t key) {
    const auto found = walked_.find(key);
    if (found == walked_.end() || best.bytes >= kAlikeEnough) return;
    if (const std::uint32_t bytes = bytes_alike(at, found->second.config); bytes > best.bytes)
      best = {bytes, &found->second};
  };
  consider(innermost(at));
  for (const std::uint64_t key : last_walked_) consider(key);
  return best;
}

const Compiled::Bits& Compiled::mask(Config at) {
  if (const auto found = masks_.find(at); found != masks_.end()) return found->second;
  make_room();
  Bits places((trie().tokens().size() + 31) / 32);  // in Trie::tokens()
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
    for (std::size_t w = 0; w < places.size(); ++w) places[w] |= local.bits[w];
    open.insert(open.end(), local.open.begin(), local.open.end());
  }
  std::ranges::sort(open);
  const Reference like = open.empty() ? Reference{} : reference(at);
  const auto nodes = trie().nodes();
  std::uint32_t done = 0;  // nodes before are walked
  for (const std::uint32_t node : open) {
    if (node < done) continue;
    done = trie().end(node);
    if (nodes[node].deepest <= like.bytes) {
      copy_range(places, like.mask->places, trie().first_token(node), trie().first_token(done));
      continue;
    }
    const std::size_t before = nodes[node].depth - 1u;
    const std::string_view text = trie().bytes_of(trie().tokens()[trie().first_token(node)]);
    Config from = at;
    for (std::size_t i = 0; i < before && from != kDead; ++i) from = step(from, static_cast<std::uint8_t>(text[i]));
    if (from != kDead) walk(from, node, done, before, like, places);
  }
  // Those of the reference, but for the tokens that are others here.
  Bits bits = like.mask != nullptr ? like.mask->bits : Bits(trie().words());
  for (std::size_t w = 0; w < places.size(); ++w)
    for (std::uint32_t word = like.mask != nullptr ? places[w] ^ like.mask->places[w] : places[w]; word != 0;
         word &= word - 1) {
      const std::int64_t id = trie().tokens()[32 * w + static_cast<std::size_t>(std::countr_zero(word))];
      bits[static_cast<std::size_t>(id) / 32] ^= 1u << (id % 32);
    }
  if (!open.empty()) {
    const std::uint64_t key = innermost(at);
    walked_[key] = {at, std::move(places), bits};
    last_walked_.push_front(key);
    if (last_walked_.size() > kReferences) last_walked_.pop_back();
  }
  if (places_[at].ends)
    for (const std::int64_t id : trie().eos()) bits[static_cast<std::size_t>(id) / 32] |= 1u << (id % 32);
  return masks_.emplace(at, std::move(bits)).first->second;
}

void Compiled::make_room() {
  const std::size_t bytes = trie().words() * sizeof(std::uint32_t);
  if (masks_.size() * bytes > kMostMaskBytes) masks_.clear();
  if (local_masks_.size() * bytes > kMostMaskBytes) local_masks_.clear();
  if (walked_.size() * 2 * bytes > kMostMaskBytes) walked_.clear();
}

void Compiled::allowed(Config at, std::span<std::uint32_t> words) {
  const std::lock_guard lock(mutex_);
  const Bits& bits = mask(at);
  GRAFT_CHECK(InvalidArgument, words.size() >= bits.size(), "the mask of ", trie().size(), " tokens needs ",
              bits.size(), " words, found ", words.size());
  std::ranges::fill(std::ranges::copy(bits, words.begin()).out, words.end(), 0u);
}

}  // namespace graft::text::grammar
