#include "text/grammar/automaton.h"

#include <algorithm>
#include <bitset>
#include <map>
#include <unordered_set>

#include "base/check.h"
#include "text/unicode.h"

namespace graft::text::grammar {
namespace {

using Id = Automaton::Id;

class Builder {
 public:
  explicit Builder(const Rules& rules) : rules_(rules) {
    for (std::size_t r = 0; r < rules.bodies.size(); ++r) {
      starts_.push_back(state());
      ends_.push_back(state());
    }
    for (std::size_t r = 0; r < rules.bodies.size(); ++r) {
      GRAFT_ASSERT(rules.bodies[r]);
      add(*rules.bodies[r], starts_[r], ends_[r]);
      out_.states[ends_[r]].final = true;
    }
  }

  Automaton build() {
    out_.start = starts_[rules_.root];
    remove_dead_ends();
    check_left_recursion();
    find_returns();
    find_classes();
    return std::move(out_);
  }

 private:
  Id state() {
    GRAFT_CHECK(Unsupported, out_.states.size() < kMostStates, "the grammar is too large: more than ", kMostStates,
                " states");
    out_.states.emplace_back();
    return static_cast<Id>(out_.states.size() - 1);
  }
  void byte_edge(Id from, std::uint8_t first, std::uint8_t last, Id to) {
    out_.states[from].bytes.push_back({first, last, to});
  }
  void empty_edge(Id from, Id to) { out_.states[from].empty.push_back(to); }

  void add(const Expr& expr, Id from, Id to) {
    switch (expr.kind) {
      case Expr::Kind::bytes: {
        Id at = from;
        for (const char c : expr.bytes) {
          const Id next = state();
          byte_edge(at, static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(c), next);
          at = next;
        }
        return empty_edge(at, to);
      }
      case Expr::Kind::chars:
        for (const CodeRange& range : expr.chars) add_range(range, from, to);
        return;
      case Expr::Kind::sequence: {
        Id at = from;
        for (const ExprPtr& part : expr.parts) {
          const Id next = state();
          add(*part, at, next);
          at = next;
        }
        return empty_edge(at, to);
      }
      case Expr::Kind::choice:
        for (const ExprPtr& part : expr.parts) {
          const Id begin = state();
          empty_edge(from, begin);
          add(*part, begin, to);
        }
        return;
      case Expr::Kind::repeat:
        return add_repeat(expr, from, to);
      case Expr::Kind::rule:
        out_.states[from].calls.push_back({starts_[expr.rule], to});
        return;
    }
  }

  void add_repeat(const Expr& expr, Id from, Id to) {
    const Expr& part = *expr.parts[0];
    Id at = from;
    const auto once = [&](Id begin) {
      const Id next = state();
      add(part, begin, next);
      return next;
    };
    for (std::int64_t i = 0; i < expr.least; ++i) at = once(at);
    if (expr.most < 0) {
      const Id loop = state();
      empty_edge(at, loop);
      add(part, loop, loop);
      return empty_edge(loop, to);
    }
    for (std::int64_t i = expr.least; i < expr.most; ++i) {
      empty_edge(at, to);
      const Id begin = state();  // so that the way out of one turn is no way into the next
      empty_edge(at, begin);
      at = once(begin);
    }
    empty_edge(at, to);
  }

