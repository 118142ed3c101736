#include <algorithm>

#include "base/check.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "llm/images.h"

namespace graft::llm {
namespace {

// Number i of the tokens of a picture or sound in the place of their common id: negative, and also where 32 bits of it
// are kept.
std::int64_t key_of(const std::array<std::uint8_t, 32>& digest, std::int64_t i) {
  std::uint64_t mixed = 0;
  for (std::size_t b = 0; b < 8; ++b) mixed = mixed << 8 | digest[static_cast<std::size_t>(i % 4) * 8 + b];
  mixed += 0x9e3779b97f4a7c15 * static_cast<std::uint64_t>(i + 1);  // SplitMix64, as in sequence.cpp
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return static_cast<std::int64_t>((mixed ^ (mixed >> 31)) | 0x8000000080000000);
}

// The first and the last token of each token's block: of placeholders side by side, or of all.
std::vector<std::int64_t> blocks_of(const PreparedImages& prepared, ImagesInfo::Blocks kind) {
  const auto& feature_of = prepared.feature_of;
  const std::int64_t count = std::ssize(feature_of);
  std::vector<std::int64_t> out;
  out.reserve(2 * feature_of.size());
  for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {
    end = begin + 1;
    if (kind == ImagesInfo::Blocks::prompt) {
      end = count;
    } else if (feature_of[static_cast<std::size_t>(begin)] >= 0) {
      while (end < count && feature_of[static_cast<std::size_t>(end)] >= 0) ++end;
    }
    for (std::int64_t i = begin; i < end; ++i) out.insert(out.end(), {begin, end - 1});
  }
  return out;
}

}  // namespace

std::string repeated(std::string_view text, std::int64_t count) {
  std::string out;
  out.reserve(text.size() * static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) out += text;
  return out;
}

Filled with_placeholders(const LanguageModel& model, std::string_view prompt, std::size_t count,
                         const Placeholders& placeholders, bool add_special) {
  const std::string_view token = placeholders.token;
  GRAFT_CHECK(InvalidArgument, is_utf8(prompt), "the prompt is not UTF-8");
  GRAFT_CHECK(NotFound, !token.empty(), "the package does not say what stands for ", placeholders.many,
              " in a text: it was exported without a tokenizer");
  std::vector<std::string_view> between;  // of the places
  const auto split = [&](std::string_view text) {
    between.clear();
    for (std::size_t at = 0, next = 0; next != std::string_view::npos; at = next + token.size()) {
      next = text.find(token, at);
      between.push_back(text.substr(at, next == std::string_view::npos ? next : next - at));
    }
  };
  split(prompt);
  std::string with_places;
  if (between.size() == 1 && count > 0) {
    with_places = repeated(placeholders.place, static_cast<std::int64_t>(count)) + std::string(prompt);
    split(with_places);
  }
  GRAFT_CHECK(InvalidArgument, between.size() == count + 1, "the prompt has ", between.size() - 1, " places of ",
              placeholders.many, " ('", token, "'), and there are ", count, " ", placeholders.many);
  if (count == 0) return {model.encode(prompt, add_special), {}};
  std::string begun;
  if (!placeholders.bos.empty() &&
      std::ranges::none_of(between, [&](std::string_view text) { return text.find(placeholders.bos) != text.npos; })) {
    const auto first = std::find_if(between.begin(), between.end() - 1, [](auto text) { return !text.empty(); });
    begun = str(placeholders.bos, *first);
    *first = begun;
  }
  const std::string behind = str(placeholders.after_last, between.back(), placeholders.end);
  between.back() = behind;

  auto prepared = std::make_shared<PreparedImages>();
  std::string text(between[0]);
  for (std::size_t i = 0; i < count; ++i) {
    PreparedImages::One one;
    text += placeholders.prepare(i, one);
    text += between[i + 1];
    prepared->rows += one.rows;
    prepared->images.push_back(std::move(one));
  }
  Filled out{model.tokenizer()->encode(text, {.add_special = add_special}), {}};
  const std::int64_t found = std::ranges::count(out.tokens, placeholders.token_id);
  GRAFT_CHECK(InvalidArgument, found == prepared->rows, "the prompt has ", found, " tokens of ", placeholders.many,
              ", and these have ", prepared->rows, " rows of features");
  prepared->keys = out.tokens;
  prepared->feature_of.assign(out.tokens.size(), -1);
  std::size_t which = 0;
  std::int64_t row = 0, first = 0;  // of all features; of this one's
  std::vector<std::array<std::uint8_t, 32>> digests;
  Sha256 of_all;
  for (std::size_t i = 0; i < count; ++i) {
    digests.push_back(placeholders.digest(i));
    of_all.add(std::as_bytes(std::span(digests.back())));
  }
  prepared->digest = of_all.digest();
  for (std::size_t i = 0; i < out.tokens.size(); ++i) {
    if (out.tokens[i] != placeholders.token_id) continue;
    if (row - first == prepared->images[which].rows) {
      first = row;
      ++which;
    }
    if (row == 0) prepared->begin = static_cast<std::int64_t>(i);
    prepared->end = static_cast<std::int64_t>(i) + 1;
    prepared->keys[i] = key_of(digests[which], row - first);
    prepared->feature_of[i] = row++;
  }
  if (placeholders.blocks != ImagesInfo::Blocks::none) prepared->blocks = blocks_of(*prepared, placeholders.blocks);
  if (placeholders.blocks == ImagesInfo::Blocks::prompt) {  // every token depends on all
    Sha256 all;
    all.add(std::as_bytes(std::span(prepared->keys)));
    const auto digest = all.digest();
    for (std::size_t i = 0; i < prepared->keys.size(); ++i)
      prepared->keys[i] = key_of(digest, static_cast<std::int64_t>(i));
  }
  out.prepared = std::move(prepared);
  return out;
}

std::int64_t input_ids(const LanguageModelInfo& info) {
  return info.images ? std::max(info.vocab_size, info.images->token_id + 1) : info.vocab_size;
}

bool on_grid(const ImagesInfo& info) {
  const auto* patches = std::get_if<PatchProcessing>(&info.processing);
  return patches && patches->max_patches == 0;
}

std::optional<FeaturesInfo> features_of(const LanguageModelInfo& info) {
  if (!info.images && !info.audio) return {};
  FeaturesInfo out;
  if (info.audio) {
    out = {kStepWithAudio, {kEncodeAudio}, info.audio->width};
    if (info.audio->whole) out.encoders.push_back(kEmbedAudio);
  }
  if (info.images) {  // the step is the same for both
    out.encoders.push_back(kEncodeImage);
    out.step = kStepWithImages;
    out.width = info.images->width;
    out.on_grid = on_grid(*info.images);
    out.blocks = info.images->blocks != ImagesInfo::Blocks::none;
    out.attended = info.images->attended;
  }
  return out;
}

namespace {

bool is_tensor(const ValueInfo& value, DType dtype, std::size_t rank) {
  return value.kind == Value::Kind::tensor && value.dtype == dtype && value.dims.size() == rank;
}

bool has_two_sides(const ValueInfo& value) {
  return is_tensor(value, DType::i64, 3) && value.dims[2].min == 2 && value.dims[2].max == 2;
}

void check_step_with_ranges(const MethodInfo& step, const FeaturesInfo& info) {
  const bool good = step.inputs.size() == 6 && is_tensor(step.inputs[0], DType::i64, 2) &&
                    is_tensor(step.inputs[1], DType::i64, 2) && is_tensor(step.inputs[2], DType::i64, 2) &&
                    is_tensor(step.inputs[3], DType::i64, 1) && has_two_sides(step.inputs[4]) &&
                    is_tensor(step.inputs[5], DType::b8, 2) && step.outputs.size() == 1 &&
                    is_tensor(step.outputs[0], DType::f32, 3);
  GRAFT_CHECK(InvalidArgument, good, "method '", info.step,
              "' is no decoder that attends to pictures: expected the inputs of 'step', ranges [B, T, 2] and a mask ",
              "[B, T]");
}

}  // namespace

void check_step_with_features(const Program& program, const FeaturesInfo& info) {
  const MethodInfo& step = program.method(info.step);
  if (info.attended) return check_step_with_ranges(step, info);
  bool good = step.inputs.size() == (info.blocks ? 7 : 6) && is_tensor(step.inputs[0], DType::i64, 2) &&
              is_tensor(step.inputs[1], DType::i64, info.on_grid ? 3 : 2) && is_tensor(step.inputs[2], DType::i64, 2) &&
              is_tensor(step.inputs[3], DType::i64, 1) && is_tensor(step.inputs[4], DType::f32, 3) &&
              step.inputs[4].dims[2].min <= info.width && info.width <= step.inputs[4].dims[2].max &&
              is_tensor(step.inputs[5], DType::b8, 2) && step.outputs.size() == 1 &&
              is_tensor(step.outputs[0], DType::f32, 3);
  if (good && info.blocks) good = has_two_sides(step.inputs[6]);
  GRAFT_CHECK(InvalidArgument, good, "method '", info.step,
              "' is no decoder with features: expected the inputs of 'step', features [B, T, ", info.width, "]",
              info.blocks ? ", a mask [B, T] and blocks [B, T, 2]" : " and a mask [B, T]");
}

void check_placeholders(const LanguageModelInfo& info, std::span<const std::int64_t> tokens,
                        const PreparedImages* images) {
  if (!info.images && !info.audio) {
    GRAFT_CHECK(InvalidArgument, images == nullptr, info.architecture,
                " takes no pictures or sound: the package is of text alone");
    return;
  }
  const auto none_of = [&](std::int64_t id, std::string_view what) {
    const auto found = std::ranges::count(tokens, id);
    GRAFT_CHECK(InvalidArgument, found == 0, "the prompt has ", found, " tokens of ", what, " (", id,
                "), and there are no ", what);
  };
  const bool sounds = images != nullptr && images->sounds;
  GRAFT_CHECK(InvalidArgument, images == nullptr || (sounds ? info.audio.has_value() : info.images.has_value()),
              info.architecture, " takes no ", sounds ? "sounds" : "pictures", ", and the prompt has some");
  if (info.images && (images == nullptr || sounds)) none_of(info.images->token_id, "pictures");
  if (info.audio && !sounds) none_of(info.audio->token_id, "sounds");
  if (images == nullptr) {
    // The kernels of transformers themselves do not agree on what such a prompt without pictures sees.
    GRAFT_CHECK(InvalidArgument, !info.images || info.images->blocks != ImagesInfo::Blocks::prompt, info.architecture,
                " takes prompts with pictures alone, and there are none");
    return;
  }
  const std::int64_t id = sounds ? info.audio->token_id : info.images->token_id;
  bool same = tokens.size() == images->feature_of.size();
  for (std::size_t i = 0; same && i < tokens.size(); ++i) same = (tokens[i] == id) == (images->feature_of[i] >= 0);
  GRAFT_CHECK(InvalidArgument, same, "the tokens of the prompt are not those that its ", sounds ? "sounds" : "pictures",
              " were prepared for");
}

}  // namespace graft::llm
