#include "cli/stage.h"

#include <CLI/CLI.hpp>
#include <csignal>

#include "serve/log.h"
#include "stage/secret.h"

namespace graft::cli {
namespace {

constexpr const char* kNotes = R"(Examples:
  graft stage model.stage1.pte --listen 0.0.0.0:7001 --secret-file secret.txt
  graft stage model.stage1.pte --listen unix:/run/graft/stage1

Runs one stage of `graft export --stages N` for a driver: graft serve model.stage0.pte --stages HOST:7001. With unix:PATH
values go through shared memory. See docs/stages.md. Lines of JSON on stderr say what happens. SIGTERM and Ctrl-C end it.)";

stage::Worker* running = nullptr;  // of this process, for the handler

void stop(int) { running->stop(); }

}  // namespace

StageOptions StageArgs::options() const {
  StageOptions out;
  out.addresses = addresses;
  if (!secret_file.empty()) out.secret = stage::read_secret(secret_file);
  return out;
}

void add_stage_options(CLI::App& command, StageArgs& args) {
  command
      .add_option(
          "--stages", args.addresses,
          "where the other stages of the model run (graft stage): HOST:PORT or unix:PATH of each in order, with "
          "commas between")
      ->delimiter(',')
      ->type_name("ADDRESS,...");
  command.add_option("--secret-file", args.secret_file, "a file with the secret that the stages know")
      ->type_name("FILE");
}

StageCommand::StageCommand(CLI::App& app)
    : command_(app.add_subcommand("stage", "Run a stage of a model for a driver in another process.")) {
  CLI::App& command = *command_;
  command.footer(kNotes);
  add_load_options(command, load_, "the stage: a .pte file of `graft export --stages N`, but the first");
  command.add_option("--listen", options_.address, "HOST:PORT, or unix:PATH; port 0: a free one, which the log says")
      ->required()
      ->type_name("ADDRESS");
  command
      .add_option("--secret-file", secret_file_,
                  "a file with the secret that drivers must know, 16 bytes or more, of its owner alone")
      ->type_name("FILE");
  command.add_option("--max-connections", options_.max_connections, "drivers at once, each with a cache of its own")
      ->check(CLI::PositiveNumber.description(""))
      ->capture_default_str()
      ->type_name("N");
}

void StageCommand::run() {
  if (!command_->parsed()) return;
  if (!secret_file_.empty()) options_.secret = stage::read_secret(secret_file_);
  options_.threads = load_.threads;
  options_.on_event = [](std::string_view event, std::string_view peer, std::string_view reason) {
    serve::Json fields{{"peer", peer}};
    if (!reason.empty()) fields["reason"] = reason;
    serve::log_event(event == "refused" ? "warning" : "info", std::string(event).c_str(), fields);
  };
  stage::Worker worker(load_.file, load_options_of(load_), options_);
  running = &worker;
  std::signal(SIGTERM, stop);
  std::signal(SIGINT, stop);
  serve::log_event("info", "listening",
                   {{"address", worker.address()}, {"stage", worker.info().stage}, {"stages", worker.info().stages}});
  worker.run();
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  serve::log_event("info", "stopped");
}

}  // namespace graft::cli
