#include <algorithm>
#include <bit>
#include <numeric>

#include "base/check.h"
#include "base/rethrow.h"
#include "graft/adapter.h"
#include "llm/decoder_impl.h"

namespace graft {
namespace {

constexpr std::string_view kMethod = "step", kEncode = "encode";
constexpr std::int64_t kPadding = -1;  // cache_position of padding
constexpr std::int64_t kMostPictures = 1 << 10;
// Sizes of runs that buffers and graphs are kept for. A sequence takes four (a prefill chunk, the rest of a prompt, a
// step, a step with drafts); BatchGenerator takes a few prompt widths, and one size of step per batch size.
constexpr std::size_t kCalls = 32;
// Tokens of a piece of a prompt that stages get one after the other; those of fewer have one of the narrower widths. So
// many have the bits of a whole prompt: fewer queries have a kernel of their own (Decoder.RunsOfNineTokens...).
constexpr std::int64_t kPiece = 64, kNarrowestPiece = 16, kFewestOfPiece = 9;

// The most tokens up to `count` that a run may have without cutting off some that see each other; where there are none,
// the fewest above.
template <typename Cuts>
std::int64_t nearest_uncut(std::int64_t count, const Cuts& cuts) {
  for (std::int64_t fewer = count; fewer > 0; --fewer)
    if (!cuts(fewer)) return fewer;
  while (cuts(count)) ++count;
  return count;
}

DecoderOptions checked(DecoderOptions options, const LanguageModel* model) {
  GRAFT_CHECK(InvalidArgument, model, "a decoder needs a model");
  const LanguageModelInfo& info = model->info();
  if (options.length == 0) options.length = info.context_length;
  GRAFT_CHECK(InvalidArgument, options.length >= 1 && options.length <= info.context_length, "a cache of ",
              options.length, " tokens: the model's context is ", info.context_length);
  GRAFT_CHECK(InvalidArgument, options.rows >= 1, "a cache has at least 1 row, got ", options.rows);
  GRAFT_CHECK(InvalidArgument, options.prefill_chunk_size >= 1, "prefill_chunk_size must be at least 1, got ",
              options.prefill_chunk_size);
  for (std::size_t i = 0; i < options.buckets.size(); ++i) {
    const std::int64_t before = i == 0 ? 0 : options.buckets[i - 1], width = options.buckets[i];
    GRAFT_CHECK(InvalidArgument, width > before && width <= std::min(options.prefill_chunk_size, info.context_length),
                "buckets must ascend from 1 to at most prefill_chunk_size, ", options.prefill_chunk_size,
                ", and the model's context, ", info.context_length, ", got ", width, " after ", before);
  }
  GRAFT_CHECK(InvalidArgument, options.encoder_length >= 0, "encoder_length is ", options.encoder_length);
  GRAFT_CHECK(InvalidArgument, info.stage || options.stages.addresses.empty(),
              "addresses of stages were given, and the model is in one piece");
  if (info.encoder && options.encoder_length == 0) options.encoder_length = info.encoder->context_length;
  GRAFT_CHECK(InvalidArgument, options.pictures >= 1 && options.pictures <= kMostPictures,
              "pictures must be from 1 to ", kMostPictures, ", got ", options.pictures);
  return options;
}

// The first piece of a prompt: what is left of it then is divided into whole pieces, or has enough tokens itself.
std::int64_t first_piece(std::int64_t tokens) {
  const std::int64_t rest = tokens % kPiece;
  if (tokens <= kPiece || rest == 0) return std::min(tokens, kPiece);
  return rest < kFewestOfPiece ? rest + kNarrowestPiece : rest;
}

std::int64_t piece_width(std::int64_t tokens) {
  return std::max(kNarrowestPiece, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tokens))));
}

// Pictures that layers of the model attend to.
const ImagesInfo* attended(const LanguageModel& model) {
  const auto& images = model.info().images;
  return images && images->attended ? &*images : nullptr;
}

SessionOptions session_options(const DecoderOptions& options, const stage::FirstStage* first,
                               const ImagesInfo* attended = nullptr) {
  SessionOptions session;
  if (first) session.arena = first->arena;
  session.threads = options.threads;
  session.max_graphs = kCalls;
  session.kv = {options.rows, options.length, options.kv_type, std::min(options.prefill_chunk_size, options.length)};
  if (attended) session.kv.encoder_length = llm::source_rows(*attended, options.pictures);
  return session;
}

