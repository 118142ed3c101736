#include "serve/health.h"

#include <functional>

namespace graft::serve {

extern const std::string_view kPage;  // src/serve/page.html

void page(App&, const std::shared_ptr<Call>& call, const PathParts&) {
  Response response;
  response.content_type = "text/html; charset=utf-8";
  // It takes nothing from elsewhere, and no page of others shows it.
  response.headers.emplace_back(
      "Content-Security-Policy",
      "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
      "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'");
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  response.body = kPage;
  call->respond(std::move(response));
}

void health(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  const Phase phase = app.phase;
  const char* status = phase == Phase::ready ? "ready" : phase == Phase::loading ? "loading" : "draining";
  call->respond_json({{"status", status}}, phase == Phase::ready ? 200 : 503);
}

void metrics(App& app, const std::shared_ptr<Call>& call, const PathParts&) {
  std::string out = app.metrics.text();
  struct Metric {
    const char* name;
    const char* type;
    const char* help;
    std::function<double(const EngineStats&)> value;
  };
  const auto of_tokens = [](std::int64_t tokens) { return static_cast<double>(tokens); };
  const Metric all[] = {
      {"vllm:num_requests_running", "gauge", "Texts that have a row of the cache.",
       [](const EngineStats& stats) { return static_cast<double>(stats.running); }},
      {"vllm:num_requests_waiting", "gauge", "Texts that wait for one.",
       [](const EngineStats& stats) { return static_cast<double>(stats.waiting); }},
      {"vllm:kv_cache_usage_perc", "gauge", "How much of the cache holds tokens; 1 is all.",
       [](const EngineStats& stats) { return stats.cache_use; }},
      {"vllm:prompt_tokens_total", "counter", "Tokens of prompts.",
       [&](const EngineStats& stats) { return of_tokens(stats.generation.prompt_tokens); }},
      {"vllm:generation_tokens_total", "counter", "Tokens that were generated.",
       [&](const EngineStats& stats) { return of_tokens(stats.generation.new_tokens); }},
      {"vllm:prefix_cache_queries_total", "counter", "Tokens of prompts that were looked for in the cache.",
       [&](const EngineStats& stats) { return of_tokens(stats.generation.prompt_tokens); }},
      {"vllm:prefix_cache_hits_total", "counter", "Of these, found.",
       [&](const EngineStats& stats) { return of_tokens(stats.generation.reused_tokens); }},
      {"graft_prefix_cache_bytes", "gauge", "Keys and values that are kept beside the rows.",
       [](const EngineStats& stats) {
         return static_cast<double>(stats.prefixes.blocks * stats.prefixes.block_bytes);
       }},
      {"graft_prefix_cache_evictions_total", "counter", "Blocks of 64 tokens that made room for others.",
       [](const EngineStats& stats) { return static_cast<double>(stats.prefixes.evicted); }},
      {"graft_prefix_cache_damaged_total", "counter", "Blocks of the file that were not used.",
       [](const EngineStats& stats) { return static_cast<double>(stats.prefixes.damaged); }},
      {"graft_prefill_seconds_total", "counter", "Time in runs of prompts.",
       [](const EngineStats& stats) { return stats.generation.prefill_seconds; }},
      {"graft_decode_seconds_total", "counter", "Time in steps of decoding.",
       [](const EngineStats& stats) { return stats.generation.decode_seconds; }},
      {"graft_busy_seconds_total", "counter", "Time that there were texts: in these runs and steps, and beside them.",
       [](const EngineStats& stats) { return stats.busy_seconds; }},
  };
  std::vector<std::pair<std::string, EngineStats>> engines;  // by label
  for (const auto& model : app.models.loaded())
    if (model->engine) engines.emplace_back(metric_label("model_name", model->name), model->engine->stats());
  for (const Metric& metric : all) {
    metric_head(out, metric.name, metric.type, metric.help);
    for (const auto& [label, stats] : engines) metric_line(out, metric.name, label, metric.value(stats));
  }
  const std::tuple<const char*, const char*, std::uint64_t Runner::Stats::*> of_runners[] = {
      {"graft_calls_total", "Calls of models for any tensors and for vectors of texts.", &Runner::Stats::calls},
      {"graft_call_rows_total", "Rows of these.", &Runner::Stats::rows},
      {"graft_runs_total", "Runs that these took: calls whose rows are independent may be one.", &Runner::Stats::runs}};
  for (const auto& [name, help, count] : of_runners) {
    metric_head(out, name, "counter", help);
    for (const auto& model : app.models.loaded())
      if (model->runner) {
        const std::uint64_t vectors = model->embedder ? model->embedder->stats().*count : 0;
        metric_line(out, name, metric_label("model_name", model->name),
                    static_cast<double>(model->runner->stats().*count + vectors));
      }
  }
  process_metrics(out);
  Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = std::move(out);
  call->respond(std::move(response));
}

}  // namespace graft::serve
