#include "stage/worker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/rethrow.h"
#include "stage/beat.h"
#include "stage/handshake.h"
#include "stage/stage_info.h"
#include "stage/step.h"

namespace graft::stage {
namespace {

constexpr std::size_t kCalls = 64;    // sizes of runs that graphs are kept for, as of the driver
constexpr double kReplySeconds = 60;  // that a driver may take to read an answer

StageInfo checked_info(const std::string& package) {
  const std::optional<StageInfo> info = read_stage_info(package);
  GRAFT_CHECK(InvalidArgument, info, "'", package, "' is no stage of a model: graft export --stages N makes them");
  GRAFT_CHECK(InvalidArgument, info->stage > 0, "'", package, "' is the first of ", info->stages,
              " stages, which the driver itself runs: graft serve --stages");
  return *info;
}

Address checked_address(const WorkerOptions& options) {
  const Address address = Address::parse(options.address);
  GRAFT_CHECK(InvalidArgument, address.is_unix() || !options.secret.empty(), "'", options.address,
              "' needs a secret: who connects there could be anybody");
  return address;
}

// One driver: what it asks is answered in order.
class Driver {
 public:
  Driver(const std::shared_ptr<const Program>& program, const StageInfo& info, const WorkerOptions& options,
         const std::shared_ptr<Arena>& arena, Turns& turns, Channel& channel)
      : program_(program),
        info_(info),
        options_(options),
        arena_(arena),
        turns_(turns),
        channel_(channel),
        beat_(channel) {}

  // After what it throws the connection ends.
  void answer(const Channel::Message& message) {
    beat_.start();
    try {
      compute(message);
    } catch (const Refused&) {
      throw;
    } catch (const Unavailable&) {
      throw;
    } catch (const Error& error) {  // of the run: the connection goes on
      send(Kind::failed, failure_of(error), 0);
    }
  }

 private:
  void compute(const Channel::Message& message) {
    const bool first = !session_;
    GRAFT_CHECK(Refused, first == (message.kind == Kind::open), "a message of another kind was expected");
    switch (message.kind) {
      case Kind::open:
        return open(Opening::of(message.meta));
      case Kind::prepare:
        return prepare(Step::of(message.meta));
      case Kind::run:
        return run(Step::of(message.meta), message.payload);
      default:
        throw Refused("a driver does not send such messages");
    }
  }

  void open(const Opening& asked) {
    GRAFT_CHECK(Refused, asked.model == info_.model, "this is a stage of another export (", info_.model.substr(0, 12),
                ") than the driver's (", asked.model.substr(0, 12), ")");
    GRAFT_CHECK(Refused, asked.stage == info_.stage && asked.stages == info_.stages, "this is stage ", info_.stage,
                " of ", info_.stages, ", the driver wants stage ", asked.stage, " of ", asked.stages);
    SessionOptions session;
    session.threads = options_.threads;
    session.max_graphs = kCalls;
    session.arena = arena_;
    session.kv = asked.kv;
    session_.emplace(program_, session);
    reply({}, 0);
  }

  void prepare(const Step& step) {
    std::vector<Value> carried;
    for (const TensorDesc& tensor : step.tensors)
      carried.push_back(Value::of(TensorView{nullptr, tensor.dtype, tensor.shape}));
    const std::vector<Value> inputs = inputs_of(step, kept_, carried);
    const Turns::Turn turn(turns_);
    Result result;
    result.tensors = descs_of(session_->output_values(kMethod, inputs));
    session_->plan(kMethod, inputs);
    reply(result, 0);
  }

  void run(const Step& step, std::span<std::byte> payload) {
    const std::vector<Value> inputs = inputs_of(step, kept_, in_payload(step.tensors, payload));
    RunOptions options;
    options.kv_rows = step.sequences;
    Result result;
    std::uint64_t bytes = 0;
    {
      const Turns::Turn turn(turns_);
      result.tensors = descs_of(session_->run_into(
          kMethod, inputs, [&](std::span<Value> outputs) { bytes = place_outgoing(outputs, channel_); }, options));
    }
    for (const std::int64_t sequence : step.sequences) result.shortest.push_back(session_->kv_shortest(sequence));
    reply(result, bytes);
  }

