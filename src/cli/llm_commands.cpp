#include "cli/llm_commands.h"

#include <CLI/CLI.hpp>

#include "cli/chat_server.h"

namespace graft::cli {
namespace {

constexpr const char* kGenerateNotes = R"(Examples:
  graft generate model.pte --prompt "Once upon a time" --max-new-tokens 200
  graft generate model.pte --prompt A --prompt B --do-sample --temperature 0.8 --top-p 0.95 --seed 7
  graft generate model.pte --messages chat.json --stats
  graft generate model.pte --lora sql=adapter --prompt A --prompt B --adapter sql --adapter -
  graft generate vlm.pte --image cat.png --prompt "What is this?"
  graft generate qwen2-audio.pte --audio speech.wav --prompt "What is said?"

The settings have Hugging Face's names and meaning. The token with the largest logit is taken unless --do-sample or a
--temperature above 0 is given; nothing is cut off unless --top-k, --top-p or --min-p says so. An empty prompt means the
token that begins a text. Pictures and sounds stand where the prompt has the model's token for them (<image>, <|AUDIO|>, ...);
where it has none it becomes a chat message that begins with them. With one prompt its text is streamed to stdout; with several, the texts follow when all are
done, a line "==> prompt N <==" before each. Ctrl-C ends the text (exit code 130).)";

constexpr const char* kChatNotes = R"(Examples:
  graft chat model.pte
  graft chat model.pte --system "Answer in one sentence." --temperature 0.7
  graft chat --server http://127.0.0.1:8080 --model qwen3

A line is a message. Ctrl-C stops the answer and keeps the session; "/clear" begins a new conversation; "/image FILE" or
"/audio FILE" gives the next message a picture or a sound, where the model takes them; Ctrl-D ends.)";

constexpr const char* kPerplexityNotes = R"(Examples:
  graft perplexity model.pte --text heldout.txt
  graft perplexity model-q8.pte --text heldout.txt --against model.pte

Each window of W tokens begins with an empty cache and scores the W tokens that follow each of its own. With --against,
also the mean of KL(reference || model) in nats and how often both have the same most likely token.)";

constexpr const char* kEmbedNotes = R"(Examples:
  graft embed minilm.pte --tokenizer tokenizer.json "A sentence" "Another one"
  graft embed minilm.pte --tokenizer tokenizer.json --output vectors.npy "A sentence"

The mean of the last hidden states over the tokens of each text, of length 1: one line of numbers for each.)";

constexpr const char* kTranscribeNotes = R"(Examples:
  graft transcribe whisper.pte speech.mp3
  graft transcribe whisper.pte lecture.flac --language de --format srt > lecture.srt
  graft transcribe whisper.pte talk.wav --task translate --fallback

Sound of any length and rate: WAV, FLAC or MP3; of several channels the mean. Text is printed as soon as its window of
30 seconds is done; other formats at the end.)";

constexpr const char* kSpeakNotes = R"(Examples:
  graft speak tts.pte --text "Hello, world!" -o hello.wav
  graft speak tts.pte --text-file story.txt --voice somebody.wav -o story.wav

Writes a WAV file of 16 bits at the model's rate. Long texts are spoken sentence by sentence. A voice is a file of WAV,
FLAC or MP3: some seconds of somebody who speaks.)";

void add_model_options(CLI::App& command, ModelArgs& args, bool cache) {
  add_load_options(command, args, "the package: a .pte file");
  command
      .add_option("--tokenizer", args.tokenizer,
                  "tokenizer.json, a folder with one, or a .gguf (default: the package's own)")
      ->type_name("FILE");
  if (!cache) return;
  add_kv_type_option(command, args.kv_type);
}

