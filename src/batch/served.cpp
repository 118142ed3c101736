#include "batch/served.h"

#include <algorithm>
#include <thread>

#include "base/sha256.h"
#include "serve/router.h"

namespace graft::batch {
namespace {

constexpr double kAnySeconds = 1e8;
constexpr std::int64_t kAnyQueue = 1 << 20;
// Requests that wait beside those that run, so that a row of the cache is never idle.
constexpr std::size_t kWaitingByRow = 2, kWaitingTexts = 8;

serve::ServeOptions served_options(const BatchOptions& options) {
  serve::ServeOptions out;
  out.models = {options.model};
  out.load = options.load;
  out.decoder = options.decoder;
  out.prefix_cache_bytes = options.prefix_cache_bytes;
  out.limits.seconds = kAnySeconds;
  out.limits.queue = kAnyQueue;
  out.limits.prompt_bytes = SIZE_MAX;
  out.log_requests = false;
  return out;
}

}  // namespace

// Takes what the server answers.
class ServedTask::Answer : public serve::Exchange {
 public:
  Answer(ServedTask& task, Shard& shard, std::size_t row) : task_(task), shard_(shard), row_(row) {
    const std::lock_guard lock(task_.mutex_);
    task_.open_.insert(this);
  }
  ~Answer() override {
    gone_ = nullptr;  // it may hold the model
    const std::lock_guard lock(task_.mutex_);
    task_.open_.erase(this);
    task_.changed_.notify_all();
  }

  void respond(serve::Response response) override {
    const std::lock_guard lock(task_.mutex_);
    task_.answered_.push_back({&shard_, row_, std::move(response)});
    task_.changed_.notify_all();
  }
  // Streams are refused before they are asked for.
  void begin(serve::Response) override { GRAFT_ASSERT(false && "a stream in a batch"); }
  void send(std::string) override {}
  void end() override {}
  void on_gone(std::function<void()> call) override {
    const std::lock_guard lock(task_.mutex_);
    gone_ = std::move(call);
  }
  // The mutex is held.
  std::function<void()> gone() const { return gone_; }

 private:
  ServedTask& task_;
  Shard& shard_;
  const std::size_t row_;
  std::function<void()> gone_;
};

ServedTask::ServedTask(const TaskContext& context)
    : run_id_(context.run_id),
      created_(context.created),
      on_rows_(context.on_rows),
      app_(served_options(context.options)) {
  model_ = serve::load_model(context.options.model, app_.options);
  app_.models.add(model_);
  app_.phase = serve::Phase::ready;
  most_running_ = model_->engine ? kWaitingByRow * static_cast<std::size_t>(model_->engine->rows()) : kWaitingTexts;
}

ServedTask::~ServedTask() {
  // Requests hold the model, whose threads must not be those that end it: first they end, then it does.
  std::vector<std::function<void()>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (const Answer* answer : open_) gone.push_back(answer->gone());
  }
  for (const auto& call : gone)
    if (call) call();
  gone.clear();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_.empty(); });
  }
  constexpr long kOurs = 2;  // here and in the list of models
  while (model_.use_count() > kOurs) std::this_thread::yield();
  model_ = nullptr;
  app_.models.clear();
}

std::string ServedTask::id_of(const Row& row) const {
  const std::string text = str(run_id_, ' ', row.index);
  return hex_of(sha256(std::as_bytes(std::span(text)))).substr(0, 24);
}

void ServedTask::start(Shard& shard) {
  std::vector<Waiting> requests;
  for (std::size_t i = 0; i < shard.rows.size(); ++i) {
    try {
      if (!shard.rows[i].error.empty()) bad_row(shard.rows[i].error);
      requests.push_back({&shard, i, request(shard.rows[i])});
    } catch (const BadRow& error) {
      set(shard, i, {{}, error.what()});
    }
  }
  std::ranges::stable_sort(requests, {}, [](const Waiting& one) -> const std::string& { return one.request.body; });
  waiting_.insert(waiting_.end(), std::make_move_iterator(requests.begin()), std::make_move_iterator(requests.end()));
}

void ServedTask::finish(Shard& shard) {
  while (shard.left > 0) {
    while (running_ < most_running_ && !waiting_.empty()) {
      Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      submit(std::move(next));
    }
    std::vector<Answered> answered;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !answered_.empty(); });
      std::swap(answered, answered_);
    }
    for (Answered& one : answered) take(std::move(one));
  }
}

void ServedTask::submit(Waiting waiting) {
  const Row& row = waiting.shard->rows[waiting.row];
  serve::Request request;
  request.method = "POST";
  request.path = std::move(waiting.request.path);
  request.headers = {{"content-type", "application/json"}};
  request.body = std::move(waiting.request.body);
  request.start = Clock::now();
  const std::string id = id_of(row);
  auto call = std::make_shared<serve::Call>(
      id, std::move(request), std::make_shared<Answer>(*this, *waiting.shard, waiting.row), app_.metrics, false, [] {});
  call->repeatable = {created_, std::stoull(id.substr(0, 16), nullptr, 16)};
  ++running_;
  serve::route(app_, call);
}

void ServedTask::take(Answered answered) {
  --running_;
  const Row& row = answered.shard->rows[answered.row];
  // Of the machine, not of the row: the run can go on when there is memory again.
  GRAFT_CHECK(OutOfMemory, answered.response.status != 503, "row ", row.index, ": ", answered.response.body);
  RowResult out;
  try {
    out.values = result(row, answered.response);
  } catch (const BadRow& error) {
    out.error = error.what();
  }
  set(*answered.shard, answered.row, std::move(out));
}

void ServedTask::set(Shard& shard, std::size_t row, RowResult result) {
  shard.results[row] = std::move(result);
  --shard.left;
  on_rows_(1);
}

Json read_parameters(const std::vector<std::string>& given, const std::vector<std::string>& taken) {
  Json out = Json::object();
  for (const std::string& one : given) {
    const std::size_t sign = one.find('=');
    const std::string name = one.substr(0, sign);
    GRAFT_CHECK(InvalidArgument, sign != one.npos && !name.empty(), "--set takes NAME=JSON, found '", one, "'");
    GRAFT_CHECK(InvalidArgument, std::ranges::find(taken, name) == taken.end(), "--set cannot give '", name,
                "' to this task");
    GRAFT_CHECK(InvalidArgument, !out.contains(name), "--set gives '", name, "' twice");
    try {
      out[name] = serve::parse_json(std::string_view(one).substr(sign + 1));
    } catch (const Error&) {
      throw InvalidArgument(
          str("--set ", name, ": '", one.substr(sign + 1), "' is no JSON; a text is in quotes: ", name, "='\"...\"'"));
    }
  }
  return out;
}

Json body_of(const serve::Response& response) {
  auto body = read_json<Json>(response.body);
  if (response.status != 200) bad_row(body.at("error").at("message").get_ref<const std::string&>());
  return body;
}

}  // namespace graft::batch