// Of a call of one row: without the rows of the cache, and with that row's adapter.
RunOptions of_row(RunOptions options, std::size_t row) {
  options.kv_rows = {};
  if (options.adapters.size() > 1) options.adapters = options.adapters.subspan(row, 1);
  return options;
}

}  // namespace

Decoder::Impl::Impl(std::shared_ptr<const LanguageModel> language_model, const DecoderOptions& decoder_options)
    : model(std::move(language_model)),
      features_info(model ? llm::features_of(model->info()) : std::nullopt),
      options(checked(decoder_options, model.get())),
      first_stage(model->info().stage ? stage::first_stage_of(model->info().stage->model) : nullptr),
      session(model->program(), session_options(options, first_stage.get(), attended(*model))),
      lengths_(static_cast<std::size_t>(options.rows), 0) {
  session.kv_lengths();  // a program without a cache is refused here
  calls_.reserve(kCalls);
  chunks_.reserve(lengths_.size());
  first_.resize(lengths_.size());
  std::iota(first_.begin(), first_.end(), 0);
  shortest_.resize(lengths_.size(), 1);
  images_.resize(lengths_.size());
  sources_.resize(lengths_.size());
  if (const auto& first = model->info().stage)
    chain_ = std::make_unique<stage::Chain>(*first, options.stages, session_options(options, first_stage.get()).kv);
}

template <typename Work>
auto Decoder::Impl::with_stages(const Work& work) {
  try {
    return work();
  } catch (...) {
    if (!chain_->connected()) lose();
    throw;
  }
}

void Decoder::Impl::connect() {
  if (chain_) with_stages([&] { chain_->ready(); });
}

void Decoder::Impl::lose() noexcept {
  if (chain_) chain_->close();
  std::ranges::fill(lengths_, 0);
  std::ranges::fill(shortest_, 1);
  std::ranges::fill(images_, Images());
  std::ranges::fill(sources_, Source());
}

void Decoder::Impl::check(std::span<const std::int64_t> sequences, std::span<const Tokens> rows) const {
  GRAFT_CHECK(InvalidArgument, !rows.empty() && rows.size() <= lengths_.size(), "a batch of ", rows.size(),
              " sequences: the cache has ", lengths_.size(), " rows");
  const std::int64_t vocabulary = llm::input_ids(model->info());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t sequence = sequences[r];
    GRAFT_CHECK(InvalidArgument, sequence >= 0 && sequence < std::ssize(lengths_), "the cache has ", lengths_.size(),
                " rows, got row ", sequence);
    const std::int64_t length = lengths_[static_cast<std::size_t>(sequence)] + std::ssize(rows[r]);
    GRAFT_CHECK(InvalidArgument, length <= options.length, "sequence ", sequence, " would have ", length,
                " tokens, the context has room for ", options.length);
    for (const std::int64_t id : rows[r])
      GRAFT_CHECK(InvalidArgument, id >= 0 && id < vocabulary, "token ", id, " is not in the vocabulary of ",
                  vocabulary, " tokens");
  }
}

void Decoder::Impl::encode(std::span<const Tokens> encoder_inputs, const RunOptions& run_options) {
  const auto& encoder = model->info().encoder;
  GRAFT_CHECK(InvalidArgument, encoder && !encoder->takes_features, "the model has no encoder of token ids");
  GRAFT_CHECK(InvalidArgument, !encoder_inputs.empty() && encoder_inputs.size() <= lengths_.size(), "a batch of ",
              encoder_inputs.size(), " encoder inputs: the cache has ", lengths_.size(), " rows");
  std::size_t width = 0;
  for (const Tokens input : encoder_inputs) {
    GRAFT_CHECK(InvalidArgument, !input.empty(), "an encoder input has no tokens");
    width = std::max(width, input.size());
  }
  std::vector<std::int64_t> ids(encoder_inputs.size() * width, 0), mask(ids.size(), 0);
  for (std::size_t r = 0; r < encoder_inputs.size(); ++r) {
    std::ranges::copy(encoder_inputs[r], ids.begin() + static_cast<std::ptrdiff_t>(r * width));
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(r * width), encoder_inputs[r].size(), 1);
  }
  const Shape shape{std::ssize(encoder_inputs), static_cast<std::int64_t>(width)};
  const Value inputs[] = {Value::of(TensorView{ids.data(), DType::i64, shape}),
                          Value::of(TensorView{mask.data(), DType::i64, shape})};
  encode(inputs, encoder_inputs.size(), run_options);
}

