#include "stage/chain.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/rethrow.h"
#include "stage/beat.h"
#include "stage/handshake.h"

namespace graft::stage {
namespace {

constexpr double kConnectSeconds = 1;  // an attempt
constexpr auto kBetweenAttempts = std::chrono::milliseconds(50);

}  // namespace

Chain::Chain(const StageInfo& first, const StageOptions& options, const KvOptions& kv)
    : first_(first), options_(options), kv_(kv) {
  GRAFT_CHECK(InvalidArgument, std::ssize(options.addresses) == first.stages - 1, "the model is in ", first.stages,
              " stages: the addresses of ", first.stages - 1, " were expected, found ", options.addresses.size());
  GRAFT_CHECK(InvalidArgument, options.connect_seconds >= 0 && options.run_seconds > 0,
              "connect_seconds and run_seconds of stages are at least 0, got ", options.connect_seconds, " and ",
              options.run_seconds);
  connect(options.connect_seconds);
}

// What breaks the protocol, or is lost, has no sequences any more.
template <typename Work>
decltype(auto) Chain::guarded(const Work& work) {
  try {
    return work();
  } catch (const Unavailable&) {
    close();
    throw;
  } catch (const Refused&) {
    close();
    throw;
  }
}

void Chain::ready() {
  connect(0);
  guarded([&] {
    for (Connection& connection : connections_) {
      if (!connection.at_work) continue;
      try {
        answer(connection, {});
      } catch (const Unavailable&) {
        throw;
      } catch (const Refused&) {
        throw;
      } catch (const Error&) {  // of a step that nobody waits for
      }
    }
  });
}

void Chain::connect(double seconds) {
  if (connected()) return;
  const auto until = Clock::now() + duration_of(seconds);
  std::vector<Connection> made;
  while (made.size() < options_.addresses.size()) {
    try {
      made.push_back(open(made.size() + 1, Wait::seconds(kConnectSeconds)));
    } catch (const Unavailable&) {
      if (Clock::now() >= until) throw;
      std::this_thread::sleep_for(kBetweenAttempts);
    }
  }
  connections_ = std::move(made);
}

Chain::Connection Chain::open(std::size_t number, const Wait& wait) const {
  const std::string& address = options_.addresses[number - 1];
  Connection out{str("stage ", number, " of ", first_.stages, " at '", address, "'"), nullptr};
  try {
    out.channel = std::make_unique<Channel>(connect_to(Address::parse(address), wait));
    introduce(*out.channel, options_.secret, Wait::seconds(kHandshakeSeconds));
    const Opening opening{static_cast<std::int64_t>(number), first_.stages, first_.model, kv_};
    out.channel->send(Kind::open, opening.bytes(), 0, Wait::seconds(kHandshakeSeconds));
  } catch (const Cancelled& error) {
    throw Unavailable(str(out.where, ": ", error.what()));
  } catch (const Error& error) {
    rethrow_with(out.where + ": ", error);
  }
  answer(out, {});
  return out;
}

Channel::Message Chain::answer(Connection& connection, const RunOptions& options) const {
  const auto most = Clock::now() + duration_of(options_.run_seconds);
  Channel::Message message;
  do {
    const auto silent = Clock::now() + duration_of(kSilentSeconds);
    const auto deadline = options.deadline.value_or(Clock::time_point::max());
    // What is cancelled is the wait for the beginning of a message, so that none is left half read.
    try {
      connection.channel->socket().await_bytes({std::min({most, silent, deadline}), options.cancel});
    } catch (const Cancelled&) {
      if ((options.cancel && options.cancel->cancelled()) || Clock::now() >= deadline) throw;
      GRAFT_CHECK(Unavailable, silent >= most, connection.where, " has said nothing for ", kSilentSeconds, " seconds");
      throw Unavailable(str(connection.where, " has not answered in ", options_.run_seconds, " seconds"));
    }
    try {
      message = connection.channel->receive(kProven, Wait::seconds(options_.run_seconds));
    } catch (const Cancelled&) {
      throw Unavailable(str(connection.where, " has not answered in ", options_.run_seconds, " seconds"));
    } catch (const Unavailable& error) {
      throw Unavailable(str(connection.where, ": ", error.what()));
    }
  } while (message.kind == Kind::working);
  connection.at_work = false;
  if (message.kind == Kind::failed) throw_failure(message.meta, connection.where);
  GRAFT_CHECK(Refused, message.kind == Kind::done, connection.where, ": an answer of another kind was expected");
  return message;
}

void Chain::send(Connection& connection, Kind kind, std::vector<std::int64_t> numbers, std::uint64_t payload) const {
  connection.numbers = std::move(numbers);
  try {
    connection.channel->send(kind, std::as_bytes(std::span(connection.numbers)), payload,
                             Wait::seconds(options_.run_seconds));
  } catch (const Error& error) {
    throw Unavailable(str(connection.where, ": ", error.what()));
  }
  connection.at_work = true;
}

Channel& Chain::next() { return *connections_.front().channel; }

void Chain::prepare(Step step) {
  guarded([&] {
    for (Connection& connection : connections_) {
      send(connection, Kind::prepare, step.numbers(), 0);
      step.tensors = Result::of(answer(connection, {}).meta).tensors;
    }
  });
}

void Chain::pass_on(std::size_t index, const RunOptions& options) {
  Connection& connection = connections_[index];
  if (!connection.at_work) return;
  const Channel::Message message = answer(connection, options);
  Result result = Result::of(message.meta);
  std::vector<std::int64_t>& shortest = connection.shortest;
  const std::vector<Value> tensors = in_payload(result.tensors, message.payload);
  GRAFT_CHECK(Refused, result.shortest.size() == shortest.size(), connection.where, ": numbers of ", shortest.size(),
              " sequences were expected, found ", result.shortest.size());
  std::ranges::transform(shortest, result.shortest, shortest.begin(),
                         [](std::int64_t a, std::int64_t b) { return std::max(a, b); });
  if (index + 1 == connections_.size()) {
    GRAFT_CHECK(Refused, tensors.size() == 1 && tensors[0].tensor.dtype == DType::f32, connection.where,
                ": logits in f32 were expected");
    output_ = {tensors[0], shortest};
    return;
  }
  pass_on(index + 1, options);
  Connection& next = connections_[index + 1];
  if (!message.payload.empty())
    std::memcpy(next.channel->outgoing(message.payload.size()).data(), message.payload.data(), message.payload.size());
  next.shortest = shortest;
  Step step = Step::of(std::as_bytes(std::span(connection.numbers)));
  step.tensors = std::move(result.tensors);
  send(next, Kind::run, step.numbers(), message.payload.size());
}

void Chain::submit(const Step& step, std::uint64_t payload, const RunOptions& options) {
  guarded([&] {
    pass_on(0, options);
    connections_[0].shortest.assign(step.sequences.size(), 1);
    send(connections_[0], Kind::run, step.numbers(), payload);
  });
}

Chain::Output Chain::finish(const RunOptions& options) {
  return guarded([&] {
    for (std::size_t i = 0; i < connections_.size(); ++i) pass_on(i, options);
    return output_;
  });
}

}  // namespace graft::stage
