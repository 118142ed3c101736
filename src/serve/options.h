#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graft/llm.h"
#include "serve/http/server.h"
#include "serve/json_fields.h"

namespace graft::serve {

struct ModelFile {
  std::string name;  // as requests call it
  std::string path = {};
  std::string tokenizer = {};          // a path; empty: the package's own
  std::string prefix_cache_file = {};  // PrefixCacheOptions::file
  // LoRA adapters that are loaded with it: names, as requests call them, and paths.
  std::vector<std::pair<std::string, std::string>> adapters = {};
};

// Of letters, digits and .-_: alone, at most 128.
bool is_model_name(std::string_view name);

// What a request may ask for. Beyond: 400, and 429 where it is a matter of time.
struct RequestLimits {
  std::size_t prompt_bytes = 4 << 20;  // of all texts of a request
  std::int64_t prompts = 128;          // of a request, times `n`
  std::int64_t queue = 256;            // prompts that wait for a row of the cache, by model
  double seconds = 600;                // from its arrival to the end of its answer
};

// Calls of one method that become one run.
struct BatchOptions {
  std::int64_t max_rows = 32;  // 1: no batches
  double delay_seconds = 0;    // that a call waits for others, besides the run before it
};

struct ServeOptions {
  HttpOptions http;
  std::vector<ModelFile> models;  // the first that is loaded answers requests that name none
  // Of their names, those that are loaded before requests are served; none: all.
  std::optional<std::set<std::string>> load_first;
  std::string default_model;   // gets requests that name a model that there is not; empty: these are refused
  bool require_model = false;  // of requests, whether they must name one
  Json template_variables = Json::object();           // of chat templates, for requests that give no such
  std::optional<std::uint64_t> seed;                  // of requests that name none; none: random
  std::int64_t prompt_lookup = 0;                     // GenerationOptions::prompt_lookup_num_tokens of all requests
  bool model_control = false;                         // whether requests may load and unload models
  std::uint64_t max_model_bytes = ~std::uint64_t{0};  // of all that are loaded: weights, constants, states and caches
  LoadOptions load;
  DecoderOptions decoder;  // rows 0: as many as the memory allows, up to 32
  std::optional<std::uint64_t>
      prefix_cache_bytes;  // of each model; none: an eighth of the memory, up to 4 GiB; 4 GiB in a file
  // A folder of adapters that requests may load; empty: they load none. Language models then have room for adapters of
  // LoadOptions::max_adapter_rank, as those have that adapters are given for.
  std::string adapter_folder;
  BatchOptions batch;  // of models that are no language models
  RequestLimits limits;
  std::vector<std::string> origins;  // of pages that may use the server: CrossOrigin; none: those of the server alone
  std::string api_keys;              // a file with one key per line; empty: no keys are needed
  double drain_seconds = 30;         // that running requests get after SIGTERM
  bool log_requests = true;
};

// Serves until SIGTERM or SIGINT. Throws what loading models throws, and what HttpServer throws.
void serve(const ServeOptions& options);

}  // namespace graft::serve
