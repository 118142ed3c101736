#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "graft/adapter.h"
#include "graft/audio.h"
#include "graft/export.h"
#include "graft/graft.h"
#include "graft/grammar.h"
#include "graft/image.h"
#include "graft/tokenizer.h"

// Language models: text in, streamed text out.
//
//   auto model = graft::LanguageModel::load("model.pte");
//   graft::TextGenerator generator(model);
//   generator.generate(model->encode("Once upon a time"), {.max_new_tokens = 32},
//                      [](std::size_t, std::string_view text) { std::cout << text << std::flush; });
namespace graft {

namespace llm {
class Loop;
struct PreparedImages;
}  // namespace llm

// Key of the package's named data that describes its language model: JSON, written by graft.export_llm.
inline constexpr std::string_view kLanguageModelKey = "graft.llm.json";

// Named as in Hugging Face's GenerationConfig and meaning the same. The next token is drawn from the logits after
// repetition penalty, temperature, top-k, top-p and min-p, in this order.
struct GenerationOptions {
  std::int64_t max_new_tokens = 256;
  double temperature = 0;  // 0: greedy, the token with the largest logit
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  std::uint64_t seed = 0;  // row r of a batch draws from seed + r
  bool ignore_eos = false;
  std::vector<std::int64_t> eos_token_ids = {};  // besides the model's
  std::vector<std::string> stop_strings = {};    // the text ends before the first of them
  bool skip_special_tokens = true;
  std::vector<std::int64_t> kept_special_token_ids = {};  // those that are part of the text all the same
  // Speculative decoding by prompt lookup: up to this many tokens are drafted, by copying what followed an earlier
  // occurrence of the last tokens, and verified in one run; 0: none. Drafts change the speed, never the tokens.
  std::int64_t prompt_lookup_num_tokens = 0;
  std::int64_t max_matching_ngram_size = 2;
  // Of a model with LoadOptions::max_adapter_rank: one for all rows of the batch, or one per row; null: none. Keys and
  // values that one adapter has computed are never reused for another.
  std::vector<std::shared_ptr<const Adapter>> adapters = {};
};

// For a model of speech (Whisper): how sound becomes spectrograms, and the tokens that tell the decoder what to do.
struct SpeechInfo {
  std::int64_t sampling_rate = 16000, n_fft = 400, hop_length = 160, mels = 80;  // of log-mel spectrograms
  std::int64_t frames = 3000;                                                    // of a window: the encoder's input
  std::int64_t no_timestamps_id = 0;  // the time stamps are the tokens after it, 0.02 seconds apart
  std::optional<std::int64_t> previous_text_id, max_initial_timestamp_index;
  std::vector<std::pair<std::string, std::int64_t>> languages, tasks;    // "en", "transcribe"; none: one alone
  std::vector<std::int64_t> suppressed_tokens, suppressed_first_tokens;  // not generated; not as the first one
  std::int64_t max_length = 448;                                         // tokens of a window with its prompt
};

// For a model of speech without time stamps, whose encoder reads samples (Moonshine).
struct SpokenInfo {
  std::int64_t sampling_rate = 16000;
  bool normalize = false;                         // to zero mean and unit variance
  double tokens_per_second = 6.5;                 // the most of a text, with the token that begins it
  std::int64_t min_samples = 1, max_samples = 0;  // of a sound
};

// For a model with an encoder and a decoder (T5, BART, Whisper): the encoder's input, and how the decoder begins.
struct EncoderInfo {
  bool takes_features = false;      // spectrograms [B, mels, frames] or samples [B, n] in f32 instead of token ids
  std::int64_t context_length = 0;  // the most tokens that the encoder reads
  std::vector<std::int64_t> decoder_start_token_ids;
  std::optional<SpeechInfo> speech = {};
  std::optional<SpokenInfo> spoken = {};
};

// For a model of pictures and text (LLaVA, SmolVLM, Qwen-VL, Gemma 3): how pictures become the input of its tower, and
// what stands for them in a prompt.
struct ImagesInfo {
  // Tokens that see each other both ways: none, those of a picture, or those of a prompt with pictures.
  enum class Blocks { none, picture, prompt };
  std::variant<ImageProcessing, TileProcessing, PatchProcessing, CropProcessing, CanvasProcessing> processing;
  std::string token;          // in the text of a prompt, the place of a picture
  std::int64_t token_id = 0;  // of a placeholder: as many as the picture has rows of features
  std::int64_t rows = 0;      // of features, of a picture of one size, a tile or a crop; 0: by its patches
  std::int64_t width = 0;     // of a row
  std::string place;          // what stands for a picture where the text does not say
  std::string before, after;  // the placeholders of a picture in one piece
  std::string before_tiles;   // the first of several tiles
  std::string before_tile;    // each of them; "{row}" and "{column}" are their numbers, from 1 on
  std::string after_row;      // of tiles
  std::string before_whole;   // of the picture as a whole, behind its tiles; `after` follows it
  std::string placeholder;    // text of a placeholder; empty: `token`
  std::string after_last;     // behind the last picture of a prompt
  std::string end;            // of the text of a prompt with pictures
  bool add_special = true;    // whether the tokenizer's special tokens go around a prompt with pictures
  Blocks blocks = Blocks::none;
  // Layers of the decoder attend to the features (MLlama): a picture is one token, a token sees the pictures that were
  // named last before it, and `rows` are those of a tile.
  bool attended = false;
  std::string bos;  // begins a text that does not have it, behind the pictures that come first
};

// For a model whose tower takes a sound of any length as a whole (Phi-4 multimodal): frames of pre-emphasized samples
// under a Hamming window, mels of Kaldi's scale from 0 to `highest` Hz, and positions of `reduction` frames, which see
// each other within `chunk` positions.
struct WholeSoundInfo {
  std::int64_t win_length = 400;
  float preemphasis = 0.97F;
  double highest = 7690;
  std::int64_t reduction = 8, chunk = 500;
  std::int64_t states = 0;  // elements of a position
};

// For a model of sound and text (Qwen2-Audio, Voxtral, Phi-4 multimodal): how sound becomes the input of its tower, and
// what stands for it in a prompt.
struct AudioInfo {
  std::int64_t sampling_rate = 16000, n_fft = 400, hop_length = 160, mels = 80;  // of log-mel spectrograms
  std::int64_t frames = 3000;  // of a window: the tower's input; behind the sound there is silence. Of `whole` the most
  std::int64_t rows = 0;       // of features of a whole window; of `whole` 0: by its length
  std::int64_t width = 0;      // of a row
  // Features end where the sound does, which is of one window at most; otherwise there are windows as it needs, all of
  // them whole.
  bool ends_with_sound = false;
  std::string token;                         // in the text of a prompt, the place of a sound
  std::int64_t token_id = 0;                 // of a placeholder: as many as the sound has rows of features
  std::string place;                         // what stands for a sound where the text does not say
  std::optional<WholeSoundInfo> whole = {};  // there are no windows
};

// Of a model that was exported in stages: the layers of a package are a part of all.
struct StageInfo {
  std::int64_t stage = 0, stages = 1;  // which of how many
  std::string model;  // of which export: SHA-256 of its graphs and weights, the same for all its stages
  // A prompt in chunks has the bits of one in a single run: no layer of any stage has a window or a recurrent state.
  bool exact_chunks = false;
};

struct LanguageModelInfo {
  std::string architecture;  // "Qwen3ForCausalLM"
  std::string source;        // what was exported
  std::int64_t vocab_size = 0;
  std::int64_t context_length = 0;  // the most tokens of a sequence
  std::vector<std::int64_t> bos_token_ids, eos_token_ids;
  // Defaults from the model's generation_config.json, interpreted as in transformers: a model that does not sample
  // keeps its sampling settings here, with a temperature of 0.
  GenerationOptions generation = {};
  double sampling_temperature = 1;  // for callers that turn sampling on
  std::optional<EncoderInfo> encoder = {};
  std::optional<ImagesInfo> images = {};
  std::optional<AudioInfo> audio = {};
  std::optional<StageInfo> stage = {};  // the package is the first of several
  // Layers have states of all tokens of a row together (linear attention, convolutions): a row goes on or begins anew,
  // so that there are no drafts and no prefix cache. Set by LanguageModel.
  bool recurrent = false;
};

// Text and pictures, ready for a generator. Copies share the pictures.
struct ImagePrompt {
  std::vector<std::int64_t> tokens;                        // with placeholders
  std::shared_ptr<const llm::PreparedImages> images = {};  // null: there are none
};

// A program that takes token ids and gives logits, with its tokenizer. Immutable; shared by any number of threads.
class GRAFT_API LanguageModel {
 public:
  // A package of graft.export_llm; of one in stages the first. `tokenizer`: a path as Tokenizer::load takes it, instead
  // of the package's own. Throws InvalidArgument when the package is no language model or the tokenizer has another
  // vocabulary than the model.
  static std::shared_ptr<const LanguageModel> load(const std::string& path, const LoadOptions& options = {},
                                                   const std::string& tokenizer = {});
  // Whether a package describes a language model. Throws what Program::load throws for files that are no packages.
  static bool is_package(const std::string& path);
  // `tokenizer` may be null: for callers that use ids alone. Throws as load does.
  LanguageModel(std::shared_ptr<const Program> program, LanguageModelInfo info,
                std::shared_ptr<const Tokenizer> tokenizer);
  ~LanguageModel();

