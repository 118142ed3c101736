#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "batch/task.h"
#include "serve/app.h"

namespace graft::batch {

// A task whose rows are requests of the server: what they may say and what is answered is the same. Requests of the
// shards that were started run side by side; texts that begin alike follow one another, so that what they share is
// computed once.
class ServedTask : public Task {
 public:
  explicit ServedTask(const TaskContext& context);
  ~ServedTask() override;

  void start(Shard& shard) override;
  void finish(Shard& shard) override;
  std::size_t ahead() const override { return 2; }

 protected:
  struct RowRequest {
    std::string path;  // "/v1/completions"
    std::string body;
  };
  // Throws BadRow.
  virtual RowRequest request(const Row& row) = 0;
  // From the answer. Throws BadRow where it is no result.
  virtual std::vector<std::string> result(const Row& row, const serve::Response& response) = 0;
  // Not to be confused with another row's, and the same in each run.
  std::string id_of(const Row& row) const;

  serve::App& app() { return app_; }
  serve::ServedModel& model() { return *model_; }

 private:
  class Answer;
  struct Waiting {
    Shard* shard = nullptr;
    std::size_t row = 0;  // in the shard
    RowRequest request;
  };
  struct Answered {
    Shard* shard = nullptr;
    std::size_t row = 0;
    serve::Response response;
  };

  void submit(Waiting waiting);
  void take(Answered answered);
  void set(Shard& shard, std::size_t row, RowResult result);

  const std::string run_id_;
  const std::int64_t created_;
  OnRows on_rows_;
  std::deque<Waiting> waiting_;
  std::size_t running_ = 0, most_running_ = 0;

  std::mutex mutex_;  // of the two below, which threads of the models change
  std::condition_variable changed_;
  std::vector<Answered> answered_;
  std::set<const Answer*> open_;  // answers that still exist

  serve::App app_;
  std::shared_ptr<serve::ServedModel> model_;
};

std::unique_ptr<Task> generate_task(const TaskContext& context);
std::unique_ptr<Task> chat_task(const TaskContext& context);
std::unique_ptr<Task> rerank_task(const TaskContext& context);
std::unique_ptr<Task> openai_task(const TaskContext& context);

// The value of a request's parameters, of NAME=JSON. Throws InvalidArgument for others, and for names in `taken`.
Json read_parameters(const std::vector<std::string>& given, const std::vector<std::string>& taken);

// An answer's body where its status is 200; else throws BadRow with the error's message.
Json body_of(const serve::Response& response);

}  // namespace graft::batch
