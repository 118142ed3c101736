#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "graft/speaker.h"
#include "graft/transcriber.h"
#include "python/bytes.h"

// The binding of speech: samples as bytes of f32 in, segments out. python/graft/llm/speech_to_text.py makes arrays.
namespace nb = nanobind;

namespace graft {
namespace {

TranscriptionOptions options_of(const nb::dict& settings) {
  TranscriptionOptions options;
  for (const auto& [key, value] : settings) {
    const auto name = nb::cast<std::string>(key);
    const auto set = [&](std::string_view wanted, auto& field) {
      if (name != wanted) return false;
      field = nb::cast<std::decay_t<decltype(field)>>(value);
      return true;
    };
    const auto set_optional = [&]<typename T>(std::string_view wanted, std::optional<T>& field) {
      if (name != wanted) return false;
      if (!value.is_none()) field = nb::cast<T>(value);
      return true;
    };
    if (set("language", options.language) || set("task", options.task) || set("prompt", options.prompt) ||
        set_optional("return_timestamps", options.return_timestamps) ||
        set("condition_on_prev_tokens", options.condition_on_prev_tokens) || set("seed", options.seed) ||
        set("temperatures", options.temperatures) ||
        set_optional("compression_ratio_threshold", options.compression_ratio_threshold) ||
        set_optional("logprob_threshold", options.logprob_threshold) ||
        set_optional("no_speech_threshold", options.no_speech_threshold))
      continue;
    throw InvalidArgument("there is no setting '" + name + "'");
  }
  return options;
}

nb::dict to_dict(const TranscriptionSegment& segment) {
  nb::dict d;
  d["start"] = segment.start;
  d["end"] = segment.end;
  d["tokens"] = segment.tokens;
  d["text"] = bytes_of(segment.text);
  d["window"] = segment.window;
  d["temperature"] = segment.temperature;
  d["avg_logprob"] = segment.avg_logprob;
  d["compression_ratio"] = segment.compression_ratio;
  d["no_speech_prob"] = segment.no_speech_prob;
  return d;
}

nb::tuple transcribe(Transcriber& transcriber, const nb::bytes& samples, std::int64_t sampling_rate,
                     const nb::dict& settings, const nb::object& on_segment, const CancelToken* cancel) {
  const TranscriptionOptions options = options_of(settings);
  Transcriber::OnSegment show;
  if (!on_segment.is_none())
    show = [&](const TranscriptionSegment& segment) {
      const nb::gil_scoped_acquire acquire;
      on_segment(to_dict(segment));
    };
  const Audio audio{floats_of(samples), sampling_rate};
  RunOptions run;
  run.cancel = cancel;
  Transcription result;
  {
    const nb::gil_scoped_release release;
    result = transcriber.transcribe(audio, options, show, run);
  }
  nb::list segments;
  for (const TranscriptionSegment& segment : result.segments) segments.append(to_dict(segment));
  return nb::make_tuple(bytes_of(result.text), result.language, segments);
}

SpeakingOptions speaking_options(const nb::dict& settings, SpeakingOptions options) {
  for (const auto& [key, value] : settings) {
    const auto name = nb::cast<std::string>(key);
    if (name == "temperature") {
      options.temperature = nb::cast<double>(value);
    } else if (name == "seed") {
      options.seed = nb::cast<std::uint64_t>(value);
    } else if (name == "eos_threshold") {
      options.eos_threshold = nb::cast<double>(value);
    } else if (name == "min_frames_before_eos") {
      options.min_frames_before_eos = nb::cast<std::int64_t>(value);
    } else if (name == "max_frames") {
      options.max_frames = nb::cast<std::int64_t>(value);
    } else if (name == "max_tokens") {
      options.max_tokens = nb::cast<std::int64_t>(value);
    } else {
      throw InvalidArgument("there is no setting '" + name + "'");
    }
  }
  return options;
}

// `voice`: (latents, frames), or None.
nb::bytes speak(Speaker& speaker, const nb::bytes& text, const nb::object& voice, const nb::dict& settings,
                const nb::object& on_audio, const CancelToken* cancel) {
  const SpeakingOptions options = speaking_options(settings, speaker.defaults());
  std::optional<Voice> who;
  if (!voice.is_none()) {
    const auto pair = nb::cast<nb::tuple>(voice);
    who = Voice{floats_of(nb::cast<nb::bytes>(pair[0])), nb::cast<std::int64_t>(pair[1])};
  }
  Speaker::OnAudio show;
  if (!on_audio.is_none())
    show = [&](const Audio& chunk) {
      const nb::gil_scoped_acquire acquire;
      on_audio(bytes_of(std::span<const float>(chunk.samples)));
    };
  RunOptions run;
  run.cancel = cancel;
  Audio spoken;
  {
    const nb::gil_scoped_release release;
    spoken = speaker.speak({text.c_str(), text.size()}, who ? &*who : nullptr, options, show, run);
  }
  return bytes_of(std::span<const float>(spoken.samples));
}

}  // namespace

void bind_speech(nb::module_& m) {
  nb::class_<Transcriber>(m, "Transcriber")
      .def(
          "__init__",
          [](Transcriber* self, const std::string& path, const std::string& tokenizer, std::vector<std::string> weights,
             const std::string& device, const std::string& precision, int threads) {
            LoadOptions options;
            options.weights = std::move(weights);
            options.device = device;
            options.matmul_precision = matmul_precision_named(precision);
            const nb::gil_scoped_release release;
            new (self) Transcriber(path, options, tokenizer, threads);
          },
          nb::arg("path"), nb::arg("tokenizer"), nb::arg("weights"), nb::arg("device"), nb::arg("precision"),
          nb::arg("threads"))
      .def("transcribe", &transcribe, nb::arg("samples"), nb::arg("sampling_rate"), nb::arg("settings"),
           nb::arg("on_segment").none(), nb::arg("cancel").none())
      .def("features",
           [](Transcriber& transcriber, const nb::bytes& samples) {
             return bytes_of(std::span<const float>(transcriber.features(floats_of(samples))));
           })
      .def("languages", &Transcriber::languages)
      .def_prop_ro("plans", [](Transcriber& t) { return t.session().counters().graphs_built; })
      .def_prop_ro("sampling_rate", [](const Transcriber& t) { return t.info().sampling_rate; })
      .def_prop_ro("mels", [](const Transcriber& t) { return t.info().mels; })
      .def_prop_ro("mels_first", [](const Transcriber& t) { return t.info().mels_first; });
  nb::class_<Speaker>(m, "Speaker")
      .def(
          "__init__",
          [](Speaker* self, const std::string& path, std::vector<std::string> weights, const std::string& device,
             int threads) {
            LoadOptions options;
            options.weights = std::move(weights);
            options.device = device;
            const nb::gil_scoped_release release;
            new (self) Speaker(path, options, threads);
          },
          nb::arg("path"), nb::arg("weights"), nb::arg("device"), nb::arg("threads"))
      .def("speak", &speak, nb::arg("text"), nb::arg("voice").none(), nb::arg("settings"), nb::arg("on_audio").none(),
           nb::arg("cancel").none())
      .def("voice",
           [](Speaker& speaker, const nb::bytes& samples, std::int64_t rate) {
             const Audio audio{floats_of(samples), rate};
             Voice voice;
             {
               const nb::gil_scoped_release release;
               voice = speaker.voice(audio);
             }
             return nb::make_tuple(bytes_of(std::span<const float>(voice.latents)), voice.frames);
           })
      .def("chunks",
           [](const Speaker& speaker, const nb::bytes& text, std::int64_t max_tokens) {
             return speaker.chunks({text.c_str(), text.size()}, max_tokens);
           })
      .def_prop_ro("plans", [](Speaker& speaker) { return speaker.session().counters().graphs_built; })
      .def_prop_ro("sampling_rate", [](const Speaker& speaker) { return speaker.info().sampling_rate; })
      .def_prop_ro("latent_size", [](const Speaker& speaker) { return speaker.info().latent_size; });
  m.def("save_audio", [](const std::string& path, const nb::bytes& samples, std::int64_t rate) {
    save_audio({floats_of(samples), rate}, path);
  });
  m.def("load_audio", [](const std::string& path) {
    const Audio audio = load_audio(path);
    return nb::make_tuple(bytes_of(std::span<const float>(audio.samples)), audio.sampling_rate);
  });
  m.def("decode_audio", [](const nb::bytes& file) {
    const Audio audio = decode_audio(std::as_bytes(std::span(file.c_str(), file.size())));
    return nb::make_tuple(bytes_of(std::span<const float>(audio.samples)), audio.sampling_rate);
  });
  m.def("resample", [](const nb::bytes& samples, std::int64_t from, std::int64_t to) {
    return bytes_of(std::span<const float>(resample(floats_of(samples), from, to)));
  });
}

}  // namespace graft
