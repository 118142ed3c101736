#pragma once

#include <cstddef>
#include <span>

// Feeds an untrusted file through everything that it can reach. graft's errors are the expected outcome, but for
// InternalError; anything else (an assertion, memory of other sizes than requested, a crash) is a finding and
// propagates.
namespace graft::fuzz {

struct Fate {
  bool verified = false;  // read: of programs, the graphs are valid and every node is one that graft runs
  bool planned = false;   // used: of programs, planning of some method began
  bool ran = false;       // used to the end
};

// Load, plan, and a run where that is small.
Fate feed_ir(std::span<const std::byte> blob);
Fate feed_package(std::span<const std::byte> file);
// Encodes and decodes; renders.
Fate feed_tokenizer(std::span<const std::byte> input);
Fate feed_template(std::span<const std::byte> input);
// Reads the head, finds every tensor and reads its bytes, makes the tokenizer.
Fate feed_gguf(std::span<const std::byte> file);
Fate feed_safetensors(std::span<const std::byte> file);
Fate feed_ptd(std::span<const std::byte> file);
Fate feed_npz(std::span<const std::byte> file);
Fate feed_packed(std::span<const std::byte> file);
// Decodes a picture, and makes it what a model takes.
Fate feed_image(std::span<const std::byte> file);
// Decodes sound, and resamples what is short.
Fate feed_audio(std::span<const std::byte> file);
// Decodes a stored plan and plans with it.
Fate feed_plan(std::span<const std::byte> file);
// Restores states and a cache of keys and values.
Fate feed_states(std::span<const std::byte> file);

// Bytes of a client on a connection of their own. read: answered by an endpoint; used to the end: with success.
Fate feed_request(std::span<const std::byte> bytes);

// A message between a driver and a stage. read: whole; used: its numbers say something.
Fate feed_message(std::span<const std::byte> bytes);

// Called around every load, with the size of the file, to watch allocations.
struct Watch {
  void (*begin)(std::size_t file_bytes) = nullptr;
  void (*end)() = nullptr;
};
void set_watch(const Watch& watch);

// Watches the allocations of a load while it lives.
class Loading {
 public:
  explicit Loading(std::size_t file_bytes);
  ~Loading();
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;
};

// One allocation of a load is at most this many times the file's size; small files have kWatchSlack.
inline constexpr std::size_t kLoadGrowth = 10;
inline constexpr std::size_t kWatchSlack = 1024 * 1024;

}  // namespace graft::fuzz
