#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graft/llm.h"
#include "stage/channel.h"
#include "stage/step.h"

namespace graft::stage {

// The stages behind the first one, as one decoder uses them: a connection to each, and a cache there. Steps go through
// them as through a pipeline: each stage has one of them at a time. For one thread at a time. What throws Unavailable
// has closed all connections: the stages have lost the sequences. After anything else that is thrown come ready() and
// new steps: no answers to those before are waited for.
class GRAFT_API Chain {
 public:
  // Connects, and waits for stages that are not there yet. Throws InvalidArgument for other addresses than the model
  // needs, Refused for stages of another model or with another secret, Unavailable, and what a stage throws where it
  // cannot have such a cache.
  Chain(const StageInfo& first, const StageOptions& options, const KvOptions& kv);

  bool connected() const { return !connections_.empty(); }
  // Connects again where it is not connected, in one attempt; and takes answers to steps that nobody waits for any
  // more. Comes before prepare(), and next() of a first step.
  void ready();
  void close() noexcept { connections_.clear(); }

  // Where the first stage puts its tensors before submit(): place_outgoing(). The stages may be at the step before.
  Channel& next();
  // `step.tensors`: those of the first stage.
  void prepare(Step step);
  // Gives the second stage a step as soon as that has answered the one before, and does not wait for its own answer.
  // Throws what a stage throws, also of steps before, and Cancelled as the options say.
  void submit(const Step& step, std::uint64_t payload, const RunOptions& options);
  struct Output {
    Value logits;                        // in memory of the last connection, until the next answer
    std::vector<std::int64_t> shortest;  // by sequence: the largest of all stages
  };
  // Waits until all stages have answered. Gives what the last one says of the last step. Throws as submit() does.
  Output finish(const RunOptions& options);

 private:
  struct Connection {
    std::string where;  // "stage 1 of 2 at 'host:port'"
    std::unique_ptr<Channel> channel;
    bool at_work = false;                     // it has not answered yet
    std::vector<std::int64_t> numbers = {};   // of the step that it has
    std::vector<std::int64_t> shortest = {};  // by sequence of that: the largest of the stages before
  };
  void connect(double seconds);
  Connection open(std::size_t number, const Wait& wait) const;
  void send(Connection& connection, Kind kind, std::vector<std::int64_t> numbers, std::uint64_t payload) const;
  // Takes a stage's answer, if it is at work, and gives it to the next one.
  void pass_on(std::size_t index, const RunOptions& options);
  // Waits as long as the stage says that it is at work, and as the options say.
  Channel::Message answer(Connection& connection, const RunOptions& options) const;
  template <typename Work>
  decltype(auto) guarded(const Work& work);

  const StageInfo first_;
  const StageOptions options_;
  const KvOptions kv_;
  std::vector<Connection> connections_;
  Output output_;  // of the last stage
};

}  // namespace graft::stage
