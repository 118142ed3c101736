#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graft/grammar.h"
#include "text/grammar/automaton.h"
#include "text/grammar/trie.h"

namespace graft::text::grammar {

// An automaton on a vocabulary, with what has been learnt of it: configurations (all the places in the rules where a
// text may be, each with the calls it came through), the ways between them by byte, and the tokens that they allow.
// Everything is made when it is first needed. From any thread.
class Compiled {
 public:
  using Config = std::uint32_t;
  static constexpr Config kDead = 0;

  Compiled(Automaton automaton, std::shared_ptr<const GrammarVocabulary> vocabulary);

  Config begin();
  Config after(Config config, std::string_view text);
  bool may_end(Config config);
  bool only_ends(Config config);  // nothing may follow
  // As TokenMask::allowed, EOS tokens included.
  void allowed(Config config, std::span<std::uint32_t> words);
  const Trie& trie() const { return vocabulary_->trie(); }

 private:
  using StackId = std::uint32_t;
  // The end of the whole text; a call from an unknown place, of masks that hold wherever a rule is called from.
  static constexpr StackId kEnd = 0, kAnywhere = 1;
  struct Stack {  // a state, and where its rule was called
    Automaton::Id state = 0;
    StackId below = kEnd;
    std::uint32_t depth = 0;
  };
  struct Place {  // a configuration's stacks are those whose states read a byte
    std::vector<StackId> stacks;
    bool ends = false;     // the text may end here
    bool escapes = false;  // the rule that was called from anywhere may end here
  };
  using Bits = std::vector<std::uint32_t>;
  // Of a configuration below kAnywhere: the tokens it allows, by their places in Trie::tokens(), and where the walk
  // over the trie must go on with what is known of the caller.
  struct LocalMask {
    Bits bits;
    std::vector<std::uint32_t> open;  // nodes of the trie
  };
  struct Walked {  // a configuration and its tokens: by their places in Trie::tokens(), and by id without EOS tokens
    Config config = kDead;
    Bits places, bits;
  };
  struct Reference {  // those of up to so many bytes are the same
    std::uint32_t bytes = 0;
    const Walked* mask = nullptr;
  };

  StackId stack(Automaton::Id state, StackId below);
  Config config(Place place);
  Config step(Config from, std::uint8_t byte) {
    const Config known = next_[from * automaton_.classes + automaton_.class_of[byte]];
    return known == kUnknown ? make_step(from, byte) : known;
  }
  Config make_step(Config from, std::uint8_t byte);
  void close(Automaton::Id state, StackId below, Place& place);
  const Bits& mask(Config config);
  const LocalMask& local_mask(Config config);
  std::uint64_t innermost(Config at) const;  // a hash of the states that its shallowest stack and others on it have
  Reference reference(Config at);
  std::uint32_t bytes_alike(Config a, Config b);
  void make_room();
  void walk(Config from, std::uint32_t begin, std::uint32_t end, std::size_t base_depth, const Reference& like,
            Bits& bits);

  static constexpr Config kUnknown = 0xFFFFFFFF;
  const Automaton automaton_;
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::mutex mutex_;
  std::vector<Stack> stacks_;
  std::unordered_map<std::uint64_t, StackId> stack_ids_;
  std::vector<Place> places_;
  std::unordered_multimap<std::uint64_t, Config> config_ids_;  // by hash
  std::vector<Config> next_;                                   // [config, class of the byte]; kUnknown: not made yet
  std::unordered_map<Config, Bits> masks_;
  std::unordered_map<Config, LocalMask> local_masks_;
  std::unordered_map<std::uint64_t, Walked> walked_;  // by innermost()
  std::deque<std::uint64_t> last_walked_;             // of those, the last ones first
  std::vector<std::uint8_t> byte_of_class_;           // one of each
  std::vector<std::uint64_t> seen_;                   // by stack: the last step() that came to it
  std::uint64_t turn_ = 1;                            // steps so far
  std::vector<Config> path_;                          // of walks, by depth
  Config begin_ = kDead;
};

}  // namespace graft::text::grammar