void Decoder::Impl::encode(const TensorView& features, const RunOptions& run_options) {
  const auto& encoder = model->info().encoder;
  GRAFT_CHECK(InvalidArgument, encoder && encoder->takes_features, "the model has no encoder of features");
  const int rank = encoder->spoken ? 2 : 3;
  GRAFT_CHECK(InvalidArgument,
              features.shape.rank() == rank && features.shape[0] >= 1 && features.shape[0] <= std::ssize(lengths_),
              "features must be ", encoder->spoken ? "samples [B, n]" : "[B, mels, frames]",
              " with a batch of at most ", lengths_.size(), ", the rows of the cache");
  const Value input = Value::of(features);
  encode({&input, 1}, static_cast<std::size_t>(features.shape[0]), run_options);
}

void Decoder::Impl::encode(std::span<const Value> inputs, std::size_t rows, const RunOptions& run_options) {
  std::fill_n(lengths_.begin(), rows, 0);
  session.run(kEncode, inputs, run_options);
}

void Decoder::Impl::place_images(std::size_t row, std::shared_ptr<const llm::PreparedImages> images) {
  if (images_[row].prepared != images) images_[row] = {std::move(images), {}};
}

bool Decoder::Impl::see_images(std::span<const std::int64_t> sequences, std::span<const Tokens> rows,
                               const RunOptions& run_options) {
  if (features_info && features_info->attended) return store_images(sequences, rows, run_options);
  bool any = false;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto sequence = static_cast<std::size_t>(sequences[r]);
    Images& images = images_[sequence];
    if (!images.prepared || rows[r].empty()) continue;
    const std::int64_t first = lengths_[sequence], end = first + std::ssize(rows[r]);
    if (first >= images.prepared->end) {
      images.features = {};
    } else if (end > images.prepared->begin) {
      any = true;
      if (!images.features.empty()) continue;
      const RunOptions of_tower = of_row(run_options, r);
      const LanguageModelInfo& info = model->info();
      images.features = images.prepared->sounds ? llm::encode_audio(session, *info.audio, *images.prepared, of_tower)
                                                : llm::encode_images(session, *info.images, *images.prepared, of_tower);
    }
  }
  return any;
}

void Decoder::Impl::check_room(const llm::PreparedImages& images) const {
  GRAFT_CHECK(InvalidArgument, images.ranges.empty() || std::ssize(images.images) <= options.pictures,
              "a sequence has ", images.images.size(), " pictures, there is room for ", options.pictures,
              " (DecoderOptions::pictures)");
}

bool Decoder::Impl::store_images(std::span<const std::int64_t> sequences, std::span<const Tokens> rows,
                                 const RunOptions& run_options) {
  bool any = false;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto sequence = static_cast<std::size_t>(sequences[r]);
    const llm::PreparedImages* prepared = images_[sequence].prepared.get();
    if (!prepared || rows[r].empty()) continue;
    any = true;
    const RunOptions of_store = of_row(run_options, r);
    const Adapter* adapter = of_store.adapters.empty() ? nullptr : of_store.adapters[0];
    const Source wanted{prepared->digest, adapter ? adapter->id() : 0, true};
    Source& source = sources_[sequence];
    if (source.whole && source.digest == wanted.digest && source.adapter == wanted.adapter) continue;
    check_room(*prepared);
    source.whole = false;
    llm::store_images(session, *model->info().images, *prepared, sequences[r], of_store);
    source = wanted;
  }
  return any;
}

