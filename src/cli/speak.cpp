#include <iostream>

#include "cli/llm_commands.h"
#include "cli/text.h"

namespace graft::cli {

int speak(const SpeakArgs& args) {
  const CancelToken cancel;
  const CancelOnInterrupt guard(cancel);
  if (args.text.empty() == args.text_file.empty()) fail("expected one of --text and --text-file");
  const std::string text = args.text.empty() ? read_text(args.text_file) : args.text;
  Speaker speaker(args.model.file, load_options_of(args.model), args.model.threads);
  RunOptions run;
  run.cancel = &cancel;
  SpeakingOptions options = speaker.defaults();
  options.temperature = args.temperature.value_or(options.temperature);
  options.seed = args.seed;
  options.max_tokens = args.max_tokens;
  try {
    std::optional<Voice> voice;
    if (!args.voice.empty()) voice = speaker.voice(load_audio(args.voice), run);
    const Audio spoken = speaker.speak(text, voice ? &*voice : nullptr, options, {}, run);
    save_audio(spoken, args.output);
    std::cerr << "graft: " << args.output << ", " << spoken.seconds() << " seconds\n";
    return 0;
  } catch (const Cancelled&) {
    std::cerr << "\ngraft: interrupted\n";
    return kInterrupted;
  }
}

}  // namespace graft::cli