  const LanguageModelInfo& info() const;
  const std::shared_ptr<const Program>& program() const;
  bool has_tokenizer() const;
  // Throws NotFound when there is none.
  const std::shared_ptr<const Tokenizer>& tokenizer() const;
  // The token ids of a prompt, with the special tokens that the tokenizer adds. An empty prompt is BOS alone. Throws
  // InvalidArgument when the prompt is not UTF-8.
  std::vector<std::int64_t> encode(std::string_view prompt, bool add_special = true) const;
  // The same of a prompt with pictures, as the model's processor of transformers prepares them. ImagesInfo::token in
  // the prompt is the place of one; where it is nowhere, the pictures come first. Throws InvalidArgument when the model
  // takes no pictures, for another number of places than pictures, and for a picture of more tiles than the model
  // takes.
  ImagePrompt encode_with_images(std::string_view prompt, std::span<const Image> images, bool add_special = true) const;
  // The same of a prompt with sounds, at any rate, and AudioInfo::token.
  ImagePrompt encode_with_audio(std::string_view prompt, std::span<const Audio> audio, bool add_special = true) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

// Where the other stages of a model run: `graft stage`, one process each.
struct StageOptions {
  std::vector<std::string> addresses = {};  // of all but the first: "HOST:PORT", "[IPV6]:PORT" or "unix:PATH"
  std::string secret = {};                  // which both sides must know; empty: for Unix sockets
  double connect_seconds = 10;              // that the constructor waits for a stage that is not there yet
  double run_seconds = 600;                 // that a stage may take for its part of a run
};

struct DecoderOptions {
  int threads = 0;                        // as in SessionOptions
  std::int64_t rows = 1;                  // sequences side by side
  std::int64_t length = 0;                // tokens of the cache for each; 0: the model's context
  KvType kv_type = KvType::computed;      // how keys and values are stored
  std::int64_t prefill_chunk_size = 512;  // the most tokens of one run
  std::int64_t encoder_length = 0;        // tokens that the encoder reads, where there is one; 0: the model's most
  // Widths, ascending, up to prefill_chunk_size, that prompt runs of prefill() and score() are padded up to, so that
  // prompts of all lengths share as many plans; a run wider than the largest has its own width. Empty: every width is
  // its own. BatchGenerator reads prompts in runs of these widths; empty: prefill_chunk_size and halves of it.
  std::vector<std::int64_t> buckets = {};
  StageOptions stages = {};  // for a model in stages
  // Of a sequence of a model whose layers attend to pictures (MLlama): how many there is room for.
  std::int64_t pictures = 4;
};

// Sequences of tokens, one per row of a KV cache: tokens in, logits out. For one thread at a time: calls that compute
// or change a sequence throw Busy while another thread is in one, and InvalidArgument in a callback of one.
//
// Of a model in stages it runs the first, and sends what it gives through the others. Each decoder has a connection of
// its own to each, and a cache there; several decoders of a model, on as many threads, keep all stages at work. A stage
// that is lost has taken its part of the sequences along: the run throws Unavailable, all sequences of the decoder are
// empty after it, and the next run connects again.
class GRAFT_API Decoder {
 public:
  explicit Decoder(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options = {});
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  using Tokens = std::span<const std::int64_t>;