  void reply(const Result& result, std::uint64_t payload) {
    const std::vector<std::int64_t> numbers = result.numbers();
    send(Kind::done, std::as_bytes(std::span(numbers)), payload);
  }

  void send(Kind kind, std::span<const std::byte> meta, std::uint64_t payload) {
    beat_.stop();
    channel_.send(kind, meta, payload, Wait::seconds(kReplySeconds));
  }

  const std::shared_ptr<const Program>& program_;
  const StageInfo& info_;
  const WorkerOptions& options_;
  const std::shared_ptr<Arena>& arena_;
  Turns& turns_;
  Channel& channel_;
  Beat beat_;
  std::optional<Session> session_;
  std::vector<std::int64_t> kept_;
};

std::shared_ptr<const Program> loaded(const std::string& package, LoadOptions load) {
  load.methods = {std::string(kMethod)};
  return Program::load(package, load);
}

}  // namespace

Worker::Worker(const std::string& package, const LoadOptions& load, WorkerOptions options) try
    : info_(checked_info(package)),
      program_(loaded(package, load)),
      options_(std::move(options)),
      arena_(std::make_shared<Arena>()),
      listener_(checked_address(options_)),
      stopped_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  GRAFT_CHECK(SystemError, stopped_, "cannot make an event: ", std::strerror(errno));
} catch (...) {
  rethrow_typed();
}

Worker::~Worker() {
  stop();
  join_ended(true);
}

std::string Worker::address() const { return listener_.address().str(); }

void Worker::stop() noexcept {
  const std::uint64_t one = 1;
  // Fails only where it has been stopped very often.
  [[maybe_unused]] const ssize_t written = ::write(stopped_.get(), &one, sizeof(one));
}

void Worker::tell(std::string_view event, const Socket& socket, std::string_view reason) const {
  if (options_.on_event) options_.on_event(event, socket.peer(), reason);
}

void Worker::join_ended(bool all) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    if (!all && !at->ended) {
      ++at;
      continue;
    }
    at->channel->socket().shut_down();
    if (at->thread.joinable()) at->thread.join();
    at = connections_.erase(at);
  }
}

void Worker::run() try {
  while (true) {
    std::optional<Socket> socket;
    try {
      socket.emplace(listener_.accept(stopped_.get()));
    } catch (const Cancelled&) {
      break;
    }
    join_ended(false);
    if (connections_.size() >= options_.max_connections) {
      tell("refused", *socket, str("there are ", connections_.size(), " connections, as many as are allowed"));
      continue;
    }
    Connection& connection = connections_.emplace_back();
    connection.channel = std::make_unique<Channel>(std::move(*socket));
    try {
      connection.thread = std::thread([this, &connection] {
        serve(*connection.channel);
        connection.ended = true;
      });
    } catch (...) {  // no thread for it now
      tell("refused", connection.channel->socket(), "there is no thread for it");
      connections_.pop_back();
    }
  }
  join_ended(true);
} catch (...) {
  rethrow_typed();
}

void Worker::serve(Channel& channel) {
  const Socket& socket = channel.socket();
  try {
    welcome(channel, options_.secret, Wait::seconds(kHandshakeSeconds));
    Driver driver(program_, info_, options_, arena_, turns_, channel);
    Channel::Message message = channel.receive(kProven, Wait::seconds(kHandshakeSeconds));
    tell("opened", socket, "");
    while (true) {
      driver.answer(message);
      message = channel.receive(kProven, {});
    }
  } catch (const Unavailable& error) {
    tell("closed", socket, error.what());
  } catch (const std::exception& error) {
    tell("refused", socket, error.what());
    try {
      channel.send(Kind::failed, failure_of(error), 0, Wait::seconds(1));
    } catch (...) {  // whoever it was does not listen
    }
  } catch (...) {
    tell("refused", socket, "an exception of unknown type");
  }
  channel.socket().shut_down();
}

}  // namespace graft::stage
