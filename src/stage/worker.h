#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "graft/llm.h"
#include "stage/channel.h"
#include "stage/turns.h"

namespace graft::stage {

struct WorkerOptions {
  std::string address;  // where it listens
  std::string secret;   // empty: of Unix sockets alone
  int threads = 0;      // as in SessionOptions
  std::size_t max_connections = 64;
  // What happens: "opened", "closed", "refused", with the other side's address and the reason. From any thread.
  std::function<void(std::string_view event, std::string_view peer, std::string_view reason)> on_event = {};
};

// Runs one stage of a model for drivers that connect: each connection has a cache of keys and values of its own, which
// goes with it. Runs of several connections take turns.
class GRAFT_API Worker {
 public:
  // Throws InvalidArgument for a package that is no stage, or the first one, and for an address of TCP without a
  // secret; what loading throws; what Listener throws.
  Worker(const std::string& package, const LoadOptions& load, WorkerOptions options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  std::string address() const;
  const StageInfo& info() const { return info_; }
  // Serves until stop(), which may be called from any thread and from handlers of signals.
  void run();
  void stop() noexcept;

 private:
  struct Connection {
    std::unique_ptr<Channel> channel;
    std::thread thread;
    std::atomic<bool> ended = false;
  };

  void serve(Channel& channel);
  void join_ended(bool all);
  void tell(std::string_view event, const Socket& socket, std::string_view reason) const;

  const StageInfo info_;
  const std::shared_ptr<const Program> program_;
  const WorkerOptions options_;
  const std::shared_ptr<Arena> arena_;
  Listener listener_;
  Descriptor stopped_;  // an eventfd
  Turns turns_;
  std::list<Connection> connections_;
};

}  // namespace graft::stage