  // For a model with an encoder: encodes one input for each of the first sequences, and empties these. The inputs are
  // token ids, or features [B, mels, frames] or samples [B, n] in f32. The encoder output stays in the cache until the
  // next call. Throws InvalidArgument when the encoder takes no such inputs, ExecutionError for more tokens than
  // encoder_length.
  void encode(std::span<const Tokens> inputs, const RunOptions& options = {});
  void encode(const TensorView& features, const RunOptions& options = {});

  // Appends rows[r] to sequence r, for the first rows.size() sequences, in one run of `width` tokens per row: a row
  // with fewer is padded on its left, so equal widths share one plan, whatever the rows hold. Returns the logits of the
  // last `keep` positions of each row [rows, keep, vocabulary]; those of padding are unspecified. The caller may
  // overwrite them; they are valid until the next call. When it throws, no sequence has changed. Throws InvalidArgument
  // for an id outside the vocabulary and for sequences that would be longer than the cache, with both numbers.
  std::span<float> run(std::span<const Tokens> rows, std::int64_t width, std::int64_t keep,
                       const RunOptions& options = {});
  // As above, for any sequences: rows[b] is appended to sequence sequences[b]. Equal numbers of rows share a plan,
  // whichever rows they are. Throws InvalidArgument for a sequence that is named twice.
  std::span<float> run(std::span<const std::int64_t> sequences, std::span<const Tokens> rows, std::int64_t width,
                       std::int64_t keep, const RunOptions& options = {});
  // Plans and allocates for runs of this size without running: the first run is then as fast as the others.
  void prepare(std::int64_t rows, std::int64_t width, std::int64_t keep);
  // As run(), for rows of any length, in runs of at most prefill_chunk_size tokens. Returns the logits of the last
  // token of each row [rows, 1, vocabulary]. When it throws, the sequences are as before, or empty where a layer with a
  // window no longer holds what they need.
  std::span<float> prefill(std::span<const Tokens> rows, const RunOptions& options = {});
  // Appends to the first sequence and passes `take` the logits of every token [n, vocabulary], chunk by chunk, in
  // order.
  void score(Tokens tokens, const std::function<void(std::span<float> logits)>& take, const RunOptions& options = {});
  // The same of a prompt with pictures, which the first sequence then begins with: what it had is dropped.
  void score(const ImagePrompt& prompt, const std::function<void(std::span<float> logits)>& take,
             const RunOptions& options = {});

