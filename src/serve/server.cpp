#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <random>
#include <thread>

#include "base/check.h"
#include "serve/app.h"
#include "serve/log.h"
#include "serve/model_control.h"
#include "serve/options.h"
#include "serve/router.h"

namespace graft::serve {
namespace {

constexpr std::size_t kWorkers = 4;  // parse requests and tokenize prompts
constexpr double kDrainCheckSeconds = 0.02, kFreeSeconds = 0.5;
constexpr std::size_t kSpareDescriptors = 64;

// Descriptors for as many connections as asked for, or for fewer where the system allows no more.
std::size_t connections_allowed(std::size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t need = wanted + kSpareDescriptors;
  if (limit.rlim_cur < need) {
    rlimit more = limit;
    more.rlim_cur = std::min<rlim_t>(need, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &more) == 0) limit = more;
  }
  return limit.rlim_cur > 2 * kSpareDescriptors ? std::min<std::size_t>(wanted, limit.rlim_cur - kSpareDescriptors)
                                                : kSpareDescriptors;
}

// Not to be guessed: logs and clients refer to requests by it.
std::string new_id() {
  thread_local std::random_device random;
  std::string id;
  for (int i = 0; i < 6; ++i) {
    const unsigned bits = random();
    for (int shift = 0; shift < 16; shift += 4) id += "0123456789abcdef"[(bits >> shift) & 15];
  }
  return id;
}

HttpOptions with_connections(HttpOptions http) {
  http.max_connections = connections_allowed(http.max_connections);
  return http;
}

class Server {
 public:
  explicit Server(const ServeOptions& options)
      : app_(options),
        http_(
            with_connections(options.http),
            [this](Request request, std::shared_ptr<Exchange> exchange) {
              try {
                take(std::move(request), std::move(exchange));
              } catch (...) {  // the exchange gives an answer when it ends
              }
            },
            [this](int status, const std::string& message) {
              app_.metrics.answered("refused", status, 0);
              return error_body(status, message);
            }) {
    if (!options.api_keys.empty()) app_.keys = ApiKeys::load(options.api_keys);
  }

  void run() {
    log_event("info", "listening", {{"host", app_.options.http.host}, {"port", http_.port()}});
    http_.on_signal([this] { signalled(); });
    if (app_.options.model_control) free_unused();
    std::exception_ptr failed;
    std::thread loader([&] {
      try {
        load();
      } catch (...) {
        failed = std::current_exception();
        http_.stop();
      }
    });
    http_.run();
    loader.join();
    workers_.join();
    app_.loads.end();
    app_.models.clear();  // engines end, and with them all calls
    if (failed) std::rethrow_exception(failed);
    log_event("info", "stopped");
  }

 private:
  void load() {
    for (const ModelFile& file : app_.options.models) {
      if (app_.options.load_first && !app_.options.load_first->contains(file.name)) continue;
      serve::load(app_, file.name);
      if (app_.phase == Phase::draining) return;
    }
    Phase expected = Phase::loading;
    app_.phase.compare_exchange_strong(expected, Phase::ready);
    log_event("info", "ready");
  }

  void take(Request request, std::shared_ptr<Exchange> exchange) {
    auto call = std::make_shared<Call>(new_id(), std::move(request), std::move(exchange), app_.metrics,
                                       app_.options.log_requests, [this] { --active_; });
    ++active_;
    boost::asio::post(workers_, [this, call = std::move(call)] {
      try {
        route(app_, call);
      } catch (...) {  // the call gives an answer when it ends
      }
    });
  }

  // Models that were unloaded while requests used them.
  void free_unused() {
    http_.post_after(kFreeSeconds, [this] {
      boost::asio::post(workers_, [this] { app_.models.free_unused(); });
      free_unused();
    });
  }

  // The first signal: no new requests, those that run may end. The second one: now.
  void signalled() {
    if (app_.phase.exchange(Phase::draining) == Phase::draining) return http_.stop();
    log_event("info", "draining", {{"requests", active_.load()}});
    http_.drain();
    drain_until_ = Clock::now() + duration_of(app_.options.drain_seconds);
    check_drained();
  }

  void check_drained() {
    // The last bytes of an answer may still be on their way after its call has ended.
    if ((active_ == 0 && http_.connections() == 0) || Clock::now() >= drain_until_) return http_.stop();
    http_.post_after(kDrainCheckSeconds, [this] { check_drained(); });
  }

  App app_;
  std::atomic<std::size_t> active_{0};
  Clock::time_point drain_until_;
  boost::asio::thread_pool workers_{kWorkers};
  HttpServer http_;  // whose end calls what waits in it, which may post to the workers
};

}  // namespace

void serve(const ServeOptions& options) { Server(options).run(); }

}  // namespace graft::serve
