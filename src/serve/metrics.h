#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace graft::serve {

// A histogram of Prometheus, in seconds.
class Histogram {
 public:
  void add(double seconds);
  // Lines of the text format, with these labels ('model_name="m"').
  void write(std::string& out, const std::string& name, const std::string& labels) const;

  static constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25, 0.5,   0.75,
                                         1.0,   2.5,    5.0,   7.5,  10.0,  20.0, 40.0, 80.0, 160.0, 640.0};

 private:
  std::array<std::uint64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

// What is counted of requests. From any thread.
class Metrics {
 public:
  // An answer: its route ("other" for unknown paths), status and how long it took.
  void answered(const std::string& route, int status, double seconds);
  // A text of a model has ended.
  void text_ended(const std::string& model, const std::string& reason);
  void first_token(const std::string& model, double seconds);     // since the request came
  void between_tokens(const std::string& model, double seconds);  // since the token before

  // In Prometheus' text format.
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> answers_;
  std::map<std::string, Histogram> latency_;  // by route
  std::map<std::pair<std::string, std::string>, std::uint64_t> ended_;
  std::map<std::string, Histogram> first_token_, between_tokens_;
};

// Helpers of the text format: a metric's head, and a line of it.
void metric_head(std::string& out, const char* name, const char* type, const char* help);
void metric_line(std::string& out, const std::string& name, const std::string& labels, double value);
// name="value", escaped.
std::string metric_label(const char* name, const std::string& value);

// Of this process: memory, descriptors, CPU time, threads.
void process_metrics(std::string& out);

}  // namespace graft::serve
