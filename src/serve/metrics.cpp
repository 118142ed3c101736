#include "serve/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/check.h"

namespace graft::serve {
namespace {

std::string number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return std::to_string(static_cast<std::int64_t>(value));
  return str(value);
}

}  // namespace

void metric_head(std::string& out, const char* name, const char* type, const char* help) {
  out += str("# HELP ", name, ' ', help, "\n# TYPE ", name, ' ', type, '\n');
}

void metric_line(std::string& out, const std::string& name, const std::string& labels, double value) {
  out += name + (labels.empty() ? "" : "{" + labels + "}") + " " + number(value) + "\n";
}

std::string metric_label(const char* name, const std::string& value) {
  std::string out = std::string(name) + "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out + '"';
}

void Histogram::add(double seconds) {
  const auto bucket = std::ranges::lower_bound(kBounds, seconds) - kBounds.begin();
  ++counts_[static_cast<std::size_t>(bucket)];
  sum_ += seconds;
}

void Histogram::write(std::string& out, const std::string& name, const std::string& labels) const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < kBounds.size() ? str(kBounds[i]) : "+Inf";
    metric_line(out, name + "_bucket", labels + "," + metric_label("le", bound), static_cast<double>(total));
  }
  metric_line(out, name + "_sum", labels, sum_);
  metric_line(out, name + "_count", labels, static_cast<double>(total));
}

void Metrics::answered(const std::string& route, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++answers_[{route, status}];
  latency_[route].add(seconds);
}

void Metrics::text_ended(const std::string& model, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ++ended_[{model, reason}];
}

void Metrics::first_token(const std::string& model, double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_[model].add(seconds);
}

void Metrics::between_tokens(const std::string& model, double seconds) {
  const std::lock_guard lock(mutex_);
  between_tokens_[model].add(seconds);
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  metric_head(out, "graft_http_requests_total", "counter", "Answers by route and status.");
  for (const auto& [key, count] : answers_)
    metric_line(out, "graft_http_requests_total",
                metric_label("route", key.first) + "," + metric_label("status", std::to_string(key.second)),
                static_cast<double>(count));
  const auto histograms = [&](const char* name, const char* help, const char* label, const auto& by) {
    metric_head(out, name, "histogram", help);
    for (const auto& [key, histogram] : by) histogram.write(out, name, metric_label(label, key));
  };
  histograms("graft_http_request_seconds", "From the header of a request to the end of its answer.", "route", latency_);
  metric_head(out, "vllm:request_success_total", "counter", "Texts that ended, by reason.");
  for (const auto& [key, count] : ended_)
    metric_line(out, "vllm:request_success_total",
                metric_label("model_name", key.first) + "," + metric_label("finished_reason", key.second),
                static_cast<double>(count));
  histograms("vllm:time_to_first_token_seconds", "From a request to its first token.", "model_name", first_token_);
  histograms("vllm:inter_token_latency_seconds", "Between two tokens of a text.", "model_name", between_tokens_);
  return out;
}

void process_metrics(std::string& out) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  metric_head(out, "process_cpu_seconds_total", "counter", "CPU time of the process.");
  metric_line(out, "process_cpu_seconds_total", "", seconds(usage.ru_utime) + seconds(usage.ru_stime));
  std::ifstream statm("/proc/self/statm");
  double pages = 0, resident = 0;
  if (statm >> pages >> resident) {
    metric_head(out, "process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM.");
    metric_line(out, "process_resident_memory_bytes", "", resident * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  }
  std::error_code error;
  const auto count = [&](const char* folder) {
    double entries = 0;
    for (auto entry = std::filesystem::directory_iterator(folder, error);
         !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
      ++entries;
    return entries;
  };
  metric_head(out, "process_open_fds", "gauge", "Open descriptors.");
  metric_line(out, "process_open_fds", "", count("/proc/self/fd"));
  metric_head(out, "process_threads", "gauge", "Threads.");
  metric_line(out, "process_threads", "", count("/proc/self/task"));
}

}  // namespace graft::serve
