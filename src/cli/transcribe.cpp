#include <iostream>

#include "base/check.h"
#include "cli/llm_commands.h"
#include "cli/text.h"
#include "graft/transcriber.h"

namespace graft::cli {

int transcribe(const TranscribeArgs& args) {
  const CancelToken cancel;
  const CancelOnInterrupt guard(cancel);
  const Audio audio = load_audio(args.audio);
  Transcriber transcriber(args.model.file, load_options_of(args.model), args.model.tokenizer, args.model.threads);
  GRAFT_CHECK(InvalidArgument, transcriber.info().timestamps || args.format == "text" || args.format == "json",
              "--format ", args.format, ": ", transcriber.info().architecture,
              " has no time stamps, which subtitles need; expected text or json");
  TranscriptionOptions options = args.options;
  if (args.fallback) {
    options.temperatures = kWhisperTemperatures;
    options.compression_ratio_threshold = kWhisperCompressionRatioThreshold;
    options.logprob_threshold = kWhisperLogprobThreshold;
    options.no_speech_threshold = kWhisperNoSpeechThreshold;
  }
  RunOptions run;
  run.cancel = &cancel;
  const bool streamed = args.format == "text";
  Transcriber::OnSegment on_segment;
  bool began = false;
  if (streamed)
    on_segment = [&](const TranscriptionSegment& segment) {
      // Texts begin with a space.
      std::string_view text = segment.text;
      if (!began) text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
      began |= !text.empty();
      std::cout << text << std::flush;
    };
  try {
    const Transcription result = transcriber.transcribe(audio, options, on_segment, run);
    if (streamed) {
      std::cout << "\n";
      return 0;
    }
    const TranscriptFormat format = args.format == "json"  ? TranscriptFormat::json
                                    : args.format == "srt" ? TranscriptFormat::srt
                                                           : TranscriptFormat::vtt;
    std::cout << write_transcript(result, format) << (format == TranscriptFormat::json ? "\n" : "");
    return 0;
  } catch (const Cancelled&) {
    std::cerr << "\ngraft: interrupted\n";
    return kInterrupted;
  }
}

}  // namespace graft::cli
