#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graft/llm.h"
#include "stage/channel.h"
#include "stage/step.h"

namespace graft::stage {

// The stages behind the first one, as one decoder uses them: a connection to each, and a cache there. For one thread at
// a time. What throws Unavailable has closed all connections: the stages have lost the sequences.
class GRAFT_API Chain {
 public:
  // Connects, and waits for stages that are not there yet. Throws InvalidArgument for other addresses than the model
  // needs, Refused for stages of another model or with another secret, Unavailable, and what a stage throws where it
  // cannot have such a cache.
  Chain(const StageInfo& first, const StageOptions& options, const KvOptions& kv);

  bool connected() const { return !connections_.empty(); }
  // Connects again where it is not connected, in one attempt; and takes answers to runs that were cancelled. Comes
  // before next(), prepare() and run().
  void ready();
  void close() noexcept { connections_.clear(); }

  // Where the first stage puts its tensors before run(): place_outgoing().
  Channel& next();
  // `step.tensors`: those of the first stage.
  void prepare(Step step);
  struct Output {
    Value logits;                        // in memory of the last connection, until the next run
    std::vector<std::int64_t> shortest;  // by sequence: the largest of all stages
  };
  // Throws what a stage throws, and Cancelled as the options say.
  Output run(Step step, std::uint64_t payload, const RunOptions& options);

 private:
  struct Connection {
    std::string where;  // "stage 1 of 2 at 'host:port'"
    std::unique_ptr<Channel> channel;
    bool owes = false;  // an answer to a run that was cancelled
  };
  void connect(double seconds);
  Connection open(std::size_t number, const Wait& wait) const;
  // Sends, and gives the answer, whose payload stays until the next exchange.
  Channel::Message exchange(Connection& connection, Kind kind, const Step& step, std::uint64_t payload,
                            const RunOptions& options);
  // Waits as long as the stage says that it is at work, and as the options say.
  Channel::Message answer(Connection& connection, const RunOptions& options) const;
  template <typename Work>
  decltype(auto) guarded(const Work& work);

  const StageInfo first_;
  const StageOptions options_;
  const KvOptions kv_;
  std::vector<Connection> connections_;
};

}  // namespace graft::stage
