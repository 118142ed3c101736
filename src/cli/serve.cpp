#include "cli/serve.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "serve/api_error.h"
#include "serve/cors.h"
#include "serve/openai/messages.h"

namespace graft::cli {
namespace {

constexpr const char* kServeNotes = R"(Examples:
  graft serve model.pte
  graft serve model.stage0.pte --stages host1:7001,host2:7002 --secret-file secret.txt
  graft serve small=model-q4.pte large=model.pte --port 8000 --rows 16 --api-keys keys.txt
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"messages": [{"role": "user", "content": "Hello"}]}'

Serves OpenAI's API over HTTP, see docs/serving.md. Lines of JSON on stderr say what happens. SIGTERM and Ctrl-C let
running requests end, a second one ends at once. The first model answers requests that name none.)";

constexpr const char* kHttpGroup = "Limits of requests";

}  // namespace

serve::ModelFile model_file(const std::string& argument) {
  const std::size_t sign = argument.find('=');
  serve::ModelFile file;
  file.path = sign == std::string::npos ? argument : argument.substr(sign + 1);
  file.name = sign == std::string::npos ? std::filesystem::path(argument).stem().string() : argument.substr(0, sign);
  if (!serve::is_model_name(file.name))
    throw CLI::ValidationError(
        "MODEL", "the name '" + file.name + "' must be of letters, digits and .-_: (give another one: name=FILE.pte)");
  if (file.path.empty()) throw CLI::ValidationError("MODEL", "'" + argument + "' names no file");
  return file;
}

ServeCommand::ServeCommand(CLI::App& app) : command_(app.add_subcommand("serve", "Serve models over HTTP.")) {
  CLI::App& command = *command_;
  command.footer(kServeNotes);
  command.add_option("MODEL", models_, "FILE.pte or NAME=FILE.pte; several for several models")
      ->required()
      ->type_name("");
  add_load_options(command, load_);
  command
      .add_option("--tokenizer", tokenizers_,
                  "NAME=FILE: tokenizer.json, a folder with one, or a .gguf, for the model of this name (default: the "
                  "package's own)")
      ->type_name("NAME=FILE")
      ->allow_extra_args(false);
  command.add_option("--host", options_.http.host, "the address to listen at; 0.0.0.0: all of this machine")
      ->capture_default_str()
      ->type_name("ADDRESS");
  command.add_option("--port", port_, "the port; 0: a free one, which the first line of the log says")
      ->check(CLI::Range(0, 65535).description(""))
      ->capture_default_str()
      ->type_name("N");
  command.add_option("--api-keys", options_.api_keys, "a file with a key per line; requests need one of them")
      ->type_name("FILE");
  command
      .add_option(
          "--cors-origin", options_.origins,
          "pages of this origin may use the server: https://chat.example.org, localhost (pages of the browser's "
          "machine) or * (all); may be repeated (default: only the server's own page)")
      ->check(
          [](const std::string& origin) {
            try {
              serve::check_origin(origin);
            } catch (const InvalidArgument& error) {
              return std::string(error.what());
            }
            return std::string();
          },
          "")
      ->type_name("ORIGIN")
      ->allow_extra_args(false);
  const auto count = [&](const char* flag, auto& value, const char* about) {
    return command.add_option(flag, value, about)->check(CLI::PositiveNumber.description(""))->type_name("N");
  };
  add_decoder_options(command, options_.decoder, kv_type_);
  add_stage_options(command, stages_);
  command
      .add_option("--prefix-cache-bytes", options_.prefix_cache_bytes,
                  "of keys and values that each model keeps of ended texts, for others that begin as they do; 0: none "
                  "(default: an eighth of the memory, up to 4 GiB; in a file 4 GiB)")
      ->check(CLI::NonNegativeNumber.description(""))
      ->type_name("N");
  command
      .add_option("--prefix-cache-file", prefix_files_,
                  "[NAME=]FILE: keeps them there, for the next start too, for the model of this name; the file holds "
                  "what was asked and answered")
      ->type_name("[NAME=]FILE")
      ->allow_extra_args(false);
  command
      .add_option("--lora", adapters_,
                  "[MODEL/]NAME=PATH: a LoRA adapter of the model, a folder of peft's or a .gguf, for requests to the "
                  "model NAME; may be repeated")
      ->type_name("[MODEL/]NAME=PATH")
      ->allow_extra_args(false);
  command
      .add_option("--lora-folder", options_.adapter_folder,
                  "a folder of adapters that requests may load and unload (POST /v1/load_lora_adapter, "
                  "/v1/unload_lora_adapter)")
      ->type_name("FOLDER");
  add_adapter_rank_option(command, max_adapter_rank_);
  count(
      "--max-batch", options_.batch.max_rows,
      "rows of a run, of models for any tensors: calls that wait are one run where each row is computed from that row "
      "alone; 1: no batches")
      ->capture_default_str();
  command
      .add_option("--batch-delay-ms", batch_delay_ms_,
                  "milliseconds that a call waits for others to be one run with, besides the run before it")
      ->check(CLI::Range(0., 1e6).description(""))
      ->capture_default_str()
      ->type_name("N");
  command
      .add_option("--default-model", options_.default_model,
                  "NAME: it answers requests that name a model that there is not (default: these get status 404)")
      ->type_name("NAME");
  command.add_flag("--require-model", options_.require_model,
                   "refuse requests that name no model (default: the first model answers them)");
  command
      .add_option(
          "--chat-template-kwargs", template_variables_,
          "a JSON object: variables of the chat template, as chat_template_kwargs of requests, which come first")
      ->type_name("JSON");
  command
      .add_option("--seed", options_.seed,
                  "what requests that name no seed draw from, so that they give the same again (default: random)")
      ->type_name("N");
  command
      .add_option("--prompt-lookup", options_.prompt_lookup,
                  "draft up to N tokens by copying from the text, and verify them in one run: other speed, same texts")
      ->check(CLI::Range(0, 64).description(""))
      ->capture_default_str()
      ->type_name("N");
  command.add_flag("--model-control", options_.model_control,
                   "let requests load and unload the models that are named here (POST /v1/models/load, /unload)");
  command
      .add_option("--load", load_first_,
                  "NAME: of the models, load this one at the start, and not all; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  count("--max-model-bytes", options_.max_model_bytes,
        "of the models that are loaded at once: weights, states and caches (default: no limit)");
  serve::RequestLimits& limits = options_.limits;
  const auto limit = [&](const char* flag, auto& value, const char* about) {
    count(flag, value, about)->capture_default_str()->group(kHttpGroup);
  };
  limit("--max-queue", limits.queue, "texts of a model that wait; beyond: status 429");
  limit("--max-texts", limits.prompts, "texts of a request: prompts times n");
  limit("--max-prompt-bytes", limits.prompt_bytes, "of the prompts of a request");
  limit("--max-body-bytes", options_.http.max_body_bytes, "of a request");
  limit("--max-header-bytes", options_.http.max_header_bytes, "of a request");
  limit("--max-connections", options_.http.max_connections, "clients at once");
  limit("--max-seconds", limits.seconds, "from a request to the end of its answer");
  limit("--drain-seconds", options_.drain_seconds, "that running requests get after SIGTERM");
  command.add_flag("!--no-request-log", options_.log_requests, "log no line for each request");
}

