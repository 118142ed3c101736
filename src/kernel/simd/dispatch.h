#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernel/simd/targets.def"

// Which instruction set the vector code of the kernels runs with.
//
// Vector sources are compiled once per target, each time inside `namespace graft::simd::GRAFT_ISA` (a macro there:
// baseline, avx2, avx512 ...), and export const tables of function pointers. They contain plain C-like code only: if
// they instantiated an inline function of the standard library, the linker might keep its AVX-512 copy for the whole
// program.
namespace graft::simd {

// Every target of targets.def, even if it was not built or this CPU cannot run it.
enum class Isa : std::uint8_t {
#define GRAFT_NAME(target, ...) target,
  GRAFT_TARGETS(GRAFT_NAME)
#undef GRAFT_NAME
};

// "baseline", "avx2", "avx512" ...
std::string_view name(Isa isa);

// The targets that were built and that this CPU can run, worst first; baseline is always among them.
std::span<const Isa> available_isas();

// The instruction set in use: the best one that pays on this CPU, or the one that the environment variable GRAFT_ISA
// names. Decided at the first call. Throws InvalidArgument when GRAFT_ISA names none or one that is not available here.
Isa active_isa();

// Whether tables of `target` may be used for `isa`: it is available, and is `isa` itself or pays here.
bool serves(Isa target, Isa isa);

struct Target {
  std::string_view name;
  bool built;
  std::string_view groups;  // separated by spaces
};
inline constexpr bool kTargetsOf_any = true;
#ifdef GRAFT_HAVE_X86_ISA
inline constexpr bool kTargetsOf_x86_64 = true;
#else
inline constexpr bool kTargetsOf_x86_64 = false;
#endif
inline constexpr Target kTargets[] = {
#define GRAFT_ROW(target, architecture, groups, ...) {#target, kTargetsOf_##architecture, groups},
    GRAFT_TARGETS(GRAFT_ROW)
#undef GRAFT_ROW
};
inline constexpr std::size_t kTargetCount = std::size(kTargets);

// Whether sources of any of these groups are compiled for a target.
consteval bool compiles(Isa isa, std::string_view groups) {
  const Target& target = kTargets[static_cast<std::size_t>(isa)];
  const auto next_word = [](std::string_view& words) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(word.size() == words.size() ? word.size() : word.size() + 1);
    return word;
  };
  while (target.built && !groups.empty()) {
    const std::string_view group = next_word(groups);
    for (std::string_view words = target.groups; !words.empty();)
      if (next_word(words) == group) return true;
  }
  return false;
}

// The tables of a family, by target; null for targets that do not compile it.
template <typename Table>
struct Tables;

// The target whose table of the family is used for `isa`: the best one up to it.
template <typename Table>
std::optional<Isa> target_of(Isa isa) {
  for (std::size_t t = static_cast<std::size_t>(isa) + 1; t-- > 0;)
    if (Tables<Table>::kOf[t] != nullptr && serves(static_cast<Isa>(t), isa)) return static_cast<Isa>(t);
  return std::nullopt;
}
// Null where no target serves.
template <typename Table>
const Table* find_table(Isa isa) {
  const std::optional<Isa> target = target_of<Table>(isa);
  return target ? Tables<Table>::kOf[static_cast<std::size_t>(*target)] : nullptr;
}
template <typename Table>
const Table* active_table() {
  static const Table* const table = find_table<Table>(active_isa());
  return table;
}

// The available targets that have a table of one of these families.
template <typename... Tables_>
std::vector<Isa> available_isas_of() {
  std::vector<Isa> out;
  for (const Isa isa : available_isas())
    if (((Tables<Tables_>::kOf[static_cast<std::size_t>(isa)] != nullptr) || ...)) out.push_back(isa);
  return out;
}

// Declares a family, in namespace graft::simd: `kTable` is its table's name in the vector sources of these groups;
// function(isa) and function(), for active_isa(), return the table. GRAFT_TABLE is for families that the baseline has;
// a GRAFT_OPTIONAL_TABLE returns null where no target has one.
#define GRAFT_TABLE(groups, Table, kTable, function)                        \
  GRAFT_DECLARE_TABLES(groups, Table, kTable)                               \
  inline const Table& function(Isa isa) { return *find_table<Table>(isa); } \
  inline const Table& function() { return *active_table<Table>(); }
#define GRAFT_OPTIONAL_TABLE(groups, Table, kTable, function)              \
  GRAFT_DECLARE_TABLES(groups, Table, kTable)                              \
  inline const Table* function(Isa isa) { return find_table<Table>(isa); } \
  inline const Table* function() { return active_table<Table>(); }

#define GRAFT_DECLARE_TABLES(groups, Table, kTable)                                                                \
  GRAFT_TARGETS(GRAFT_DECLARE_TABLE, Table, kTable)                                                                \
  template <>                                                                                                      \
  struct Tables<Table> {                                                                                           \
    static constexpr std::array<const Table*, kTargetCount> kOf = {GRAFT_TARGETS(GRAFT_TABLE_OF, groups, kTable)}; \
  };
#define GRAFT_DECLARE_TABLE(target, architecture, target_groups, flags, runs, pays, Table, kTable) \
  namespace target {                                                                               \
  extern const Table kTable;                                                                       \
  }
#define GRAFT_TABLE_OF(target, architecture, target_groups, flags, runs, pays, groups, kTable) \
  compiles(Isa::target, groups) ? &target::kTable : nullptr,

}  // namespace graft::simd
