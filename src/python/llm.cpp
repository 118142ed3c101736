#include "graft/llm.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "llm/images.h"
#include "python/adapters.h"
#include "python/bytes.h"

// The binding of language models: ids in, ids and bytes of text out. python/graft/llm/generate.py makes str and
// tensors.
namespace nb = nanobind;

namespace graft {
namespace {

using ModelPtr = std::shared_ptr<LanguageModel>;
using Ids = std::vector<std::int64_t>;

GenerationOptions options_of(const nb::dict& settings, const LanguageModelInfo& model) {
  GenerationOptions options = model.generation;
  std::optional<bool> do_sample;
  for (const auto& [key, value] : settings) {
    const auto name = nb::cast<std::string>(key);
    const auto set = [&](std::string_view wanted, auto& field) {
      if (name != wanted) return false;
      field = nb::cast<std::decay_t<decltype(field)>>(value);
      return true;
    };
    if (set("max_new_tokens", options.max_new_tokens) || set("temperature", options.temperature) ||
        set("top_k", options.top_k) || set("top_p", options.top_p) || set("min_p", options.min_p) ||
        set("repetition_penalty", options.repetition_penalty) || set("seed", options.seed) ||
        set("ignore_eos", options.ignore_eos) || set("eos_token_ids", options.eos_token_ids) ||
        set("stop_strings", options.stop_strings) || set("skip_special_tokens", options.skip_special_tokens) ||
        set("prompt_lookup_num_tokens", options.prompt_lookup_num_tokens) ||
        set("max_matching_ngram_size", options.max_matching_ngram_size))
      continue;
    if (name == "adapters") {
      options.adapters = adapters_of(value);
      continue;
    }
    if (name == "do_sample") {
      do_sample = nb::cast<bool>(value);
      continue;
    }
    throw InvalidArgument("there is no setting '" + name + "'");
  }
  if (do_sample && !*do_sample) options.temperature = 0;
  if (do_sample && *do_sample && options.temperature == 0) options.temperature = model.sampling_temperature;
  return options;
}

// [(pixels [H, W, 3] in u8, H, W), ...]
std::vector<Image> images_of(const nb::list& list) {
  std::vector<Image> out;
  for (const nb::handle entry : list) {
    const auto one = nb::cast<nb::tuple>(entry);
    const auto pixels = nb::cast<nb::bytes>(one[0]);
    const auto* const from = reinterpret_cast<const std::uint8_t*>(pixels.c_str());
    out.push_back({nb::cast<std::int64_t>(one[1]), nb::cast<std::int64_t>(one[2]), {from, from + pixels.size()}});
  }
  return out;
}

// [(samples in f32, samples per second), ...]
std::vector<Audio> audio_of(const nb::list& list) {
  std::vector<Audio> out;
  for (const nb::handle entry : list) {
    const auto one = nb::cast<nb::tuple>(entry);
    out.push_back({floats_of(nb::cast<nb::bytes>(one[0])), nb::cast<std::int64_t>(one[1])});
  }
  return out;
}

// [(role, [(text, what stands there instead: "", "image" or "audio"), ...]), ...]
std::vector<ChatMessage> messages_of(const nb::list& list) {
  std::vector<ChatMessage> out;
  for (const nb::handle entry : list) {
    const auto message = nb::cast<nb::tuple>(entry);
    ChatMessage& one = out.emplace_back(ChatMessage{nb::cast<std::string>(message[0]), {}});
    for (const nb::handle part : nb::cast<nb::list>(message[1])) {
      const auto pair = nb::cast<nb::tuple>(part);
      const auto kind = nb::cast<std::string>(pair[1]);
      one.parts.push_back({nb::cast<std::string>(pair[0]), kind == "image", kind == "audio"});
    }
  }
  return out;
}

// Of a picture of a prompt, what the tower takes, in the order of its inputs: (dtype, sizes, bytes). Of a sound its
// spectrograms, then its positions and rows of features.
nb::list prepared_of(const ImagePrompt& prompt, std::size_t index) {
  const auto& one = prompt.images->images.at(index);
  nb::list out;
  const auto add = [&](const char* dtype, const std::vector<std::int64_t>& sizes, const auto& data) {
    out.append(nb::make_tuple(dtype, sizes,
                              nb::bytes(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(data[0]))));
  };
  if (!one.spectrograms.empty()) {
    add("float32", {std::ssize(one.spectrograms)}, one.spectrograms);
    add("int64", {2}, std::vector<std::int64_t>{one.heard, one.rows});
    return out;
  }
  if (const image::Crops& crops = one.crops; crops.side > 0) {
    const std::int64_t count = 1 + crops.rows * crops.columns;
    add("float32", {count, 3, crops.crop, crops.crop}, crops.pixels);
    add("bool", {count, crops.side, crops.side}, crops.valid);
    return out;
  }
  if (const image::Canvas& canvas = one.canvas; !canvas.valid.empty()) {
    const std::int64_t tiles = std::ssize(canvas.valid);
    add("float32", {1, tiles, 3, one.height, one.width}, canvas.pixels);
    add("int64", {1, 1}, std::vector<std::int64_t>{canvas.shape});
    add("int64", {1, tiles}, canvas.valid);
    return out;
  }
  const image::Patches& patches = one.patches;
  if (patches.groups == 0) {
    add("float32", {std::ssize(one.pixels) / (3 * one.height * one.width), 3, one.height, one.width}, one.pixels);
    return out;
  }
  const auto per_patch = [&](const auto& data) {
    return std::vector<std::int64_t>{patches.groups, patches.group,
                                     std::ssize(data) / (patches.groups * patches.group)};
  };
  add("float32", per_patch(patches.pixels), patches.pixels);
  add("int64", per_patch(patches.positions), patches.positions);
  if (!patches.valid.empty()) add("bool", {patches.groups, patches.group}, patches.valid);
  if (!patches.table_rows.empty()) {
    add("int64", per_patch(patches.table_rows), patches.table_rows);
    add("float32", per_patch(patches.table_weights), patches.table_weights);
  }
  return out;
}

nb::list generate(TextGenerator& generator, const std::vector<ImagePrompt>& prompts, const nb::dict& settings,
                  const nb::object& on_text, const CancelToken* cancel) {
  const GenerationOptions options = options_of(settings, generator.decoder().model().info());
  TextGenerator::OnText show;
  if (!on_text.is_none())
    show = [&](std::size_t row, std::string_view text) {
      const nb::gil_scoped_acquire acquire;
      on_text(row, bytes_of(text));
    };
  std::vector<Generation> results;
  {
    const nb::gil_scoped_release release;
    results = generator.generate(prompts, options, show, cancel);
  }
  nb::list out;
  for (const Generation& g : results)
    out.append(nb::make_tuple(g.tokens, bytes_of(g.text), std::string(name(g.reason))));
  return out;
}

std::uint64_t submit(BatchGenerator& batch, const ImagePrompt& prompt, const nb::dict& settings,
                     const nb::object& on_text, std::shared_ptr<TokenMask> mask) {
  const GenerationOptions options = options_of(settings, batch.decoder().model().info());
  BatchGenerator::OnText show;
  if (!on_text.is_none()) {
    // The engine may drop it without holding the GIL, so releasing it takes the GIL.
    const std::shared_ptr<nb::object> function(new nb::object(on_text), [](nb::object* held) {
      const nb::gil_scoped_acquire acquire;
      delete held;
    });
    show = [function](std::string_view text) {
      const nb::gil_scoped_acquire acquire;
      (*function)(bytes_of(text));
    };
  }
  RequestOptions request;
  request.mask = std::move(mask);
  return batch.submit(prompt, options, request, std::move(show));
}

nb::dict to_dict(const GenerationStats& stats) {
  nb::dict d;
  d["prompt_tokens"] = stats.prompt_tokens;
  d["reused_tokens"] = stats.reused_tokens;
  d["new_tokens"] = stats.new_tokens;
  d["decode_runs"] = stats.decode_runs;
  d["drafted_tokens"] = stats.drafted_tokens;
  d["accepted_tokens"] = stats.accepted_tokens;
  d["prefill_seconds"] = stats.prefill_seconds;
  d["decode_seconds"] = stats.decode_seconds;
  return d;
}

}  // namespace

void bind_llm(nb::module_& m) {
  nb::class_<ImagePrompt>(m, "ImagePrompt")
      .def(
          "__init__",
          [](ImagePrompt* self, Ids tokens) {
            new (self) ImagePrompt{std::move(tokens), {}};
          },
          nb::arg("tokens"))
      .def_ro("tokens", &ImagePrompt::tokens)
      .def_prop_ro("images", [](const ImagePrompt& prompt) { return prompt.images ? prompt.images->images.size() : 0; })
      .def("prepared", &prepared_of)
      // Which row of the tower's output each row of a picture's features is; none: they are in order.
      .def("order",
           [](const ImagePrompt& prompt, std::size_t i) {
             const auto& one = prompt.images->images.at(i);
             return one.crops.side > 0 ? one.crops.order : one.patches.order;
           })
      .def_prop_ro("positions",
                   [](const ImagePrompt& prompt) { return prompt.images ? prompt.images->positions : Ids(); });
  nb::class_<LanguageModel>(m, "LanguageModel")
      .def_static(
          "load",
          [](const std::string& path, const std::string& tokenizer, std::vector<std::string> weights,
             const std::string& device, const std::string& matmul_precision, std::int64_t max_adapter_rank) {
            LoadOptions options;
            options.max_adapter_rank = max_adapter_rank;
            options.weights = std::move(weights);
            options.device = device;
            options.matmul_precision = matmul_precision_named(matmul_precision);
            const nb::gil_scoped_release release;
            return std::const_pointer_cast<LanguageModel>(LanguageModel::load(path, options, tokenizer));
          },
          nb::arg("path"), nb::arg("tokenizer") = "", nb::arg("weights") = std::vector<std::string>(),
          nb::arg("device") = "", nb::arg("matmul_precision") = "highest",
          nb::arg("max_adapter_rank") = LoadOptions{}.max_adapter_rank)
      .def_prop_ro("program",
                   [](const LanguageModel& model) { return std::const_pointer_cast<Program>(model.program()); })
      .def_static(
          "of_program",
          [](std::shared_ptr<Program> program, std::string architecture, std::int64_t vocab_size,
             std::int64_t context_length) {
            LanguageModelInfo info;
            info.architecture = std::move(architecture);
            info.vocab_size = vocab_size;
            info.context_length = context_length;
            return std::make_shared<LanguageModel>(std::move(program), std::move(info), nullptr);
          },
          nb::arg("program"), nb::arg("architecture"), nb::arg("vocab_size"), nb::arg("context_length"))
      .def("encode",
           [](const LanguageModel& model, const nb::bytes& prompt) {
             return model.encode({prompt.c_str(), prompt.size()});
           })
      .def("chat_prompt",
           [](const LanguageModel& model, const std::vector<std::vector<std::string>>& messages) {
             std::vector<ChatMessage> list;
             for (const auto& message : messages) list.push_back({message.at(0), message.at(1)});
             return model.encode(chat_prompt(model, list), false);
           })
      .def("image_prompt",
           [](const LanguageModel& model, const nb::bytes& text, const nb::list& images) {
             const std::vector<Image> pictures = images_of(images);
             const nb::gil_scoped_release release;
             return image_prompt(model, {text.c_str(), text.size()}, pictures);
           })
      .def("chat_image_prompt",
           [](const LanguageModel& model, const nb::list& messages, const nb::list& images) {
             const std::vector<Image> pictures = images_of(images);
             const std::vector<ChatMessage> list = messages_of(messages);
             const nb::gil_scoped_release release;
             return model.encode_with_images(chat_prompt(model, list), pictures, false);
           })
      .def("audio_prompt",
           [](const LanguageModel& model, const nb::bytes& text, const nb::list& audio) {
             const std::vector<Audio> sounds = audio_of(audio);
             const nb::gil_scoped_release release;
             return audio_prompt(model, {text.c_str(), text.size()}, sounds);
           })
      .def("chat_audio_prompt",
           [](const LanguageModel& model, const nb::list& messages, const nb::list& audio) {
             const std::vector<Audio> sounds = audio_of(audio);
             const std::vector<ChatMessage> list = messages_of(messages);
             const nb::gil_scoped_release release;
             return model.encode_with_audio(chat_prompt(model, list), sounds, false);
           })
      .def_prop_ro("vocab_size", [](const LanguageModel& model) { return model.info().vocab_size; })
      .def_prop_ro("context_length", [](const LanguageModel& model) { return model.info().context_length; })
      .def_prop_ro("eos_token_ids", [](const LanguageModel& model) { return model.info().eos_token_ids; });

  nb::class_<TextGenerator>(m, "TextGenerator")
      .def(
          "__init__",
          [](TextGenerator* self, const ModelPtr& model, int threads, std::int64_t rows, std::int64_t length,
             const std::string& kv_type, std::int64_t prefill_chunk_size, std::vector<std::int64_t> buckets,
             std::vector<std::string> stages, std::string secret, std::int64_t pictures) {
            const nb::gil_scoped_release release;
            new (self) TextGenerator(model, {threads,
                                             rows,
                                             length,
                                             kv_type_named(kv_type),
                                             prefill_chunk_size,
                                             0,
                                             std::move(buckets),
                                             {std::move(stages), std::move(secret)},
                                             pictures});
          },
          nb::arg("model"), nb::arg("threads"), nb::arg("rows"), nb::arg("length"), nb::arg("kv_type"),
          nb::arg("prefill_chunk_size"), nb::arg("buckets"), nb::arg("stages"), nb::arg("secret"), nb::arg("pictures"))
      .def("generate", &generate, nb::arg("prompts"), nb::arg("settings"), nb::arg("on_text").none(),
           nb::arg("cancel").none())
      .def("encode_features",
           [](TextGenerator& generator, const nb::bytes& numbers, const std::vector<std::int64_t>& sizes) {
             const TensorDesc desc(DType::f32, Shape(std::span<const std::int64_t>(sizes)));
             if (numbers.size() != desc.byte_count()) throw InvalidArgument("the features have other bytes than sizes");
             const nb::gil_scoped_release release;
             generator.decoder().encode(TensorView{const_cast<char*>(numbers.c_str()), DType::f32, desc.shape});
             return generator.decoder().model().info().encoder->decoder_start_token_ids;
           })
      .def("stats", [](const TextGenerator& generator) { return to_dict(generator.stats()); })
      .def("plans", [](TextGenerator& generator) { return generator.decoder().session().counters().graphs_built; })
      .def(
          "logits",
          [](TextGenerator& generator, const ImagePrompt& prompt, const nb::list& adapters) {
            std::vector<float> all;
            Decoder& decoder = generator.decoder();
            std::vector<const Adapter*> rows;
            const auto kept = adapters_of(adapters);
            for (const auto& adapter : kept) rows.push_back(adapter.get());
            RunOptions options;
            options.adapters = rows;
            {
              const nb::gil_scoped_release release;
              const auto take = [&](std::span<float> logits) { all.insert(all.end(), logits.begin(), logits.end()); };
              decoder.truncate(0, 0);
              decoder.score(prompt, take, options);
              decoder.truncate(0, 0);
            }
            return bytes_of(std::span<const float>(all));
          },
          nb::arg("prompt"), nb::arg("adapters") = nb::list());

  nb::class_<BatchGenerator>(m, "BatchGenerator")
      .def(
          "__init__",
          [](BatchGenerator* self, const ModelPtr& model, int threads, std::int64_t rows, std::int64_t length,
             const std::string& kv_type, std::int64_t prefill_chunk_size, std::vector<std::int64_t> buckets,
             std::vector<std::string> stages, std::string secret, std::int64_t pictures,
             std::uint64_t prefix_cache_bytes, const std::string& prefix_cache_file) {
            const nb::gil_scoped_release release;
            new (self) BatchGenerator(model,
                                      {threads,
                                       rows,
                                       length,
                                       kv_type_named(kv_type),
                                       prefill_chunk_size,
                                       0,
                                       std::move(buckets),
                                       {std::move(stages), std::move(secret)},
                                       pictures},
                                      PrefixCacheOptions{prefix_cache_bytes, prefix_cache_file});
          },
          nb::arg("model"), nb::arg("threads"), nb::arg("rows"), nb::arg("length"), nb::arg("kv_type"),
          nb::arg("prefill_chunk_size"), nb::arg("buckets"), nb::arg("stages"), nb::arg("secret"), nb::arg("pictures"),
          nb::arg("prefix_cache_bytes"), nb::arg("prefix_cache_file"))
      .def("submit", &submit, nb::arg("prompt"), nb::arg("settings"), nb::arg("on_text").none(),
           nb::arg("mask").none() = nb::none())
      .def(
          "step",
          [](BatchGenerator& batch, const CancelToken* cancel) {
            RunOptions options;
            options.cancel = cancel;
            const nb::gil_scoped_release release;
            return batch.step(options);
          },
          nb::arg("cancel").none())
      .def("cancel", &BatchGenerator::cancel, nb::arg("id"))
      .def(
          "take",
          [](BatchGenerator& batch, std::uint64_t id) -> nb::object {
            const std::optional<Generation> g = batch.take(id);
            if (!g) return nb::none();
            return nb::make_tuple(g->tokens, bytes_of(g->text), std::string(name(g->reason)));
          },
          nb::arg("id"))
      // The tokens that a request has, until its result is taken.
      .def(
          "tokens",
          [](const BatchGenerator& batch, std::uint64_t id) {
            const std::span<const std::int64_t> tokens = batch.state(id).tokens;
            return Ids(tokens.begin(), tokens.end());
          },
          nb::arg("id"))
      .def("prepare", static_cast<void (BatchGenerator::*)(std::int64_t)>(&BatchGenerator::prepare),
           nb::arg("prompt_lookup_num_tokens"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("waiting", &BatchGenerator::waiting)
      .def_prop_ro("running", &BatchGenerator::running)
      .def("stats", [](const BatchGenerator& batch) { return to_dict(batch.stats()); })
      .def("plans", [](BatchGenerator& batch) { return batch.decoder().session().counters().graphs_built; });

  m.def("token_probabilities", [](const nb::bytes& logits, const Ids& tokens, const nb::dict& settings) {
    const std::vector<float> numbers = floats_of(logits);
    return bytes_of(std::span<const float>(token_probabilities(numbers, tokens, options_of(settings, {}))));
  });
}

}  // namespace graft
