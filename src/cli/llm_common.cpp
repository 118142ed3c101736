#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>

#include "cli/llm_commands.h"
#include "cli/text.h"

namespace graft::cli {
namespace {

// A signal handler takes no argument, so the token that it cancels is global.
std::atomic<const CancelToken*> interrupted{nullptr};
static_assert(std::atomic<const CancelToken*>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

extern "C" void on_interrupt(int) {
  if (const CancelToken* token = interrupted.load()) token->cancel();
}

}  // namespace

CancelOnInterrupt::CancelOnInterrupt(const CancelToken& token) {
  interrupted = &token;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

CancelOnInterrupt::~CancelOnInterrupt() {
  std::signal(SIGINT, SIG_DFL);
  interrupted = nullptr;
}

std::shared_ptr<const LanguageModel> load_model(const ModelArgs& args, const DecodeArgs* decode) {
  LoadOptions options = load_options_of(args);
  if (decode != nullptr && !decode->adapters.empty()) options.max_adapter_rank = decode->max_adapter_rank;
  return LanguageModel::load(args.file, options, args.tokenizer);
}

std::vector<std::shared_ptr<const Adapter>> load_adapters(const DecodeArgs& args,
                                                          const std::shared_ptr<const LanguageModel>& model,
                                                          std::size_t prompts) {
  Adapters adapters(model->program());
  for (const std::string& given : args.adapters) {
    const auto named = key_and_value(given);
    if (!named || named->second.empty()) throw CLI::ValidationError("--lora", "'" + given + "' is not NAME=PATH");
    const auto& [name, path] = *named;
    if (adapters.has(name)) throw CLI::ValidationError("--lora", "two adapters have the name '" + name + "'");
    adapters.load(name, path);
  }
  const std::vector<std::string> names = adapters.names();
  std::vector<std::string> chosen = args.chosen;
  if (chosen.empty() && names.size() > 1)
    throw CLI::ValidationError("--adapter", "which of the adapters of --lora answers? (--adapter NAME, - for none)");
  if (chosen.empty()) chosen = names;
  if (chosen.size() > 1 && chosen.size() != prompts)
    throw CLI::ValidationError("--adapter",
                               str("expected one, or one for each of ", prompts, " prompts, found ", chosen.size()));
  std::vector<std::shared_ptr<const Adapter>> out;
  for (const std::string& name : chosen) {
    if (name != "-" && !adapters.has(name))
      throw CLI::ValidationError("--adapter", "there is no '" + name + "' among those of --lora");
    out.push_back(name == "-" ? nullptr : adapters.find(name));
  }
  return out;
}

DecoderOptions decoder_options(const ModelArgs& model, const DecodeArgs& decode, std::int64_t rows,
                               std::int64_t length) {
  DecoderOptions options;
  options.threads = model.threads;
  options.kv_type = kv_type_named(model.kv_type);
  options.rows = rows;
  options.length = length;
  options.prefill_chunk_size = decode.prefill_chunk_size;
  options.buckets = decode.buckets;
  return options;
}

std::string read_text(const std::string& path) {
  const auto all = [](std::istream& in) {
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  };
  if (path == "-") return all(std::cin);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail<NotFound>("cannot read '", path, "'");
  std::string text = all(file);
  if (file.bad()) fail<SystemError>("cannot read '", path, "'");
  return text;
}

void print_stats(TextGenerator& generator, const Speeds& speeds) {
  const GenerationStats& stats = generator.stats();
  const Counters& counters = generator.decoder().session().counters();
  const auto rate = [](std::int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
  };
  const std::int64_t computed = stats.prompt_tokens - stats.reused_tokens;
  // The first token of each row comes from the prefill.
  const std::int64_t decoded = std::max<std::int64_t>(stats.new_tokens - generator.decoder().options().rows, 0);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  Table table({{"", Table::Align::left}, {"", Table::Align::right}, {"", Table::Align::left}});
  if (speeds.load_seconds > 0) table.add({"load", fixed(speeds.load_seconds, 3), "s"});
  table.add({"time to first token", fixed(speeds.first_token_seconds, 3), "s"});
  table.add({str("prefill, ", computed, " tokens"), fixed(rate(computed, stats.prefill_seconds), 1), "tokens/s"});
  if (stats.reused_tokens > 0) table.add({"in the cache before", std::to_string(stats.reused_tokens), "tokens"});
  table.add({str("decode, ", decoded, " tokens"), fixed(rate(decoded, stats.decode_seconds), 1), "tokens/s"});
  if (stats.drafted_tokens > 0)
    table.add({"drafts accepted", str(stats.accepted_tokens, " of ", stats.drafted_tokens), "tokens"});
  table.add({"runs", str(counters.runs), ""});
  const ProgramStats program = generator.decoder().session().program().stats();
  table.add({"plans made", str(program.plans_made), ""});
  if (program.plans_loaded > 0) table.add({"plans taken from the package", str(program.plans_loaded), ""});
  table.add({"plans instantiated", str(counters.graphs_built), ""});
  table.add({"cache of keys and values", bytes_text(counters.state_bytes), "reserved"});
  table.add({"peak memory of the process", bytes_text(static_cast<std::uint64_t>(usage.ru_maxrss) * 1024), ""});
  std::cerr << "\n" << table.text(2);
}

}  // namespace graft::cli