void Decoder::Impl::place_ranges(Call& call, std::size_t sequence, std::size_t row, std::size_t at,
                                 std::size_t count) const {
  const auto row_begin = row * static_cast<std::size_t>(call.width);
  for (std::size_t i = row_begin; i < row_begin + static_cast<std::size_t>(call.width); ++i) {
    call.blocks[2 * i] = 0;
    call.blocks[2 * i + 1] = -1;
    call.image_mask[i] = 0;
  }
  const llm::PreparedImages* prepared = images_[sequence].prepared.get();
  if (!prepared) return;
  const auto first = static_cast<std::size_t>(lengths_[sequence]);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t token = std::min(first + i, prepared->sees.size() - 1);
    for (const std::size_t side : {0u, 1u}) call.blocks[2 * (at + i) + side] = prepared->ranges[2 * token + side];
    call.image_mask[at + i] = prepared->sees[token];
  }
}

void Decoder::Impl::place(Call& call, std::size_t sequence, std::size_t row, std::size_t at, std::size_t count) const {
  const Images& images = images_[sequence];
  const auto first = static_cast<std::size_t>(lengths_[sequence]);
  const llm::PreparedImages* prepared = images.prepared.get();
  const std::size_t known = prepared ? prepared->feature_of.size() : 0;
  const std::size_t axes = call.positions.size() / call.ids.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t token = first + i;
    for (std::size_t axis = 0; axis < axes; ++axis)
      call.positions[axis * call.ids.size() + at + i] =
          prepared && !prepared->positions.empty() && token < known
              ? prepared->positions[axis * known + token]
              : static_cast<std::int64_t>(token) + (prepared ? prepared->shift : 0);
  }
  if (!call.with_images) return;
  if (features_info->attended) return place_ranges(call, sequence, row, at, count);
  for (std::size_t i = 0; i < count && !call.blocks.empty(); ++i)
    for (const std::size_t side : {0u, 1u})
      call.blocks[2 * (at + i) + side] =
          first + i < known ? prepared->blocks[2 * (first + i) + side] : static_cast<std::int64_t>(first + i);
  const auto width = static_cast<std::size_t>(features_info->width);
  const auto row_begin = row * static_cast<std::size_t>(call.width);
  std::fill_n(call.image_mask.begin() + static_cast<std::ptrdiff_t>(row_begin), call.width, std::uint8_t{0});
  std::fill_n(call.features.begin() + static_cast<std::ptrdiff_t>(row_begin * width),
              static_cast<std::size_t>(call.width) * width, 0.F);
  for (std::size_t i = 0; i < count && first + i < known; ++i) {
    const std::int64_t feature = prepared->feature_of[first + i];
    if (feature < 0) continue;
    call.image_mask[at + i] = 1;
    std::copy_n(images.features.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(feature) * width), width,
                call.features.begin() + static_cast<std::ptrdiff_t>((at + i) * width));
  }
}

Decoder::Impl::Call& Decoder::Impl::call_for(std::int64_t batch, std::int64_t width, std::int64_t keep,
                                             bool with_images) {
  ++clock_;
  for (Call& call : calls_)
    if (call.batch == batch && call.width == width && call.keep == keep && call.with_images == with_images) {
      call.used = clock_;
      return call;
    }
  if (calls_.size() == kCalls)
    calls_.erase(std::ranges::min_element(calls_, {}, [](const Call& call) { return call.used; }));
  Call call;  // kept once it is complete
  call.batch = batch;
  call.width = width;
  call.keep = keep;
  call.with_images = with_images;
  call.used = clock_;
  const auto positions = static_cast<std::size_t>(batch * width);
  for (auto* ids : {&call.ids, &call.positions, &call.cache_positions}) {
    // With pictures on a grid a token has three positions.
    const bool on_grid = ids == &call.positions && with_images && features_info->on_grid;
    ids->resize(positions * (on_grid ? 3 : 1));
    const Shape shape = on_grid ? Shape{3, batch, width} : Shape{batch, width};
    call.inputs.push_back(Value::of(TensorView{ids->data(), DType::i64, shape}));
  }
  for (std::int64_t k = width - keep; k < width; ++k) call.kept.push_back(k);
  call.inputs.push_back(Value::of(TensorView{call.kept.data(), DType::i64, Shape{keep}}));
  if (with_images && features_info->attended) {
    call.blocks.resize(2 * positions);
    call.image_mask.resize(positions);
    call.inputs.push_back(Value::of(TensorView{call.blocks.data(), DType::i64, Shape{batch, width, 2}}));
    call.inputs.push_back(Value::of(TensorView{call.image_mask.data(), DType::b8, Shape{batch, width}}));
  } else if (with_images) {
    const std::int64_t size = features_info->width;
    call.features.resize(positions * static_cast<std::size_t>(size));
    call.image_mask.resize(positions);
    call.inputs.push_back(Value::of(TensorView{call.features.data(), DType::f32, Shape{batch, width, size}}));
    call.inputs.push_back(Value::of(TensorView{call.image_mask.data(), DType::b8, Shape{batch, width}}));
    if (features_info->blocks) {
      call.blocks.resize(2 * positions);
      call.inputs.push_back(Value::of(TensorView{call.blocks.data(), DType::i64, Shape{batch, width, 2}}));
    }
  }
  const std::int64_t vocabulary = model->info().vocab_size;
  const auto count = chain_ ? 0 : static_cast<std::size_t>(batch * keep * vocabulary);
  if (logits_.size() < count) logits_ = std::vector<float>(count);
  call.outputs.push_back(Value::of(TensorView{nullptr, DType::f32, Shape{batch, keep, vocabulary}}));
  calls_.push_back(std::move(call));  // the capacity is there, and its inputs stay where they are
  return calls_.back();
}