void add_decode_options(CLI::App& command, DecodeArgs& args) {
  GenerationOptions& options = args.options;
  const auto number = [&](const char* flag, auto& value, const char* about) {
    return command.add_option(flag, value, about)->type_name("N");
  };
  number("--max-new-tokens", options.max_new_tokens, "tokens to generate at most")->capture_default_str();
  command.add_flag("--do-sample", args.do_sample, "draw tokens by their probabilities (temperature 1 unless given)");
  number("--temperature", options.temperature,
         "divides the logits; 0: the most likely token (default: as the model says, else 0)");
  number("--top-k", options.top_k, "only the N most likely tokens");
  number("--top-p", options.top_p, "only the most likely tokens whose probabilities reach N");
  number("--min-p", options.min_p, "only tokens at least N times as probable as the most likely one");
  number("--repetition-penalty", options.repetition_penalty, "above 1: tokens that were there become less likely");
  number("--seed", options.seed, "seed of the random numbers; equal seeds give the same text")->capture_default_str();
  command.add_flag("--ignore-eos", options.ignore_eos, "do not stop at the token that ends a text");
  command.add_option("--eos-token-id", options.eos_token_ids, "a token that ends the text too; repeat for more")
      ->type_name("ID")
      ->allow_extra_args(false);
  command.add_option("--stop-strings", options.stop_strings, "the text ends before this string; repeat for more")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command.add_flag("--keep-special-tokens", args.keep_special_tokens, "show special tokens in the text");
  number("--prompt-lookup-num-tokens", options.prompt_lookup_num_tokens,
         "guess so many tokens from the text before and verify them in one run; the text stays the same");
  number("--max-matching-ngram-size", options.max_matching_ngram_size, "tokens that must match for a guess");
  number("--context", args.context, "tokens of the cache (default: what is needed, at most the model's context)")
      ->check(CLI::PositiveNumber.description(""));
  number("--prefill-chunk-size", args.prefill_chunk_size, "tokens of a prompt that are computed at once")
      ->check(CLI::PositiveNumber.description(""))
      ->capture_default_str();
  command
      .add_option("--buckets", args.buckets, "sizes that parts of a prompt are padded up to, so that they share plans")
      ->type_name("N,N,...")
      ->delimiter(',');
  command.add_flag("--stats", args.stats, "print speeds, plans and memory to stderr");
}

void add_adapter_options(CLI::App& command, DecodeArgs& args, const std::string& about_choice) {
  command
      .add_option("--lora", args.adapters,
                  "NAME=PATH: a LoRA adapter, a folder of peft's or a .gguf, beside the weights; repeat for more")
      ->type_name("NAME=PATH")
      ->allow_extra_args(false);
  command.add_option("--adapter", args.chosen, about_choice)->type_name("NAME")->allow_extra_args(false);
  add_adapter_rank_option(command, args.max_adapter_rank);
}

void note_given(const CLI::App& command, DecodeArgs& args) {
  for (const CLI::Option* option : command.get_options())
    if (option->count() > 0) args.given.push_back(option->get_name());
}

}  // namespace

GenerationOptions settled(const DecodeArgs& args, const LanguageModelInfo& model) {
  const auto given = [&](std::string_view flag) { return std::ranges::find(args.given, flag) != args.given.end(); };
  const GenerationOptions& own = model.generation;
  GenerationOptions options = args.options;
  if (args.do_sample && given("--temperature") && options.temperature == 0)
    throw CLI::ValidationError("--do-sample", "needs a --temperature above 0");
  if (!given("--temperature")) options.temperature = args.do_sample ? model.sampling_temperature : own.temperature;
  for (const char* filter : {"--top-k", "--top-p", "--min-p"})
    if (given(filter) && options.temperature == 0)
      throw CLI::ValidationError(filter, "plays a part only with --do-sample or a --temperature above 0");
  if (!given("--top-k")) options.top_k = own.top_k;
  if (!given("--top-p")) options.top_p = own.top_p;
  if (!given("--min-p")) options.min_p = own.min_p;
  if (!given("--repetition-penalty")) options.repetition_penalty = own.repetition_penalty;
  if (!given("--max-new-tokens")) options.max_new_tokens = own.max_new_tokens;
  options.skip_special_tokens = !args.keep_special_tokens;
  return options;
}