  // Number of tokens in a sequence.
  std::int64_t length(std::size_t row) const;
  std::int64_t capacity() const;
  const DecoderOptions& options() const;
  // Keeps the first `length` tokens of a sequence: 0, or at least shortest(row) of them.
  void truncate(std::size_t row, std::int64_t length);
  // The smallest length above 0 that a sequence can be truncated to. Layers with a window allow at most
  // prefill_chunk_size tokens to be taken back where older ones are lost; otherwise 1.
  std::int64_t shortest(std::size_t row);

  const LanguageModel& model() const;
  Session& session();

 private:
  friend class llm::Loop;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The probabilities [vocabulary] that the next token is drawn from, given its logits [vocabulary] and the tokens before
// it. Throws InvalidArgument for options that make no sense, such as a top_p above 1.
GRAFT_API std::vector<float> token_probabilities(std::span<const float> logits, std::span<const std::int64_t> tokens,
                                                 const GenerationOptions& options);

// complete: RequestOptions::mask lets nothing follow.
enum class FinishReason : std::uint8_t { length, eos, stop_string, context, cancelled, complete };
GRAFT_API std::string_view name(FinishReason reason);  // "length", "eos", ...

struct Generation {
  std::vector<std::int64_t> tokens;  // the new ones, including the EOS that ended them
  std::string text;
  FinishReason reason = FinishReason::length;
};

struct GenerationStats {
  std::int64_t prompt_tokens = 0;  // of all rows
  std::int64_t reused_tokens = 0;  // of these, in the cache already
  std::int64_t new_tokens = 0;
  std::int64_t decode_runs = 0;
  std::int64_t drafted_tokens = 0;  // guessed by prompt lookup
  std::int64_t accepted_tokens = 0;
  double prefill_seconds = 0;  // to the first token's logits
  double decode_seconds = 0;   // from there to the end
};

// Generates text. Prefix reuse: the cache keeps the tokens of the last call, and the prefix that a new prompt shares
// with them is not computed again. For one thread at a time.
class GRAFT_API TextGenerator {
 public:
  explicit TextGenerator(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options = {});
  TextGenerator(TextGenerator&&) noexcept;
  TextGenerator& operator=(TextGenerator&&) noexcept;
  ~TextGenerator();

