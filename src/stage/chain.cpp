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
      if (!std::exchange(connection.owes, false)) continue;
      try {
        answer(connection, {});
      } catch (const Unavailable&) {
        throw;
      } catch (const Refused&) {
        throw;
      } catch (const Error&) {  // of the run that was cancelled
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
      if ((options.cancel && options.cancel->cancelled()) || Clock::now() >= deadline) {
        connection.owes = true;
        throw;
      }
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
  if (message.kind == Kind::failed) throw_failure(message.meta, connection.where);
  GRAFT_CHECK(Refused, message.kind == Kind::done, connection.where, ": an answer of another kind was expected");
  return message;
}

Channel::Message Chain::exchange(Connection& connection, Kind kind, const Step& step, std::uint64_t payload,
                                 const RunOptions& options) {
  const std::vector<std::int64_t> numbers = step.numbers();
  try {
    connection.channel->send(kind, std::as_bytes(std::span(numbers)), payload, Wait::seconds(options_.run_seconds));
  } catch (const Error& error) {
    throw Unavailable(str(connection.where, ": ", error.what()));
  }
  return answer(connection, options);
}

Channel& Chain::next() { return *connections_.front().channel; }

void Chain::prepare(Step step) {
  guarded([&] {
    for (Connection& connection : connections_)
      step.tensors = Result::of(exchange(connection, Kind::prepare, step, 0, {}).meta).tensors;
  });
}

Chain::Output Chain::run(Step step, std::uint64_t payload, const RunOptions& options) {
  return guarded([&] {
    Output out;
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      const Channel::Message message = exchange(connections_[i], Kind::run, step, payload, options);
      Result result = Result::of(message.meta);
      const std::vector<Value> tensors = in_payload(result.tensors, message.payload);
      GRAFT_CHECK(Refused, result.shortest.size() == step.sequences.size(), connections_[i].where, ": numbers of ",
                  step.sequences.size(), " sequences were expected, found ", result.shortest.size());
      out.shortest.resize(result.shortest.size(), 1);
      for (std::size_t s = 0; s < out.shortest.size(); ++s)
        out.shortest[s] = std::max(out.shortest[s], result.shortest[s]);
      step.tensors = std::move(result.tensors);
      payload = message.payload.size();
      if (i + 1 < connections_.size()) {
        const auto room = connections_[i + 1].channel->outgoing(payload);
        if (payload > 0) std::memcpy(room.data(), message.payload.data(), payload);
      } else {
        GRAFT_CHECK(Refused, tensors.size() == 1 && tensors[0].tensor.dtype == DType::f32, connections_[i].where,
                    ": logits in f32 were expected");
        out.logits = tensors[0];
      }
    }
    return out;
  });
}

}  // namespace graft::stage