  // The range as sequences of byte ranges, one for each length of UTF-8 and shared prefix.
  void add_range(CodeRange range, Id from, Id to) {
    constexpr char32_t kEnds[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
    for (const char32_t end : kEnds) {
      if (range.first > range.last) return;
      if (range.first > end) continue;
      std::string first, last;
      append_char(first, range.first);
      append_char(last, std::min(range.last, end));
      add_bytes(first, last, from, to);
      range.first = end + 1;
    }
  }

  void add_bytes(const std::string& first, const std::string& last, Id from, Id to) {
    const auto low = static_cast<std::uint8_t>(first[0]), high = static_cast<std::uint8_t>(last[0]);
    if (first.size() == 1) return byte_edge(from, low, high, to);
    const std::string first_rest = first.substr(1), last_rest = last.substr(1);
    const std::string least(first_rest.size(), '\x80'), most(first_rest.size(), '\xBF');
    const auto rest = [&](std::uint8_t from_byte, std::uint8_t to_byte, const std::string& a, const std::string& b) {
      const Id next = state();
      byte_edge(from, from_byte, to_byte, next);
      add_bytes(a, b, next, to);
    };
    if (low == high) return rest(low, low, first_rest, last_rest);
    int begin = low, end = high;
    if (first_rest != least) rest(static_cast<std::uint8_t>(begin++), low, first_rest, most);
    if (last_rest != most) rest(static_cast<std::uint8_t>(end--), high, least, last_rest);
    if (begin <= end) rest(static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(end), least, most);
  }

  // States from which the end of their rule cannot be reached lose their edges.
  void remove_dead_ends() {
    std::vector<Automaton::State>& states = out_.states;
    std::vector<bool> good(states.size());
    std::vector<std::vector<Id>> before(states.size()), callers(states.size());  // callers: by a rule's start
    std::vector<Id> work;
    std::map<Id, Id> start_of_end;
    for (std::size_t r = 0; r < starts_.size(); ++r) start_of_end[ends_[r]] = starts_[r];
    for (Id s = 0; s < states.size(); ++s) {
      for (const auto& edge : states[s].bytes) before[edge.to].push_back(s);
      for (const Id to : states[s].empty) before[to].push_back(s);
      for (const auto& call : states[s].calls) {
        before[call.back].push_back(s);
        callers[call.rule_start].push_back(s);
      }
      if (states[s].final) {
        good[s] = true;
        work.push_back(s);
      }
    }
    const auto reaches = [&](Id s) {
      const auto is_good = [&](Id to) { return good[to]; };
      return std::ranges::any_of(states[s].bytes, is_good, &Automaton::ByteEdge::to) ||
             std::ranges::any_of(states[s].empty, is_good) ||
             std::ranges::any_of(states[s].calls, [&](const auto& c) { return good[c.rule_start] && good[c.back]; });
    };
    while (!work.empty()) {
      const Id s = work.back();
      work.pop_back();
      for (const auto* list : {&before[s], &callers[s]})
        for (const Id from : *list)
          if (!good[from] && reaches(from)) {
            good[from] = true;
            work.push_back(from);
          }
    }
    GRAFT_CHECK(InvalidArgument, good[out_.start], "no text has the form that is asked for");
    for (auto& one : states) {
      std::erase_if(one.bytes, [&](const auto& edge) { return !good[edge.to]; });
      std::erase_if(one.empty, [&](Id to) { return !good[to]; });
      std::erase_if(one.calls, [&](const auto& call) { return !good[call.rule_start] || !good[call.back]; });
    }
  }

  // A rule that comes to itself before it has read anything would be called forever.
  void check_left_recursion() {
    const std::size_t count = starts_.size();
    std::map<Id, std::size_t> rule_of;
    for (std::size_t r = 0; r < count; ++r) rule_of[starts_[r]] = r;
    std::vector<bool> nullable(count);
    std::vector<std::vector<std::size_t>> first(count);  // rules called before anything is read
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t r = 0; r < count; ++r) {
        std::vector<Id> work = {starts_[r]};
        std::unordered_set<Id> seen = {starts_[r]};
        first[r].clear();
        const auto visit = [&](Id to) {
          if (seen.insert(to).second) work.push_back(to);
        };
        bool empty = false;
        while (!work.empty()) {
          const Automaton::State& s = out_.states[work.back()];
          work.pop_back();
          empty |= s.final;
          for (const Id to : s.empty) visit(to);
          for (const auto& call : s.calls) {
            const std::size_t called = rule_of[call.rule_start];
            first[r].push_back(called);
            if (nullable[called]) visit(call.back);
          }
        }
        if (empty && !nullable[r]) nullable[r] = changed = true;
      }
    }
    std::vector<int> color(count);  // 1: on the path, 2: done
    const auto search = [&](const auto& self, std::size_t r) -> void {
      color[r] = 1;
      for (const std::size_t called : first[r]) {
        GRAFT_CHECK(Unsupported, color[called] != 1, "the rule '", rules_.names[called],
                    "' calls itself before it has read a character (left recursion)");
        if (color[called] == 0) self(self, called);
      }
      color[r] = 2;
    };
    for (std::size_t r = 0; r < count; ++r)
      if (color[r] == 0) search(search, r);
  }

  void find_returns() {
    std::vector<Automaton::State>& states = out_.states;
    std::vector<std::vector<Id>> before(states.size());
    std::vector<Id> work;
    for (Id s = 0; s < states.size(); ++s) {
      for (const Id to : states[s].empty) before[to].push_back(s);
      if (states[s].final) work.push_back(s);
    }
    while (!work.empty()) {
      Automaton::State& s = states[work.back()];
      const std::vector<Id>& earlier = before[work.back()];
      work.pop_back();
      s.returns = true;
      for (const Id from : earlier) {
        const Automaton::State& f = states[from];
        if (!f.returns && f.bytes.empty() && f.calls.empty() &&
            std::ranges::all_of(f.empty, [&](Id to) { return states[to].returns; }))
          work.push_back(from);
      }
    }
  }

  void find_classes() {
    std::bitset<257> begins;
    for (const auto& s : out_.states)
      for (const auto& edge : s.bytes) {
        begins.set(edge.first);
        begins.set(edge.last + 1u);
      }
    std::size_t current = 0;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      if (byte > 0 && begins[byte]) ++current;
      out_.class_of[byte] = static_cast<std::uint8_t>(current);
    }
    out_.classes = current + 1;
  }

  const Rules& rules_;
  Automaton out_;
  std::vector<Id> starts_, ends_;
};

}  // namespace

Automaton compile(const Rules& rules) { return Builder(rules).build(); }

}  // namespace graft::text::grammar
