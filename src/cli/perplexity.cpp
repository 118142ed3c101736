#include <unistd.h>

#include <iostream>

#include "cli/llm_commands.h"
#include "cli/npy.h"
#include "cli/text.h"

namespace graft::cli {

int perplexity(const PerplexityArgs& args) {
  const CancelToken cancel;
  const CancelOnInterrupt guard(cancel);
  const auto model = load_model(args.model);
  std::shared_ptr<const LanguageModel> reference;
  if (!args.against.empty()) {
    ModelArgs other = args.model;
    other.file = args.against;
    other.weights.clear();
    reference = load_model(other);
  }
  const std::vector<std::int64_t> tokens = model->encode(read_text(args.text));
  PerplexityOptions options;
  options.window = args.window;
  options.threads = args.model.threads;
  options.kv_type = kv_type_named(args.model.kv_type);
  options.cancel = &cancel;
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (terminal)
    options.on_window = [](std::int64_t window, std::int64_t windows, double so_far) {
      std::cerr << "\rwindow " << window << " of " << windows << ", perplexity " << fixed(so_far, 4) << "  "
                << std::flush;
    };
  Perplexity result;
  try {
    result = graft::perplexity(model, tokens, options, reference);
  } catch (const Cancelled&) {
    std::cerr << (terminal ? "\n" : "") << "graft: interrupted\n";
    return kInterrupted;
  }
  if (terminal) std::cerr << "\n";
  std::cout << "tokens      " << tokens.size() << "\nscored      " << result.scored << " in " << result.windows
            << " windows of " << options.window << "\nperplexity  " << fixed(result.perplexity, 4) << "\n";
  if (reference)
    std::cout << "reference   " << fixed(result.reference_perplexity, 4) << "\nmean KL     " << str(result.mean_kl)
              << "\ntop-1       " << fixed(100 * result.top1_agreement, 3) << " %\n";
  return 0;
}

int embed(const EmbedArgs& args) {
  const LoadOptions options = load_options_of(args.model);
  const std::string& tokenizer = args.model.tokenizer.empty() ? args.model.file : args.model.tokenizer;
  SessionOptions session;
  session.threads = args.model.threads;
  TextEncoder encoder(Program::load(args.model.file, options), Tokenizer::load(tokenizer, options.text), session);
  std::vector<float> vectors = encoder.embed(args.texts);
  if (!args.output.empty()) {
    write_npy(args.output, {vectors.data(), DType::f32, Shape{std::ssize(args.texts), encoder.size()}});
    return 0;
  }
  std::cout.precision(9);  // f32 as it is
  for (std::size_t i = 0; i < vectors.size(); ++i)
    std::cout << vectors[i] << ((i + 1) % static_cast<std::size_t>(encoder.size()) ? ' ' : '\n');
  return 0;
}

}  // namespace graft::cli