void Decoder::Impl::prepare(std::int64_t rows, std::int64_t width, std::int64_t keep) {
  GRAFT_CHECK(InvalidArgument, rows >= 1 && rows <= std::ssize(lengths_), "a batch of ", rows,
              " sequences: the cache has ", lengths_.size(), " rows");
  GRAFT_CHECK(InvalidArgument, keep >= 1 && keep <= width, "a run of ", width, " tokens cannot keep the logits of ",
              keep);
  if (in_pieces(static_cast<std::size_t>(rows), width, keep)) {
    for (std::int64_t piece = kNarrowestPiece; piece <= kPiece; piece *= 2) prepare(rows, piece, keep);
    return;
  }
  Call& call = call_for(rows, width, keep);
  if (chain_) {
    stage::Step step = step_of(call, first_sequences(static_cast<std::size_t>(rows)));
    {
      const stage::Turns::Turn turn(first_stage->turns);
      step.tensors = stage::descs_of(session.output_values(kMethod, call.inputs));
      session.plan(kMethod, call.inputs);
    }
    connect();
    return with_stages([&] { chain_->prepare(std::move(step)); });
  }
  // One in segments is planned as it runs: sizes behind a cut depend on data.
  if (model->program()->method(kMethod).segments == 1) session.plan(kMethod, call.inputs);
  // Sequences with pictures that layers attend to go through this one to their end.
  if (attended(*model)) session.plan(features_info->step, call_for(rows, width, keep, true).inputs);
}

std::span<const std::int64_t> Decoder::Impl::first_sequences(std::size_t count) const {
  GRAFT_CHECK(InvalidArgument, count <= first_.size(), "a batch of ", count, " sequences: the cache has ",
              first_.size(), " rows");
  return std::span(first_).first(count);
}

std::span<float> Decoder::Impl::run(std::span<const std::int64_t> sequences, std::span<const Tokens> rows,
                                    std::int64_t width, std::int64_t keep, const RunOptions& run_options) {
  GRAFT_CHECK(InvalidArgument, sequences.size() == rows.size(), rows.size(), " rows for ", sequences.size(),
              " sequences");
  check(sequences, rows);
  GRAFT_CHECK(InvalidArgument, keep >= 1 && keep <= width, "a run of ", width, " tokens cannot keep the logits of ",
              keep);
  for (const Tokens row : rows)
    GRAFT_CHECK(InvalidArgument, std::ssize(row) <= width, "a run of ", width, " tokens per row got one of ",
                row.size());
  connect();
  if (in_pieces(rows.size(), width, keep)) return run_pieces(sequences[0], rows[0], run_options);
  return run_once(sequences, rows, width, keep, run_options);
}

bool Decoder::Impl::in_pieces(std::size_t rows, std::int64_t width, std::int64_t keep) const {
  return chain_ && model->info().stage->exact_chunks && rows == 1 && keep == 1 && width > kPiece;
}

