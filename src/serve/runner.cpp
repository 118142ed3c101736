#include "serve/runner.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace graft::serve {
namespace {

const MethodInfo& method_of(const Program& program) {
  const std::vector<std::string> names = program.method_names();
  const bool forward = std::ranges::find(names, "forward") != names.end();
  GRAFT_CHECK(InvalidArgument, forward || names.size() == 1, "the program has ", names.size(),
              " methods, and none of them is called forward");
  return program.method(forward ? "forward" : names[0]);
}

// Equal but for the number of rows.
bool fit(const std::vector<Value>& a, const std::vector<Value>& b) {
  return std::ranges::equal(a, b, [](const Value& x, const Value& y) {
    const auto xs = x.tensor.shape.sizes(), ys = y.tensor.shape.sizes();
    return x.tensor.dtype == y.tensor.dtype && std::ranges::equal(xs.subspan(1), ys.subspan(1));
  });
}

TensorView with_rows(TensorView tensor, std::int64_t rows) {
  const auto sizes = tensor.shape.sizes();
  Shape shape({rows});
  for (const std::int64_t size : sizes.subspan(1)) shape.push_back(size);
  tensor.shape = shape;
  return tensor;
}

std::size_t bytes_of(const TensorView& tensor) { return TensorDesc(tensor.dtype, tensor.shape).byte_count(); }

}  // namespace

Runner::Runner(std::shared_ptr<const Program> program, const SessionOptions& options, std::size_t queue,
               const BatchOptions& batch)
    : program_(std::move(program)),
      session_(program_, options),
      method_(&method_of(*program_)),
      capacity_(queue),
      batch_(batch) {
  has_states_ = !session_.states().empty();
  state_bytes_ = session_.counters().state_bytes;
  if (!method_->independent_rows || has_states_)
    batch_.max_rows = 1;
  else
    batch_.max_rows = std::min(batch_.max_rows, method_->inputs[0].dims[0].max);
  thread_ = std::thread([this] { loop(); });
}

void Runner::end() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  jobs_.clear();
}

std::int64_t Runner::rows_of(const std::vector<Value>& inputs) const {
  if (batch_.max_rows <= 1 || inputs.size() != method_->inputs.size()) return 0;
  std::int64_t rows = -1;
  for (const Value& input : inputs) {
    if (input.kind != Value::Kind::tensor || input.tensor.shape.rank() == 0) return 0;
    const std::int64_t own = input.tensor.shape[0];
    if (rows >= 0 && own != rows) return 0;  // refused when it runs
    rows = own;
  }
  return std::max<std::int64_t>(rows, 0);
}

void Runner::run(std::vector<Value> inputs, Clock::time_point deadline, const CancelToken& cancel, OnDone on_done) {
  const std::int64_t rows = rows_of(inputs);
  {
    const std::lock_guard lock(mutex_);
    GRAFT_CHECK(Busy, !stopping_, "the server is stopping");
    GRAFT_CHECK(Busy, jobs_.size() < capacity_, jobs_.size(), " calls wait, the queue has room for ", capacity_);
    jobs_.push_back({std::move(inputs), Clock::now(), deadline, cancel, std::move(on_done), rows});
  }
  changed_.notify_one();
}

std::size_t Runner::waiting() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

Runner::Stats Runner::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Runner::take_fitting(std::vector<Job>& jobs, std::int64_t& rows) {
  for (auto it = jobs_.begin(); it != jobs_.end() && rows < batch_.max_rows;) {
    if (it->rows == 0 || rows + it->rows > batch_.max_rows || !fit(it->inputs, jobs.front().inputs)) {
      ++it;
      continue;
    }
    rows += it->rows;
    jobs.push_back(std::move(*it));
    it = jobs_.erase(it);
  }
}

std::vector<Runner::Job> Runner::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
  std::vector<Job> jobs;
  if (stopping_) return jobs;
  jobs.push_back(std::move(jobs_.front()));
  jobs_.pop_front();
  std::int64_t rows = jobs.front().rows;
  if (rows == 0) return jobs;
  const Clock::time_point until = jobs.front().arrived + duration_of(batch_.delay_seconds);
  take_fitting(jobs, rows);
  while (rows < batch_.max_rows && !stopping_ && Clock::now() < until) {
    changed_.wait_until(lock, until);
    take_fitting(jobs, rows);
  }
  return jobs;
}

void Runner::loop() {
  for (;;) {
    // Gone before the next ones are waited for: they hold their requests, and these the model.
    std::vector<Job> jobs = next();
    if (jobs.empty()) return;
    const auto gone = [this](const Job& job) {
      if (!job.cancel.cancelled()) return false;
      finish(job, {}, std::make_exception_ptr(Cancelled("the client has gone")));
      return true;
    };
    std::erase_if(jobs, gone);
    if (jobs.size() == 1)
      run_alone(jobs.front());
    else if (!jobs.empty())
      run_together(jobs);
  }
}

void Runner::finish(const Job& job, const std::vector<Value>& outputs, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    ++stats_.calls;
    stats_.rows += static_cast<std::uint64_t>(std::max<std::int64_t>(job.rows, 1));
  }
  try {
    job.on_done(outputs, error);
  } catch (...) {  // what it holds gives its answer
  }
}

void Runner::run_alone(const Job& job) {
  std::vector<Value> outputs;
  std::exception_ptr error;
  try {
    RunOptions options;
    options.deadline = job.deadline;
    options.cancel = &job.cancel;
    if (has_states_) session_.reset();
    outputs = session_.run(method_->name, job.inputs, options);
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    ++stats_.runs;
  }
  finish(job, outputs, error);
}

void Runner::run_together(std::vector<Job>& jobs) {
  std::vector<Value> outputs;
  try {
    std::int64_t rows = 0;
    RunOptions options;
    for (const Job& job : jobs) {
      rows += job.rows;
      options.deadline = std::max(options.deadline.value_or(job.deadline), job.deadline);
    }
    joined_.resize(jobs.front().inputs.size());
    std::vector<Value> inputs = jobs.front().inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      joined_[i].clear();
      for (const Job& job : jobs) {
        const auto* from = static_cast<const std::byte*>(job.inputs[i].tensor.data);
        joined_[i].insert(joined_[i].end(), from, from + bytes_of(job.inputs[i].tensor));
      }
      inputs[i].tensor = with_rows(inputs[i].tensor, rows);
      inputs[i].tensor.data = joined_[i].data();
    }
    outputs = session_.run(method_->name, inputs, options);
    for (const Value& output : outputs) GRAFT_ASSERT(output.tensor.shape[0] == rows);
  } catch (...) {
    // The data of one may be what a kernel must not act on: each has its own error, or none.
    for (const Job& job : jobs) run_alone(job);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ++stats_.runs;
  }
  std::int64_t first = 0;
  for (const Job& job : jobs) {
    std::vector<Value> own = outputs;
    for (Value& output : own) {
      output.tensor = with_rows(output.tensor, 1);
      output.tensor.data =
          static_cast<std::byte*>(output.tensor.data) + static_cast<std::size_t>(first) * bytes_of(output.tensor);
      output.tensor = with_rows(output.tensor, job.rows);
    }
    first += job.rows;
    finish(job, own, nullptr);
  }
}

}  // namespace graft::serve
