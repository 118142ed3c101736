#pragma once

#include <string>
#include <vector>

#include "serve/call.h"
#include "serve/openai/text_request.h"

namespace graft::serve {

// A position of a text: its token, and the most likely ones, the first of which is the most likely.
struct TokenEntry {
  std::int64_t id = 0;
  std::string bytes;  // what the token adds to the text
  float logprob = 0;
  struct Likely {
    std::int64_t id;
    std::string bytes;
    float logprob;
  };
  std::vector<Likely> top;
  bool known = true;  // false for a prompt's first token, which nothing comes before
};

// The ids of an answer's calls, in order.
using CallIds = std::vector<std::string>;

// How one API writes texts.
class TextFormat {
 public:
  virtual ~TextFormat() = default;
  virtual const char* id_prefix() const = 0;
  virtual const char* object(bool stream) const = 0;
  virtual Json first_part() const = 0;                    // of a choice of a stream; null: it has none
  virtual Json part(const std::string& text) const = 0;   // fields of a choice of a stream
  virtual Json whole(const std::string& text) const = 0;  // fields of a choice of an answer
  // Of an answer that was taken apart: fields of a choice of a stream, and of an answer. Only chat has such.
  virtual Json part(const AnswerPart& part, const CallIds& calls) const = 0;
  virtual Json whole(const std::vector<AnswerPart>& parts, const CallIds& calls) const = 0;
  // `offset`: characters of the text before the first entry.
  virtual Json logprobs(const std::vector<TokenEntry>& entries, std::size_t offset) const = 0;
};
const TextFormat& completion_format();
const TextFormat& chat_format();

// "Infinity" is no JSON: a token that cannot come has the log-probability that OpenAI's API gives it.
double json_logprob(float logprob);

// Gives the jobs of a request to the engine. An error ends the others, and so does a client that goes.
void run_jobs(const std::shared_ptr<ServedModel>& model, const std::shared_ptr<Call>& call, std::vector<Job> jobs,
              Clock::time_point deadline, Engine::OnProgress on_progress);

// Runs the request and answers the call, as a whole or as a stream.
void answer_texts(App& app, const std::shared_ptr<Call>& call, TextRequest request, const TextFormat& format);

}  // namespace graft::serve
