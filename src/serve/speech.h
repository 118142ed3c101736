#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "graft/transcriber.h"
#include "serve/json_fields.h"
#include "serve/work_queue.h"

namespace graft::serve {

// Of a request: language (of transcriptions), prompt, temperature and seed. Temperature 0 stands for OpenAI's fallback
// where the model has time stamps: higher ones where a window's text is unlikely or repeats itself. Throws ApiError.
void read_transcription_options(Fields& fields, const SpeechModelInfo& model, TranscriptionOptions& options);

// A Transcriber for many threads: one file at a time, in the order of the calls.
class Speech {
 public:
  using OnDone = std::function<void(const Transcription& transcription, std::exception_ptr error)>;

  Speech(Transcriber transcriber, std::size_t queue);

  const SpeechModelInfo& info() const { return transcriber_.info(); }

  // `file`: WAV, FLAC or MP3. `on_segment` and, once and last, `on_done` are called on the thread of this, unless this
  // throws Busy or ends before.
  void transcribe(std::string file, TranscriptionOptions options, Clock::time_point deadline, const CancelToken& cancel,
                  Transcriber::OnSegment on_segment, OnDone on_done);
  // As WorkQueue::end().
  void end() { queue_.end(); }
  std::uint64_t state_bytes() const { return state_bytes_; }
  const Program& program() { return transcriber_.session().program(); }

 private:
  Transcriber transcriber_;
  std::uint64_t state_bytes_ = 0;
  WorkQueue queue_;
};

}  // namespace graft::serve