void ServeCommand::run() {
  if (!command_->parsed()) return;
  for (const std::string& model : models_) {
    options_.models.push_back(model_file(model));
    const std::string& name = options_.models.back().name;
    if (std::ranges::count(options_.models, name, &serve::ModelFile::name) > 1)
      throw CLI::ValidationError("MODEL", "two models have the name '" + name + "' (give others: name=FILE.pte)");
  }
  for (const std::string& given : tokenizers_) {
    const serve::ModelFile file = model_file(given);
    const auto model = std::ranges::find(options_.models, file.name, &serve::ModelFile::name);
    if (given.find('=') == std::string::npos || model == options_.models.end())
      throw CLI::ValidationError("--tokenizer", "'" + given + "' is not NAME=FILE with the name of a model");
    model->tokenizer = file.path;
  }
  for (const std::string& given : prefix_files_) {
    const std::size_t sign = given.find('=');
    const std::string name = sign == std::string::npos ? options_.models[0].name : given.substr(0, sign);
    const auto model = std::ranges::find(options_.models, name, &serve::ModelFile::name);
    if (model == options_.models.end() || (sign == std::string::npos && options_.models.size() > 1))
      throw CLI::ValidationError("--prefix-cache-file", "'" + given + "' is not NAME=FILE with the name of a model");
    model->prefix_cache_file = sign == std::string::npos ? given : given.substr(sign + 1);
  }
  std::vector<std::string> adapters;
  for (const std::string& given : adapters_) {
    const std::size_t sign = given.find('='), slash = given.find('/');
    const bool names_model = slash < sign;
    const std::string of = names_model ? given.substr(0, slash) : options_.models[0].name;
    const std::string name = given.substr(names_model ? slash + 1 : 0, sign - (names_model ? slash + 1 : 0));
    const auto model = std::ranges::find(options_.models, of, &serve::ModelFile::name);
    if (sign == std::string::npos || sign + 1 == given.size() || model == options_.models.end() ||
        !serve::is_model_name(name) || (!names_model && options_.models.size() > 1))
      throw CLI::ValidationError("--lora", "'" + given + "' is not [MODEL/]NAME=PATH with the name of a model");
    if (std::ranges::find(options_.models, name, &serve::ModelFile::name) != options_.models.end() ||
        std::ranges::find(adapters, name) != adapters.end())
      throw CLI::ValidationError("--lora", "two models or adapters have the name '" + name + "'");
    adapters.push_back(name);
    model->adapters.emplace_back(name, given.substr(sign + 1));
  }
  if (!options_.default_model.empty() && std::ranges::find(adapters, options_.default_model) == adapters.end() &&
      std::ranges::find(options_.models, options_.default_model, &serve::ModelFile::name) == options_.models.end())
    throw CLI::ValidationError("--default-model", "there is no model '" + options_.default_model + "'");
  if (!template_variables_.empty()) {
    try {
      options_.template_variables = serve::parse_object(template_variables_);
      serve::check_template_variables(options_.template_variables, "--chat-template-kwargs");
    } catch (const serve::ApiError& error) {
      throw CLI::ValidationError("--chat-template-kwargs", error.what());
    }
  }
  for (const std::string& name : load_first_) {
    if (std::ranges::find(options_.models, name, &serve::ModelFile::name) == options_.models.end())
      throw CLI::ValidationError("--load", "there is no model '" + name + "'");
    if (!options_.load_first) options_.load_first.emplace();
    options_.load_first->insert(name);
  }
  options_.batch.delay_seconds = batch_delay_ms_ / 1e3;
  options_.http.port = static_cast<std::uint16_t>(port_);
  options_.load = load_options_of(load_);
  options_.load.max_adapter_rank = max_adapter_rank_;
  options_.decoder.threads = load_.threads;
  if (!stages_.addresses.empty() && options_.models.size() > 1)
    throw CLI::ValidationError("--stages", "they are of one model; for several start several servers");
  options_.decoder.stages = stages_.options();
  options_.decoder.kv_type = kv_type_named(kv_type_);
  serve::serve(options_);
}

}  // namespace graft::cli