  // Called with the row of the batch and new text of it, in whole UTF-8 characters.
  using OnText = std::function<void(std::size_t row, std::string_view text)>;

  // A batch, one generation per prompt. For a model with a text encoder the prompts are the encoder's input, and the
  // decoder begins with the model's start token; for one with a feature encoder they are the decoder's prefixes, after
  // decoder().encode(features). A prompt of no tokens, more prompts than rows, and a prompt longer than the cache throw
  // InvalidArgument. Where the cache ends before max_new_tokens, the generation ends with FinishReason::context.
  // `cancel` ends all that are not finished; what they have is returned. Throws Busy while another thread generates or
  // runs the decoder, and InvalidArgument when on_text calls it.
  std::vector<Generation> generate(std::span<const std::vector<std::int64_t>> prompts,
                                   const GenerationOptions& options = {}, const OnText& on_text = {},
                                   const CancelToken* cancel = nullptr);
  Generation generate(const std::vector<std::int64_t>& prompt, const GenerationOptions& options = {},
                      const OnText& on_text = {}, const CancelToken* cancel = nullptr);
  // The same of prompts with pictures, for a model that takes them. The tower runs when a picture's tokens are read:
  // not where the cache has them.
  std::vector<Generation> generate(std::span<const ImagePrompt> prompts, const GenerationOptions& options = {},
                                   const OnText& on_text = {}, const CancelToken* cancel = nullptr);
  Generation generate(const ImagePrompt& prompt, const GenerationOptions& options = {}, const OnText& on_text = {},
                      const CancelToken* cancel = nullptr);

  const GenerationStats& stats() const;  // of the last call
  Decoder& decoder();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// What a request to BatchGenerator may ask for besides GenerationOptions.
struct RequestOptions {
  // As in OpenAI's API, on the tokens generated so far: frequency_penalty is subtracted from a token's logit as often
  // as the token occurs, presence_penalty once. After the repetition penalty, before the temperature.
  double frequency_penalty = 0;
  double presence_penalty = 0;
  std::vector<std::pair<std::int64_t, float>> logit_bias = {};  // token, and what is added to its logit
  // Give the log-probability of each token, and of this many most likely ones at its position; empty: none. They are
  // those of the model, before penalties, biases and temperature.
  std::optional<std::int64_t> logprobs = {};
  bool prompt_logprobs = false;  // those of the prompt's tokens too, which is then computed whole; needs `logprobs`
  // A request continues only a prefix that one with the same salt left in the cache: callers that must not learn from
  // the time of an answer what others asked have different ones.
  std::uint64_t cache_salt = 0;
  // Requests of a smaller number get a row, and have their prompt read, before those of a larger one. What runs goes
  // on.
  std::int64_t priority = 0;
  // Of equal priority the next one is of the caller that has had the fewest tokens: those of prompts that were computed
  // count once, new ones twice. Of one caller it is the oldest.
  std::uint64_t caller = 0;
  // Which tokens may come next, at the beginning of its text and of this request alone: the last step before a token is
  // drawn. Null: all.
  std::shared_ptr<TokenMask> mask = {};
};

// What BatchGenerator keeps beside the rows of its cache: keys and values of all prefixes that its sequences have
// computed, in blocks of 64 tokens, for sequences that begin with the same tokens.
struct PrefixCacheOptions {
  std::uint64_t max_bytes = 0;  // 0: none
  // Keeps them there, for later processes too; empty: in memory. It holds what was asked and answered, and is readable
  // by its owner alone. One process at a time.
  std::string file = {};

