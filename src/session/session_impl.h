#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "graft/graft.h"
#include "load/program_impl.h"
#include "session/block_pool.h"
#include "session/busy_guard.h"
#include "session/kv_cache.h"
#include "session/plan_runner.h"
#include "session/run_queue.h"
#include "session/segment_runner.h"
#include "session/state_store.h"

namespace graft {

// The parts of a session. session.cpp forwards calls to them; here is only what involves several of them.
struct Session::Impl {
  Impl(std::shared_ptr<const Program> loaded_program, const SessionOptions& session_options);

  // For the time of a call. Throws Busy when another thread is in one or another session uses the states that they
  // share, InvalidArgument when the session is closed.
  struct Use {
    explicit Use(Impl& impl);
    BusyGuard guard;
    std::optional<BusyGuard> states;
  };

  std::uint32_t find(std::string_view method) const { return Internal::of(*program).find(method); }
  // Prepares a call of a method that is one plan. Throws InvalidArgument for a method in segments; `what` ends its
  // message.
  PreparedCall& prepare_plan(std::string_view method, std::span<const Value> inputs, std::string_view what);

  // The plan of a prepared call, as packages hold it.
  std::vector<std::byte> encoded(const PreparedCall& call) const;

  std::vector<Value> output_values(std::string_view method, std::span<const Value> inputs);
  void run_into(std::string_view method, std::span<const Value> inputs, std::span<Value> outputs,
                const RunOptions& run_options);
  std::vector<Value> run_into(std::string_view method, std::span<const Value> inputs, const PlaceOutputs& place,
                              const RunOptions& run_options);
  std::vector<Value> run(std::string_view method, std::span<const Value> inputs, const RunOptions& run_options);

  std::shared_ptr<const Program> program;
  SessionOptions options;  // except the sizes of the cache: see `states.kv()`
  int threads = 1;
  Counters counters;
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
  bool closed = false;

  std::shared_ptr<BlockPool> blocks = std::make_shared<BlockPool>();
  StateStore states;
  KvCache kv;
  PlanRunner plans;
  SegmentRunner segments;
  RunQueue queue;  // last: its thread uses the others
};

}  // namespace graft
