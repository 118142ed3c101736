#include <algorithm>
#include <cmath>

#include "base/trim.h"
#include "serve/form.h"
#include "serve/openai/openai.h"
#include "serve/openai/text_request.h"
#include "serve/speech.h"

namespace graft::serve {
namespace {

struct SpeechRequest {
  std::shared_ptr<ServedModel> model;
  std::string file;
  TranscriptionOptions options;
  std::string format = "json";
  bool stream = false;
};

SpeechRequest read_request(App& app, Call& call, const std::string& task) {
  const auto parts = parse_form(call.request().header("content-type"), call.request().body);
  const Json json = form_fields(parts, {"model", "language", "prompt", "response_format", "chunking_strategy"});
  Fields fields(json);
  SpeechRequest request;
  request.model = app.model_of(fields);
  request.model->check_speech();
  for (const FormPart& part : parts) {
    if (!part.filename) continue;
    if (part.name != "file" || !request.file.empty())
      bad_request(part.name, "one file is expected, called 'file', found '", part.name, "'");
    request.file = part.content;
    if (request.file.empty()) bad_request("file", "'file' is empty");
  }
  if (request.file.empty()) bad_request("file", "'file' is needed: a file of WAV, FLAC or MP3");
  request.options.task = task;
  const SpeechModelInfo& speech = request.model->speech->info();
  read_transcription_options(fields, speech, request.options);
  check_prompt_bytes(request.options.prompt.size(), app.options.limits);
  request.format = fields.text("response_format").value_or("json");
  constexpr std::string_view formats[] = {"json", "text", "srt", "verbose_json", "vtt"};
  if (std::ranges::find(formats, request.format) == std::end(formats))
    bad_request("response_format", "'response_format' must be json, text, srt, verbose_json or vtt, found '",
                request.format, "'");
  if (!speech.timestamps && (request.format == "srt" || request.format == "vtt"))
    throw ApiError(400,
                   "'response_format' is '" + request.format + "', and " + speech.architecture +
                       " has no time stamps: json, text and verbose_json are supported",
                   "response_format", "unsupported_parameter");
  request.stream = fields.boolean("stream").value_or(false);
  if (request.stream && request.format != "json")
    bad_request("response_format", "'response_format' must be json with 'stream', found '", request.format, "'");
  if (!speech.timestamps)
    fields.refuse("timestamp_granularities", "is not supported: " + speech.architecture + " has no time stamps");
  if (const Json* granularities = fields.array("timestamp_granularities"))
    for (const Json& granularity : *granularities)
      if (!is_text(granularity, "segment"))
        bad_request("timestamp_granularities", "'timestamp_granularities' is supported as segment alone");
  fields.refuse("include");
  if (const auto strategy = fields.text("chunking_strategy"); strategy && *strategy != "auto")
    bad_request("chunking_strategy", "'chunking_strategy' is supported as auto alone");
  fields.end();
  return request;
}

Json usage_of(const Transcription& transcription) {
  return {{"type", "duration"}, {"seconds", static_cast<std::int64_t>(std::ceil(transcription.seconds))}};
}

void respond(Call& call, const SpeechRequest& request, const Transcription& transcription) {
  if (request.format == "json")
    return call.respond_json({{"text", trimmed(transcription.text)}, {"usage", usage_of(transcription)}});
  Response response;
  if (request.format == "verbose_json") {
    Json json = Json::parse(write_transcript(transcription, TranscriptFormat::json));
    json["usage"] = usage_of(transcription);
    return call.respond_json(json);
  }
  response.content_type = request.format == "vtt" ? "text/vtt; charset=utf-8" : "text/plain; charset=utf-8";
  response.body = write_transcript(transcription, request.format == "text"  ? TranscriptFormat::text
                                                  : request.format == "srt" ? TranscriptFormat::srt
                                                                            : TranscriptFormat::vtt);
  call.respond(std::move(response));
}

void answer(App& app, const std::shared_ptr<Call>& call, const std::string& task) {
  auto request = std::make_shared<SpeechRequest>(read_request(app, *call, task));
  call->body() = {};
  call->note("model", request->model->name);
  const CancelToken gone;
  call->on_gone([gone] { gone.cancel(); });
  Transcriber::OnSegment on_segment;
  if (request->stream)
    on_segment = [call, request](const TranscriptionSegment& segment) {
      if (!call->began()) call->begin_events();
      call->event({{"type", "transcript.text.delta"}, {"delta", segment.text}});
    };
  std::string file = std::move(request->file);
  request->model->speech->transcribe(std::move(file), request->options, deadline_of(*call, app.options.limits), gone,
                                     on_segment,
                                     [call, request](const Transcription& transcription, std::exception_ptr error) {
                                       if (error) return call->fail(error);
                                       call->note("seconds", transcription.seconds);
                                       call->note("completion_tokens", transcription.new_tokens);
                                       if (!request->stream) return respond(*call, *request, transcription);
                                       if (!call->began()) call->begin_events();
                                       call->event({{"type", "transcript.text.done"},
                                                    {"text", trimmed(transcription.text)},
                                                    {"usage", usage_of(transcription)}});
                                       call->end_stream();
                                     });
}

}  // namespace

void transcriptions(App& app, const std::shared_ptr<Call>& call, const PathParts&) { answer(app, call, "transcribe"); }
void translations(App& app, const std::shared_ptr<Call>& call, const PathParts&) { answer(app, call, "translate"); }

}  // namespace graft::serve
