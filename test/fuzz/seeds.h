#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "feed.h"
#include "graft/graft.h"
#include "mutate.h"
#include "weight/packed_file.h"

// What is fuzzed: for each kind of file valid ones to begin with, a mutator, and where mutants go.
namespace graft::fuzz {

struct Target {
  const char* name;
  Fate (*feed)(std::span<const std::byte>);
  Blob (*mutate)(std::span<const std::byte>, std::uint64_t seed);
  std::vector<Blob> (*seeds)();  // valid files, all of which end as `ran`
  double verified;               // percent of the mutants that are read all the same, at least
};
std::span<const Target> targets();
// Throws InvalidArgument, listing the names.
const Target& target_named(std::string_view name);

// A file that is written as a literal, without the zero that ends it.
template <std::size_t n>
Blob blob(const char (&bytes)[n]) {
  const auto* first = reinterpret_cast<const std::byte*>(bytes);
  return Blob(first, first + n - 1);
}
// Files of pictures.
std::vector<Blob> pictures();
// Files of sound.
std::vector<Blob> sounds();

// Messages of drivers and stages.
std::vector<Blob> messages();

// Requests that the server answers, each on a connection of its own.
std::vector<Blob> requests();

// Of the files of packed weights among the seeds.
inline constexpr std::string_view kPackedOrigin = "fuzzed";
std::vector<std::pair<Digest, std::size_t>> packed_seed_entries();
// Decodes a stored plan and plans the seeds' program with it. decoded: it is one of this build; used: its layout
// was taken.
void plan_with(std::span<const std::byte> bytes, bool& decoded, bool& used);
// Sessions whose saved states are seeds, with a cache of keys and values and without; use_states() runs one on what was
// restored.
std::vector<Session*> sessions_with_states();
void use_states(Session& session);

}  // namespace graft::fuzz