  // What a block takes: the least that max_bytes may be. Throws what a Decoder of these throws.
  GRAFT_API static std::uint64_t block_bytes(const std::shared_ptr<const LanguageModel>& model,
                                             const DecoderOptions& decoder);
};

struct PrefixCacheStats {
  std::uint64_t blocks = 0, max_blocks = 0;  // there are, have room
  std::uint64_t block_bytes = 0;
  std::uint64_t stored = 0, evicted = 0, restored = 0;  // blocks, since construction
  std::uint64_t damaged = 0;                            // of the file: were not used
  std::string error = {};                               // why no more are kept: the file cannot be written
};

struct TokenLogprob {
  std::int64_t id = 0;
  float logprob = 0;  // natural logarithm; -infinity where the model's logit is, or is NaN
};

// What a request has so far. Of k = RequestOptions::logprobs most likely tokens each position has all, the most likely
// first.
struct RequestState {
  std::span<const std::int64_t> tokens;        // the new ones
  std::string_view text;                       // of these, as far as it is known
  std::span<const float> logprobs;             // [tokens]
  std::span<const TokenLogprob> top_logprobs;  // [tokens, k]
  // Of the prompt's tokens from the second on, as far as the prompt is read.
  std::span<const float> prompt_logprobs;
  std::span<const TokenLogprob> top_prompt_logprobs;  // [prompt_logprobs, k]
  std::int64_t reused_tokens = 0;                     // of the prompt, in the cache already
  std::optional<FinishReason> reason;                 // once it has ended
};

// Continuous batching: generates many sequences side by side, each with its own options. Requests join and leave
// between steps without a new plan. A step is one run: of a chunk of the next prompt that is not prefilled yet, at
// most DecoderOptions::prefill_chunk_size tokens, which gives the first token after it; or of one token (with drafts:
// several) of every sequence that has begun. Where there is both they take turns.
// DecoderOptions::rows sequences run at once; the rest wait (RequestOptions::priority, caller). Each result equals what
// TextGenerator gives for its prompt and options alone. A request starts in the cache row that shares the longest
// prefix with its prompt, and does not compute that prefix again, nor what PrefixCacheOptions has kept of it. Not for
// models with an encoder. For one thread at a time: calls throw Busy while another thread is in one.
class GRAFT_API BatchGenerator {
 public:
  // Throws Unsupported for a model with an encoder.
  explicit BatchGenerator(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options = {});
  // Throws, besides, InvalidArgument when the prefix cache has no room for a block or its file is something else,
  // SystemError when that cannot be opened, Busy when another process has it.
  BatchGenerator(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options,
                 const PrefixCacheOptions& prefix_cache);
  ~BatchGenerator();
  BatchGenerator(const BatchGenerator&) = delete;
  BatchGenerator& operator=(const BatchGenerator&) = delete;

  using Id = std::uint64_t;
  using OnText = std::function<void(std::string_view text)>;  // new text, in whole UTF-8 characters

  // Throws InvalidArgument for prompts and options as TextGenerator::generate does. May be called from on_text.
  Id submit(std::vector<std::int64_t> prompt, const GenerationOptions& options = {}, OnText on_text = {});
  // As above; throws InvalidArgument for request options that make no sense, too.
  Id submit(std::vector<std::int64_t> prompt, const GenerationOptions& options, const RequestOptions& request,
            OnText on_text = {});
  // The same of a prompt with pictures, for a model that takes them.
  Id submit(ImagePrompt prompt, const GenerationOptions& options, const RequestOptions& request, OnText on_text = {});
  // False when no request is left. When the run fails or is cancelled it throws and nothing has changed: the next step
  // tries again, but for Unavailable: then all requests that had a row have ended as cancelled, and the others wait. An
  // exception from on_text ends its request as cancelled and is thrown when the step is complete.
  // Throws InvalidArgument when on_text calls it.
  bool step(const RunOptions& options = {});
  // Ends a request with what it has; from on_text, when the step is over. False when it has ended already.
  bool cancel(Id id);
  // The result of a request that has ended, once; empty while it runs. Throws NotFound for an unknown id.
  std::optional<Generation> take(Id id);
  // The request until its result is taken. The views are valid until the next call of step(), cancel() or take().
  // Throws NotFound for an unknown id.
  RequestState state(Id id) const;
  // Makes all plans that steps can need, with drafts of this many tokens: no later step makes any, but for prompts with
  // log-probabilities.
  void prepare(std::int64_t prompt_lookup_num_tokens = 0);
  // Makes those for prompts with log-probabilities too.
  void prepare(std::int64_t prompt_lookup_num_tokens, bool prompt_logprobs);

