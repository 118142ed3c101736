#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/load_args.h"
#include "graft/speaker.h"
#include "graft/transcriber.h"

// The commands for language models: generate, chat, perplexity, embed, transcribe, speak. Text goes to stdout,
// everything else to stderr.
namespace graft::cli {

struct ModelArgs : LoadArgs {
  std::string tokenizer;
  std::string kv_type = "computed";
};

struct DecodeArgs {
  std::vector<std::string> adapters;  // NAME=PATH
  std::vector<std::string> chosen;    // of their names: one for all prompts, or one per prompt; "-": none
  std::int64_t max_adapter_rank = kAdapterRank;
  GenerationOptions options;       // see settled()
  std::vector<std::string> given;  // flags on the command line
  bool do_sample = false;
  bool keep_special_tokens = false;
  std::int64_t context = 0;  // 0: as much as needed
  std::int64_t prefill_chunk_size = DecoderOptions{}.prefill_chunk_size;
  std::vector<std::int64_t> buckets;
  bool stats = false;
};

struct GenerateArgs {
  ModelArgs model;
  DecodeArgs decode;
  std::vector<std::string> prompts;
  std::string prompt_file;
  std::string messages_file;
  std::vector<std::string> images, audio;  // of one prompt, of a model that takes pictures or sound
  std::string features_file;               // of a model with an encoder of features, a .npy
  std::string chat_template;
  bool all_logits = false;
};

struct ChatArgs {
  ModelArgs model;
  DecodeArgs decode;
  std::string system;
  std::string chat_template;
  std::string server;        // its URL; empty: the model is loaded here
  std::string server_model;  // its name there; empty: the server's first
  std::string api_key_file;
  std::int64_t pictures = DecoderOptions{}.pictures;
};

struct PerplexityArgs {
  ModelArgs model;
  std::string text;
  std::string against;
  std::int64_t window = PerplexityOptions{}.window;
};

struct EmbedArgs {
  ModelArgs model;
  std::vector<std::string> texts;
  std::string output;
};

struct TranscribeArgs {
  ModelArgs model;
  std::string audio;
  std::string format = "text";
  TranscriptionOptions options;
  bool fallback = false;  // to other temperatures
};

// Return the exit code; throw graft::Error.
struct SpeakArgs {
  LoadArgs model;
  std::string text, text_file, voice, output;
  std::optional<double> temperature;
  std::uint64_t seed = 0;
  std::int64_t max_tokens = SpeakingOptions{}.max_tokens;
};

int generate(const GenerateArgs& args);
int chat(const ChatArgs& args);
int perplexity(const PerplexityArgs& args);
int embed(const EmbedArgs& args);
int transcribe(const TranscribeArgs& args);
int speak(const SpeakArgs& args);

// The given options, with defaults from the model's generation_config.json. Throws CLI::ParseError when they contradict
// each other.
GenerationOptions settled(const DecodeArgs& args, const LanguageModelInfo& model);

// Their options on the command line.
class LlmCommands {
 public:
  explicit LlmCommands(CLI::App& app);
  // Runs the given command and returns its exit code; empty when it was none of these. Throws CLI::ParseError for
  // options that contradict each other.
  std::optional<int> run();

 private:
  CLI::App* generate_ = nullptr;
  CLI::App* chat_ = nullptr;
  CLI::App* perplexity_ = nullptr;
  CLI::App* embed_ = nullptr;
  CLI::App* transcribe_ = nullptr;
  CLI::App* speak_ = nullptr;
  GenerateArgs generate_args_;
  ChatArgs chat_args_;
  PerplexityArgs perplexity_args_;
  EmbedArgs embed_args_;
  TranscribeArgs transcribe_args_;
  SpeakArgs speak_args_;
};

// --- for the commands ---

inline constexpr int kInterrupted = 130;  // exit code, as shells have it for Ctrl-C

// `decode`: of a command that takes adapters.
std::shared_ptr<const LanguageModel> load_model(const ModelArgs& args, const DecodeArgs* decode = nullptr);
// Loads the adapters, and gives those of so many prompts: GenerationOptions::adapters. Throws CLI::ParseError for names
// that there are not.
std::vector<std::shared_ptr<const Adapter>> load_adapters(const DecodeArgs& args,
                                                          const std::shared_ptr<const LanguageModel>& model,
                                                          std::size_t prompts);
DecoderOptions decoder_options(const ModelArgs& model, const DecodeArgs& decode, std::int64_t rows,
                               std::int64_t length);
std::string read_text(const std::string& path);  // "-": stdin

struct Speeds {
  double load_seconds = 0;
  double first_token_seconds = 0;  // from the start of the program's work
};
void print_stats(TextGenerator& generator, const Speeds& speeds);

// While it lives, Ctrl-C cancels the token instead of ending the process. One at a time.
class CancelOnInterrupt {
 public:
  explicit CancelOnInterrupt(const CancelToken& token);
  ~CancelOnInterrupt();
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;
};

}  // namespace graft::cli