std::span<float> Decoder::Impl::run_pieces(std::int64_t sequence, Tokens tokens, const RunOptions& run_options) {
  std::int64_t& length = lengths_[static_cast<std::size_t>(sequence)];
  const std::int64_t before = length;
  try {
    while (true) {
      const std::int64_t count = first_piece(std::ssize(tokens));
      const Tokens piece = tokens.first(static_cast<std::size_t>(count));
      tokens = tokens.subspan(piece.size());
      const auto logits =
          run_once({&sequence, 1}, {&piece, 1}, piece_width(count), 1, run_options, /*wait=*/tokens.empty());
      if (tokens.empty()) return logits;
    }
  } catch (...) {
    if (chain_->connected()) length = before;
    throw;
  }
}

std::span<float> Decoder::Impl::run_once(std::span<const std::int64_t> sequences, std::span<const Tokens> rows,
                                         std::int64_t width, std::int64_t keep, const RunOptions& run_options,
                                         bool wait) {
  const bool with_images = see_images(sequences, rows, run_options);
  Call& call = call_for(std::ssize(rows), width, keep, with_images);
  std::ranges::fill(call.positions, 0);  // of padding
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto count = rows[r].size();
    const auto first = r * static_cast<std::size_t>(width);
    const auto begin = first + static_cast<std::size_t>(width) - count;
    std::fill(call.ids.begin() + static_cast<std::ptrdiff_t>(first),
              call.ids.begin() + static_cast<std::ptrdiff_t>(begin), 0);
    std::fill(call.cache_positions.begin() + static_cast<std::ptrdiff_t>(first),
              call.cache_positions.begin() + static_cast<std::ptrdiff_t>(begin), kPadding);
    for (std::size_t i = 0; i < count; ++i) {
      call.ids[begin + i] = rows[r][i];
      call.cache_positions[begin + i] = lengths_[static_cast<std::size_t>(sequences[r])] + static_cast<std::int64_t>(i);
    }
    place(call, static_cast<std::size_t>(sequences[r]), r, begin, count);
  }
  RunOptions with_rows = run_options;
  with_rows.kv_rows = sequences;
  std::span<float> logits;
  if (chain_) {
    logits = run_stages(call, sequences, with_rows, wait);
  } else {
    call.outputs[0].tensor.data = logits_.data();
    try {
      session.run_into(with_images ? features_info->step : kMethod, call.inputs, call.outputs, with_rows);
    } catch (const Unavailable&) {  // the caches were on a device, and are lost with it
      lose();
      throw;
    }
    logits = std::span(logits_).first(static_cast<std::size_t>(call.outputs[0].tensor.shape.numel()));
  }
  for (std::size_t r = 0; r < rows.size(); ++r) lengths_[static_cast<std::size_t>(sequences[r])] += std::ssize(rows[r]);
  return logits;
}

stage::Step Decoder::Impl::step_of(const Call& call, std::span<const std::int64_t> sequences) const {
  return {call.width, call.keep, sequences, call.ids, call.positions, call.cache_positions, {}};
}

std::span<float> Decoder::Impl::run_stages(Call& call, std::span<const std::int64_t> sequences,
                                           const RunOptions& run_options, bool wait) {
  return with_stages([&]() -> std::span<float> {
    stage::Step step = step_of(call, sequences);
    std::uint64_t bytes = 0;
    {
      const stage::Turns::Turn turn(first_stage->turns);
      const auto place = [&](std::span<Value> outputs) { bytes = stage::place_outgoing(outputs, chain_->next()); };
      step.tensors = stage::descs_of(session.run_into(kMethod, call.inputs, place, run_options));
    }
    chain_->submit(step, bytes, run_options);
    if (!wait) return {};
    const stage::Chain::Output out = chain_->finish(run_options);
    for (std::size_t i = 0; i < sequences.size(); ++i)
      shortest_[static_cast<std::size_t>(sequences[i])] = out.shortest[i];
    const Shape& shape = out.logits.tensor.shape;
    GRAFT_CHECK(InvalidProgram, shape == call.outputs[0].tensor.shape, "the last stage gave logits ", shape.str(), ", ",
                call.outputs[0].tensor.shape.str(), " were expected");
    return {static_cast<float*>(out.logits.tensor.data), static_cast<std::size_t>(shape.numel())};
  });
}