LlmCommands::LlmCommands(CLI::App& app) {
  generate_ = app.add_subcommand("generate", "Generate text with a language model.");
  generate_->footer(kGenerateNotes);
  add_model_options(*generate_, generate_args_.model, true);
  add_decode_options(*generate_, generate_args_.decode);
  add_adapter_options(
      *generate_, generate_args_.decode,
      "which of --lora answers, - for none; repeat for one per prompt (default: where there is one, it)");
  generate_->add_option("--prompt", generate_args_.prompts, "the text to continue; repeat for a batch")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  generate_->add_option("--prompt-file", generate_args_.prompt_file, "a file with the prompt; - for stdin")
      ->type_name("FILE");
  generate_
      ->add_option("--messages", generate_args_.messages_file,
                   R"(a JSON file with chat messages, [{"role": "user", "content": "..."}, ...]; - for stdin)")
      ->type_name("FILE");
  generate_
      ->add_option("--features", generate_args_.features_file,
                   "the encoder input of a model such as Whisper: f32 [mels, frames] or [batch, mels, frames]")
      ->type_name("FILE.npy");
  generate_
      ->add_option("--image", generate_args_.images,
                   "a picture of the prompt, for a model that takes them: PNG, JPEG or BMP; repeat for more")
      ->type_name("FILE")
      ->allow_extra_args(false);
  generate_
      ->add_option("--audio", generate_args_.audio,
                   "a sound of the prompt, for a model that takes it: WAV, FLAC or MP3; repeat for more")
      ->type_name("FILE")
      ->allow_extra_args(false);
  generate_
      ->add_option("--chat-template", generate_args_.chat_template, "a Jinja file, for --messages, --image and --audio")
      ->type_name("FILE");
  generate_->add_flag("--all-logits", generate_args_.all_logits,
                      "compute the logits of every token of the prompt, and print the sizes of all logits");

  chat_ = app.add_subcommand("chat", "Talk with a language model.");
  chat_->footer(kChatNotes);
  add_model_options(*chat_, chat_args_.model, true);
  chat_->get_option("FILE")->required(false);
  add_decode_options(*chat_, chat_args_.decode);
  add_adapter_options(*chat_, chat_args_.decode,
                      "which of --lora answers, - for none (default: where there is one, it)");
  chat_->add_option("--server", chat_args_.server, "talk with a model of this server, and load none")
      ->type_name("http://HOST:PORT");
  chat_->add_option("--model", chat_args_.server_model, "its name there (default: the server's first)")
      ->type_name("NAME");
  chat_->add_option("--api-key-file", chat_args_.api_key_file, "a file whose first line is the key for the server")
      ->type_name("FILE");
  chat_->add_option("--pictures", chat_args_.pictures, "of a chat with a model whose layers attend to them (MLlama)")
      ->check(CLI::PositiveNumber.description(""))
      ->capture_default_str()
      ->type_name("N");
  chat_->add_option("--system", chat_args_.system, "the first message, from the system")->type_name("TEXT");
  chat_->add_option("--chat-template", chat_args_.chat_template, "a Jinja file instead of the model's own")
      ->type_name("FILE");

  perplexity_ = app.add_subcommand("perplexity", "Measure how well a language model predicts a text.");
  perplexity_->footer(kPerplexityNotes);
  add_model_options(*perplexity_, perplexity_args_.model, true);
  perplexity_->add_option("--text", perplexity_args_.text, "a file with the text; - for stdin")
      ->required()
      ->type_name("FILE");
  perplexity_->add_option("--window", perplexity_args_.window, "tokens of a window")
      ->check(CLI::PositiveNumber.description(""))
      ->capture_default_str()
      ->type_name("N");
  perplexity_->add_option("--against", perplexity_args_.against, "another package to compare with")->type_name("FILE");

  embed_ = app.add_subcommand("embed", "Turn texts into embeddings with a text encoder.");
  embed_->footer(kEmbedNotes);
  add_model_options(*embed_, embed_args_.model, false);
  embed_->add_option("TEXT", embed_args_.texts, "the texts")->required()->type_name("");
  embed_->add_option("--output", embed_args_.output, "a .npy file [texts, size] in f32, instead of stdout")
      ->type_name("FILE.npy");

  transcribe_ = app.add_subcommand("transcribe", "Turn speech into text with a model such as Whisper or Parakeet.");
  transcribe_->footer(kTranscribeNotes);
  add_model_options(*transcribe_, transcribe_args_.model, false);
  TranscriptionOptions& options = transcribe_args_.options;
  transcribe_->add_option("AUDIO", transcribe_args_.audio, "the sound: a .wav, .flac or .mp3 file")
      ->required()
      ->type_name("");
  transcribe_->add_option("--format", transcribe_args_.format, "text, json, srt or vtt")
      ->check(CLI::IsMember(std::vector<std::string>{"text", "json", "srt", "vtt"}).description(""))
      ->capture_default_str()
      ->type_name("FORMAT");
  transcribe_->add_option("--language", options.language, "what is spoken, such as en (default: the model says)")
      ->type_name("CODE");
  transcribe_->add_option("--task", options.task, "transcribe, or translate to English")
      ->capture_default_str()
      ->type_name("TASK");
  transcribe_->add_option("--prompt", options.prompt, "text that comes before: names, spelling")->type_name("TEXT");
  transcribe_->add_flag("--condition-on-prev-tokens", options.condition_on_prev_tokens,
                        "each window begins with the text of those before");
  transcribe_->add_flag("--fallback", transcribe_args_.fallback,
                        "hear a window again at temperatures up to 1 where its text repeats itself or is unlikely, "
                        "with the thresholds of OpenAI's whisper");
  transcribe_->add_option("--seed", options.seed, "of temperatures above 0")->capture_default_str()->type_name("N");

  speak_ = app.add_subcommand("speak", "Turn text into speech with a model such as Pocket TTS.");
  speak_->footer(kSpeakNotes);
  add_load_options(*speak_, speak_args_.model, "the package: a .pte file");
  speak_->add_option("--text", speak_args_.text, "what is said")->type_name("TEXT");
  speak_->add_option("--text-file", speak_args_.text_file, "a file with it; - for stdin")->type_name("FILE");
  speak_->add_option("--voice", speak_args_.voice, "a sound of who speaks (default: the model's own)")
      ->type_name("FILE");
  speak_->add_option("-o,--output", speak_args_.output, "the .wav file to write")->required()->type_name("FILE.wav");
  speak_->add_option("--temperature", speak_args_.temperature, "variance of the noise (default: the model's)")
      ->type_name("T");
  speak_->add_option("--seed", speak_args_.seed, "of temperatures above 0")->capture_default_str()->type_name("N");
  speak_->add_option("--max-tokens", speak_args_.max_tokens, "the most tokens that are spoken at once")
      ->capture_default_str()
      ->type_name("N");
}

std::optional<int> LlmCommands::run() {
  if (generate_->parsed()) {
    note_given(*generate_, generate_args_.decode);
    return generate(generate_args_);
  }
  if (chat_->parsed()) {
    note_given(*chat_, chat_args_.decode);
    if (chat_args_.server.empty() == chat_args_.model.file.empty())
      throw CLI::ValidationError("FILE", "one of FILE and --server is needed");
    if (!chat_args_.server.empty()) check_server_flags(chat_args_.decode.given);
    for (const char* flag : {"--model", "--api-key-file"})
      if (chat_args_.server.empty() && chat_->count(flag) > 0)
        throw CLI::ValidationError(flag, "plays a part only with --server");
    return chat(chat_args_);
  }
  if (perplexity_->parsed()) return perplexity(perplexity_args_);
  if (embed_->parsed()) return embed(embed_args_);
  if (transcribe_->parsed()) return transcribe(transcribe_args_);
  if (speak_->parsed()) return speak(speak_args_);
  return std::nullopt;
}

}  // namespace graft::cli
