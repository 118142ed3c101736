#pragma once

#include <atomic>

#include "serve/call.h"
#include "serve/cors.h"
#include "serve/keys.h"
#include "serve/metrics.h"
#include "serve/models.h"
#include "serve/options.h"
#include "serve/work_queue.h"

namespace graft::serve {

enum class Phase { loading, ready, draining };

// The parts of the path that stand for {...} in the route, in order.
using PathParts = std::vector<std::string>;

inline constexpr std::size_t kMaxLoads = 16;  // that wait

// What all endpoints share.
struct App {
  explicit App(const ServeOptions& serve_options)
      : options(serve_options), models(serve_options.models), cross_origin(serve_options.origins) {}

  const ServeOptions options;
  Models models;
  Metrics metrics;
  ApiKeys keys;
  const CrossOrigin cross_origin;
  std::atomic<Phase> phase{Phase::loading};
  WorkQueue loads{kMaxLoads};  // requests that load models, one after the other

  // Throws ApiError (503) unless it is ready.
  void check_ready() const;
  // Reads "model", an optional string, and finds it. Throws ApiError.
  std::shared_ptr<ServedModel> model_of(Fields& fields) const;
  // The same, which must be a language model.
  std::shared_ptr<ServedModel> language_model_of(Fields& fields) const;
};

// When the answer to this call must have ended.
Clock::time_point deadline_of(const Call& call, const RequestLimits& limits);

}  // namespace graft::serve
