#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "cli/http_client.h"
#include "cli/llm_commands.h"

namespace graft::cli {

// A server with OpenAI's chat completions, as `graft serve` is one.
class ChatServer {
 public:
  // Throws InvalidArgument for a URL that is none.
  explicit ChatServer(const ChatArgs& args);

  // Streams the answer to the messages. Throws InvalidArgument with the server's message for a request that it refuses,
  // SystemError where the connection fails.
  Generation answer(const std::vector<ChatMessage>& messages, const std::function<void(std::string_view)>& on_text,
                    const CancelToken& cancel) const;

 private:
  HttpUrl url_;
  std::vector<std::pair<std::string, std::string>> headers_;
  std::string fields_;  // of each request but its messages, as JSON
};

// What of `graft chat` plays a part with a server: flags by name. `given`: those of the command line. Throws
// CLI::ParseError for another one.
void check_server_flags(const std::vector<std::string>& given);

}  // namespace graft::cli