bool Decoder::Impl::cuts(std::size_t row, std::int64_t end) const {
  const llm::PreparedImages* prepared = images_[row].prepared.get();
  const auto block = 2 * static_cast<std::size_t>(end);
  return prepared && block < prepared->blocks.size() && prepared->blocks[block] < end;
}

std::int64_t Decoder::Impl::uncut(std::size_t row, std::int64_t count) const {
  return nearest_uncut(count, [&](std::int64_t tokens) { return cuts(row, lengths_[row] + tokens); });
}

std::int64_t Decoder::Impl::prefill_width(std::span<const Tokens> rows, std::int64_t total, std::int64_t begin) const {
  const std::int64_t most = std::min(options.prefill_chunk_size, total - begin);
  return nearest_uncut(most, [&](std::int64_t width) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      // Of the row's tokens that are left, those of this run; padding comes before them.
      const std::int64_t left = std::min(std::ssize(rows[r]), total - begin);
      const std::int64_t count = width - (total - begin - left);
      if (count > 0 && cuts(r, lengths_[r] + count)) return true;
    }
    return false;
  });
}

std::span<float> Decoder::Impl::prefill(std::span<const Tokens> rows, const std::function<void(std::span<float>)>& take,
                                        const RunOptions& run_options) {
  check(first_, rows);
  std::int64_t total = 0;
  for (const Tokens row : rows) total = std::max(total, std::ssize(row));
  GRAFT_CHECK(InvalidArgument, total > 0, "there are no tokens to begin with");
  const std::vector<std::int64_t> before = lengths_;
  std::span<float> logits;
  try {
    for (std::int64_t begin = 0, width = 0; begin < total; begin += width) {
      width = prefill_width(rows, total, begin);
      chunks_.clear();
      for (const Tokens row : rows) {
        const std::int64_t padding = total - std::ssize(row);
        const std::int64_t from = std::max<std::int64_t>(begin - padding, 0);
        const std::int64_t to = std::max<std::int64_t>(begin + width - padding, 0);
        chunks_.push_back(row.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)));
      }
      const auto bucket = std::ranges::lower_bound(options.buckets, width);
      const std::int64_t padded = bucket == options.buckets.end() ? width : *bucket;
      logits = run(first_sequences(rows.size()), chunks_, padded, take ? width : 1, run_options);
      if (take) call_back([&] { take(logits); });
    }
  } catch (...) {
    const bool lost = std::ranges::all_of(lengths_, [](std::int64_t length) { return length == 0; });
    for (std::size_t r = 0; r < rows.size(); ++r) lengths_[r] = !lost && before[r] >= shortest(r) ? before[r] : 0;
    throw;
  }
  return logits;
}

std::int64_t Decoder::Impl::shortest(std::size_t row) {
  return std::max(session.kv_shortest(static_cast<std::int64_t>(row)), shortest_[row]);
}

void Decoder::Impl::truncate(std::size_t row, std::int64_t length) {
  GRAFT_CHECK(InvalidArgument, row < lengths_.size(), "the cache has ", lengths_.size(), " rows, got row ", row);
  GRAFT_CHECK(InvalidArgument, length >= 0 && length <= lengths_[row], "sequence ", row, " has ", lengths_[row],
              " tokens, got ", length, " to keep");
  GRAFT_CHECK(InvalidArgument, length == 0 || length == lengths_[row] || length >= shortest(row), "sequence ", row,
              " of ", lengths_[row], " tokens cannot go back to ", length, ", only to ", shortest(row),
              " or more: layers with a window hold no more, recurrent ones the state of all tokens");
  lengths_[row] = length;
  session.kv_set_lengths(lengths_);
}

void Decoder::Impl::truncate_by_user(std::size_t row, std::int64_t length) {
  const auto* images = row < images_.size() ? images_[row].prepared.get() : nullptr;
  const bool without = images != nullptr && length <= images->begin;
  GRAFT_CHECK(InvalidArgument, images == nullptr || without || length >= std::min(images->end, lengths_[row]),
              "sequence ", row, " cannot go back to ", length, " tokens: there are pictures or sounds from ",
              images->begin, " to ", images->end);
  truncate(row, length);
  if (without) images_[row] = {};
}

