#include "serve/speech.h"

#include <limits>
#include <span>

#include "base/check.h"

namespace graft::serve {

void read_transcription_options(Fields& fields, const SpeechModelInfo& model, TranscriptionOptions& options) {
  if (options.task == "transcribe") options.language = fields.text("language").value_or("");
  options.prompt = fields.text("prompt").value_or("");
  const double temperature = fields.number("temperature", 0, 1).value_or(0);
  if (model.timestamps) {
    options.temperatures = kWhisperTemperatures;
    options.compression_ratio_threshold = kWhisperCompressionRatioThreshold;
    options.logprob_threshold = kWhisperLogprobThreshold;
    options.no_speech_threshold = kWhisperNoSpeechThreshold;
  }
  if (temperature > 0) options.temperatures = {temperature};
  options.seed =
      static_cast<std::uint64_t>(fields.integer("seed", 0, std::numeric_limits<std::int64_t>::max()).value_or(0));
}

Speech::Speech(Transcriber transcriber, std::size_t queue)
    : transcriber_(std::move(transcriber)),
      state_bytes_(transcriber_.session().counters().state_bytes),
      queue_(queue) {}

void Speech::transcribe(std::string file, TranscriptionOptions options, Clock::time_point deadline,
                        const CancelToken& cancel, Transcriber::OnSegment on_segment, OnDone on_done) {
  queue_.submit([this, file = std::move(file), options = std::move(options), deadline, cancel,
                 on_segment = std::move(on_segment), on_done = std::move(on_done)] {
    Transcription transcription;
    std::exception_ptr error;
    try {
      GRAFT_CHECK(Cancelled, !cancel.cancelled(), "the client has gone");
      RunOptions run;
      run.deadline = deadline;
      run.cancel = &cancel;
      const Audio audio = decode_audio(std::as_bytes(std::span(file)), "'file'");
      transcription = transcriber_.transcribe(audio, options, on_segment, run);
    } catch (...) {
      error = std::current_exception();
    }
    on_done(transcription, error);
  });
}

}  // namespace graft::serve
