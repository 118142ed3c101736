#include "batch/transcribe.h"

#include "base/trim.h"
#include "batch/grouped.h"
#include "batch/served.h"
#include "graft/transcriber.h"
#include "serve/speech.h"

namespace graft::batch {
namespace {

TranscriptionOptions options_of(const BatchOptions& options, const SpeechModelInfo& model) {
  const Json parameters = read_parameters(options.parameters, {"model", "file", "response_format", "stream"});
  try {
    serve::Fields fields(parameters);
    TranscriptionOptions out;
    out.task = fields.text("task").value_or(out.task);
    serve::read_transcription_options(fields, model, out);
    fields.end();
    return out;
  } catch (const serve::ApiError& error) {
    throw InvalidArgument(str("--set: ", error.what()));
  }
}

// Files of sound, one after the other: each window of one runs on all threads.
class TranscribeTask : public GroupedTask<std::string> {
 public:
  explicit TranscribeTask(const TaskContext& context)
      : GroupedTask(context.on_rows),
        context_(context),
        column_(context.column("path")),
        transcriber_(context.options.model.path, context.options.load, context.options.model.tokenizer,
                     context.options.decoder.threads),
        options_(options_of(context.options, transcriber_.info())) {}

  std::vector<std::string> needs() const override { return {column_}; }
  std::vector<std::string> results() const override { return {"transcript", "language", "seconds", "segments"}; }

 protected:
  std::string prepare(const Row& row) override { return context_.file_of(text_of(row, column_)); }
  bool before(const std::string&, const std::string&) const override { return false; }
  std::int64_t most_rows() const override { return 1; }

  std::vector<RowResult> run(std::span<const Item> items) override {
    const Transcription found = transcriber_.transcribe(read(items[0].row), options_);
    Json segments = Json::array();
    for (const TranscriptionSegment& segment : found.segments)
      segments.push_back({{"start", segment.start}, {"end", segment.end}, {"text", segment.text}});
    return {
        {{serve::dump(std::string(trimmed(found.text))), found.language.empty() ? "null" : serve::dump(found.language),
          serve::dump(found.seconds), serve::dump(segments)},
         {}}};
  }

 private:
  // A file that is not there is the row's fault.
  static Audio read(const std::string& path) {
    try {
      return load_audio(path);
    } catch (const NotFound& error) {
      bad_row(error.what());
    }
  }

  const TaskContext& context_;
  const std::string column_;
  Transcriber transcriber_;
  const TranscriptionOptions options_;
};

}  // namespace

std::unique_ptr<Task> transcribe_task(const TaskContext& context) { return std::make_unique<TranscribeTask>(context); }

}  // namespace graft::batch