namespace {

constexpr const char* kWhat = "Decoder";

}  // namespace

Decoder::Decoder(std::shared_ptr<const LanguageModel> model, const DecoderOptions& options) try
    : impl_(std::make_unique<Impl>(std::move(model), options)) {
} catch (...) {
  rethrow_typed();
}
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

void Decoder::encode(std::span<const Tokens> encoder_inputs, const RunOptions& options) try {
  const llm::Use use(impl_->in_use, kWhat, "encode()");
  impl_->encode(encoder_inputs, options);
} catch (...) {
  rethrow_typed();
}

void Decoder::encode(const TensorView& features, const RunOptions& options) try {
  const llm::Use use(impl_->in_use, kWhat, "encode()");
  impl_->encode(features, options);
} catch (...) {
  rethrow_typed();
}

std::span<float> Decoder::run(std::span<const Tokens> rows, std::int64_t width, std::int64_t keep,
                              const RunOptions& options) try {
  return run(impl_->first_sequences(rows.size()), rows, width, keep, options);
} catch (...) {
  rethrow_typed();
}

std::span<float> Decoder::run(std::span<const std::int64_t> sequences, std::span<const Tokens> rows, std::int64_t width,
                              std::int64_t keep, const RunOptions& options) try {
  const llm::Use use(impl_->in_use, kWhat, "run()");
  impl_->ran_by_user = true;
  return impl_->run(sequences, rows, width, keep, options);
} catch (...) {
  rethrow_typed();
}

void Decoder::prepare(std::int64_t rows, std::int64_t width, std::int64_t keep) try {
  const llm::Use use(impl_->in_use, kWhat, "prepare()");
  impl_->prepare(rows, width, keep);
} catch (...) {
  rethrow_typed();
}

std::span<float> Decoder::prefill(std::span<const Tokens> rows, const RunOptions& options) try {
  const llm::Use use(impl_->in_use, kWhat, "prefill()");
  impl_->ran_by_user = true;
  return impl_->prefill(rows, {}, options);
} catch (...) {
  rethrow_typed();
}

void Decoder::score(Tokens tokens, const std::function<void(std::span<float>)>& take, const RunOptions& options) try {
  GRAFT_CHECK(InvalidArgument, take, "score() has nobody to hand the logits to");
  const llm::Use use(impl_->in_use, kWhat, "score()");
  impl_->ran_by_user = true;
  impl_->prefill({&tokens, 1}, take, options);
} catch (...) {
  rethrow_typed();
}

void Decoder::score(const ImagePrompt& prompt, const std::function<void(std::span<float>)>& take,
                    const RunOptions& options) try {
  GRAFT_CHECK(InvalidArgument, take, "score() has nobody to hand the logits to");
  const llm::Use use(impl_->in_use, kWhat, "score()");
  llm::check_placeholders(impl_->model->info(), prompt.tokens, prompt.images.get());
  if (prompt.images) impl_->check_room(*prompt.images);
  impl_->ran_by_user = true;
  impl_->truncate(0, 0);
  impl_->place_images(0, prompt.images);
  const Tokens tokens = prompt.tokens;
  impl_->prefill({&tokens, 1}, take, options);
} catch (...) {
  rethrow_typed();
}

std::int64_t Decoder::length(std::size_t row) const try { return impl_->length(row); } catch (...) {
  rethrow_typed();
}
std::int64_t Decoder::capacity() const { return impl_->options.length; }
const DecoderOptions& Decoder::options() const { return impl_->options; }
const LanguageModel& Decoder::model() const { return *impl_->model; }
Session& Decoder::session() { return impl_->session; }

std::int64_t Decoder::shortest(std::size_t row) try { return impl_->shortest(row); } catch (...) {
  rethrow_typed();
}

void Decoder::truncate(std::size_t row, std::int64_t length) try {
  const llm::Use use(impl_->in_use, kWhat, "truncate()");
  impl_->truncate_by_user(row, length);
} catch (...) {
  rethrow_typed();
}

}  // namespace graft