  std::size_t waiting() const;           // have no row yet
  std::size_t running() const;           // have one
  const GenerationStats& stats() const;  // since construction; seconds by kind of run
  PrefixCacheStats prefix_cache() const;
  Decoder& decoder();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct ChatPart {
  std::string text = {};
  bool image = false;  // the place of a picture instead
  bool audio = false;  // or of a sound
};
struct ChatMessage {
  std::string role;  // "system", "user", "assistant", ...
  std::string content;
  std::vector<ChatPart> parts = {};  // instead of `content`, for a model that takes pictures or sound
};

// The prompt of a conversation: the chat template of the model's tokenizer, or `chat_template`, on the messages, ending
// where the answer begins. Throws InvalidArgument when there is no template, and for parts that are pictures where the
// model takes none.
GRAFT_API std::string chat_prompt(const LanguageModel& model, std::span<const ChatMessage> messages,
                                  std::string_view chat_template = {});

// The prompt of a question about pictures: a conversation of one message that begins with them, with the chat template
// of the model's tokenizer or `chat_template`. Where there is no template, or `text` has places of pictures itself
// (ImagesInfo::token), or there are no pictures, it is LanguageModel::encode_with_images. Throws what that and
// chat_prompt throw.
GRAFT_API ImagePrompt image_prompt(const LanguageModel& model, std::string_view text, std::span<const Image> images,
                                   std::string_view chat_template = {});
// The same of sounds.
GRAFT_API ImagePrompt audio_prompt(const LanguageModel& model, std::string_view text, std::span<const Audio> audio,
                                   std::string_view chat_template = {});

struct PerplexityOptions {
  std::int64_t window = 256;  // each window begins with an empty cache
  int threads = 0;
  KvType kv_type = KvType::computed;
  const CancelToken* cancel = nullptr;
  std::function<void(std::int64_t window, std::int64_t windows, double perplexity)> on_window = {};  // after each
};
struct Perplexity {
  std::int64_t windows = 0;
  std::int64_t scored = 0;  // tokens
  double perplexity = 0;
  // With a reference: KL(reference || model) in nats, mean over the scored tokens; how many have the same most likely
  // token; the reference's own perplexity.
  double mean_kl = 0;
  double top1_agreement = 0;
  double reference_perplexity = 0;
};
// A window of W tokens scores W tokens, the one that follows each of its own: all tokens but the first, and but the
// rest that fills no window, are scored. Throws InvalidArgument when `tokens` fills no window, or `reference` (may be
// null) has another vocabulary.
GRAFT_API Perplexity perplexity(const std::shared_ptr<const LanguageModel>& model, std::span<const std::int64_t> tokens,
                                const PerplexityOptions& options = {},
                                const std::shared_ptr<const LanguageModel>& reference = nullptr);

// Sentence embeddings with a text encoder such as MiniLM: a program with the inputs input_ids, attention_mask and,
// where it has it, token_type_ids [B, T], whose first output is the hidden states [B, T, H] or vectors [B, H].
class GRAFT_API TextEncoder {
 public:
  TextEncoder(std::shared_ptr<const Program> program, std::shared_ptr<const Tokenizer> tokenizer,
              const SessionOptions& options = {});
  TextEncoder(TextEncoder&&) noexcept;
  TextEncoder& operator=(TextEncoder&&) noexcept;
  ~TextEncoder();

  // Returns [texts.size(), size()], row-major: the mean over the tokens of each string, normalized to length 1. Strings
  // are truncated to the lengths that the program and the tokenizer's file allow.
  std::vector<float> embed(std::span<const std::string> texts, const RunOptions& options = {});
  // As above, of token ids as they are: no special tokens are added. Throws InvalidArgument for a string of no ids, and
  // for more ids or other ones than the program takes.
  std::vector<float> embed_ids(std::span<const std::vector<std::int64_t>> ids, const RunOptions& options = {});
  std::int64_t size() const;  // elements of a vector; 0 before the first call

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace graft
