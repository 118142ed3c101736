#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "mutate_json.h"
#include "seeds.h"

// Requests to the server as bytes: one or more on a connection.
namespace graft::fuzz {
namespace {

constexpr std::array kPaths = {
    "/",
    "/health",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/models/words",
    "/v1/models/%00",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/completion",
    "/completions",
    "/chat/completions/input_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v2",
    "/v2/health/ready",
    "/v2/models/sums",
    "/v2/models/words/ready",
    "/v2/models/sums/infer",
    "/v2/models/vectors/infer",
    "/v2/models/sums/versions/1/infer",
    "/v2/models/sums/versions/2/infer",
    "/../etc/passwd",
    "/v1/models/..%2f..%2fetc",
    "//",
    "*",
    "http://a/v1/models",
    "/v1/models?x=%zz#a",
};

constexpr const char* kNames[] = {
    "model",
    "prompt",
    "messages",
    "input",
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "best_of",
    "stop",
    "logprobs",
    "top_logprobs",
    "echo",
    "logit_bias",
    "tools",
    "tool_choice",
    "role",
    "content",
    "type",
    "text",
    "name",
    "function",
    "parameters",
    "response_format",
    "json_schema",
    "schema",
    "regex",
    "grammar",
    "inputs",
    "outputs",
    "shape",
    "datatype",
    "data",
    "id",
    "documents",
    "query",
    "top_n",
    "encoding_format",
    "dimensions",
    "stream_options",
    "instructions",
    "system",
    "stop_sequences",
    "frequency_penalty",
    "tokens",
    "guided_regex",
    "guided_choice",
    "suffix",
    "n_predict",
    "n_probs",
    "response_fields",
    "prompt_string",
    "texts",
    "cache_prompt",
};

constexpr const char* kValues[] = {
    R"("words")",
    R"("vectors")",
    R"("sums")",
    R"("b c d")",
    R"([1, 2, 3])",
    R"([[1], [2, 3]])",
    R"(["a", "b"])",
    R"([{"role": "user", "content": "b c"}])",
    R"([{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f",
        "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "d"}])",
    R"([{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}])",
    R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type":
        "integer"}}, "required": ["x"]}}}])",
    R"({"type": "function", "function": {"name": "f"}})",
    R"("required")",
    R"("auto")",
    R"("none")",
    R"({"type": "json_object"})",
    R"({"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": {"type": "array", "items":
        {"$ref": "#/$defs/b"}, "$defs": {"b": {"enum": ["b", 1]}}, "maxItems": 3}}})",
    R"({"type": "object", "properties": {"a": {"anyOf": [{"type": "string", "pattern": "^b+$"}, {"const": null}]}}})",
    R"({"$ref": "#"})",
    R"({"type": "string", "minLength": 100000, "maxLength": 1000000000})",
    R"("(b|c)*d{2,5}")",
    R"("((((a*)*)*)*)*{1000}{1000}")",
    R"("root ::= \"b\" root | \"c\"")",
    R"({"include_usage": true})",
    R"({"1": -100, "2": 100})",
    R"({"0": 1e300})",
    R"("base64")",
    R"("FP32")",
    R"("INT64")",
    R"("BYTES")",
    R"([2, 2])",
    R"([-1, 9223372036854775807])",
    R"([1.5, -2, 3, 4])",
    R"({"binary_data_size": 16})",
    R"({"binary_data": true})",
    R"({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]})",
    R"(0)",
    R"(1)",
    R"(1e999)",
    R"(0.5)",
    R"(true)",
    R"([])",
    R"({})",
    R"("")",
    R"("\u0000\ud800")",
};
constexpr JsonWords kWords{kValues, kNames};

constexpr std::array kHeaders = {
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Content-Length: 0",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Length: 2000000",
    "Content-Type: text/plain",
    "Content-Type: application/json; charset=utf-8",
    "Content-Type: application/octet-stream",
    "Inference-Header-Content-Length: 10",
    "Inference-Header-Content-Length: 9999999999",
    "Expect: 100-continue",
    "Expect: nothing",
    "Connection: keep-alive",
    "Connection: Upgrade",
    "Upgrade: h2c",
    "Accept-Encoding: gzip",
    "Authorization: Bearer x",
    "Authorization: ",
    "Host: ",
    "Host: a:b:c",
    "Origin: null",
    "x-request-id: a\tb",
    " folded: a",
    "no colon",
    ": no name",
};

struct Message {
  std::string line;
  std::vector<std::string> headers;
  std::string body;

  std::string text(Random& random) const {
    std::string out = line + "\r\n";
    for (const std::string& header : headers) out += header + "\r\n";
    const bool chunked = std::ranges::find(headers, kHeaders[0]) != headers.end();
    if (!chunked && !body.empty() && !random.one_in(20))
      out += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    out += "\r\n";
    if (!chunked || random.one_in(10)) return out + body;
    for (std::size_t at = 0; at < body.size();) {
      const std::size_t bytes = std::min(1 + random.below(random.one_in(2) ? 7 : 400), body.size() - at);
      constexpr const char* kDigits = "0123456789abcdef";
      std::string size;
      for (std::size_t n = bytes; n > 0; n /= 16) size.insert(size.begin(), kDigits[n % 16]);
      if (random.one_in(60)) random.text(size);
      if (random.one_in(20)) size += ";a=b";
      out += size + "\r\n" + body.substr(at, bytes) + (random.one_in(60) ? "" : "\r\n");
      at += bytes;
    }
    return out + (random.one_in(20) ? "0\r\na: b\r\n\r\n" : "0\r\n\r\n");
  }
};

// The first request of a connection, and all behind it.
Message split(const std::string& text) {
  Message out;
  const std::size_t head = std::min(text.find("\r\n\r\n"), text.size());
  out.body = text.substr(std::min(head + 4, text.size()));
  for (std::size_t at = 0; at < head;) {
    const std::size_t end = std::min(text.find("\r\n", at), head);
    const std::string line = text.substr(at, end - at);
    if (at == 0)
      out.line = line;
    else if (!line.starts_with("Content-Length"))
      out.headers.push_back(line);
    at = end + 2;
  }
  return out;
}

void change_line(std::string& line, Random& random) {
  constexpr std::array kMethods = {"GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "PRI", ""};
  constexpr std::array kVersions = {" HTTP/1.1", " HTTP/1.0", " HTTP/0.9", " HTTP/2.0", " HTTP/1.1 ", "", " HTTPS/9"};
  const std::size_t space = std::min(line.find(' '), line.size());
  switch (random.below(4)) {
    case 0:
      line = kMethods[random.below(kMethods.size())] + line.substr(space);
      break;
    case 1:
      line = line.substr(0, space) + ' ' + kPaths[random.below(kPaths.size())] + " HTTP/1.1";
      break;
    case 2:
      line = line.substr(0, std::min(line.rfind(' '), line.size())) + kVersions[random.below(kVersions.size())];
      break;
    default:
      random.text(line);
  }
}

void change_headers(std::vector<std::string>& headers, Random& random) {
  if (headers.empty() || random.one_in(2))
    headers.emplace_back(kHeaders[random.below(kHeaders.size())]);
  else if (random.one_in(8))
    headers.push_back("x-long: " + std::string(random.below(40000), 'x'));
  else if (random.one_in(3))
    random.text(random.of(headers));
  else
    random.rearrange(headers);
}

Blob request(std::string_view method, std::string_view path, const std::string& body = "",
             const std::string& header = "Content-Type: application/json") {
  std::string text = std::string(method) + ' ' + std::string(path) + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
  if (!body.empty()) text += header + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  return blob_of(text + "\r\n" + body);
}

}  // namespace

std::vector<Blob> requests() {
  std::vector<Blob> out;
  for (const char* path : {"/", "/health", "/metrics", "/openapi.json", "/v1/models", "/v1/models/words", "/v2",
                           "/v2/health/live", "/v2/health/ready", "/v2/models/sums", "/v2/models/words/ready"})
    out.push_back(request("GET", path));
  const auto post = [&](const char* path, const char* body) { out.push_back(request("POST", path, body)); };
  post("/v1/completions", R"({"prompt": "b c d", "max_tokens": 5, "temperature": 0, "logprobs": 2, "echo": true})");
  post("/v1/completions",
       R"({"model": "words", "prompt": [[1, 2], [3]], "max_tokens": 4, "n": 2, "seed": 1, "stop": "e",
      "logit_bias": {"3": -100}, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "frequency_penalty": 0.5})");
  post("/v1/completions",
       R"({"prompt": "b", "max_tokens": 6, "stream": true, "stream_options": {"include_usage": true}})");
  post("/v1/chat/completions", R"({"messages": [{"role": "system", "content": "b"}, {"role": "user", "content":
      [{"type": "text", "text": "c"}]}], "max_tokens": 5, "logprobs": true, "top_logprobs": 2})");
  post("/v1/chat/completions",
       R"({"messages": [{"role": "user", "content": "c"}], "max_completion_tokens": 5, "stream": true,
      "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["b", "c"]}}}})");
  post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "c"}], "max_tokens": 3, "tools": [{"type":
      "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}], "tool_choice": "auto"})");
  post("/v1/responses", R"({"input": "b c", "instructions": "d", "max_output_tokens": 4})");
  post("/v1/responses", R"({"input": [{"role": "user", "content": "b"}], "max_output_tokens": 4, "stream": true})");
  post("/v1/messages",
       R"({"model": "words", "max_tokens": 4, "system": "b", "messages": [{"role": "user", "content": "c"}]})");
  post("/v1/messages", R"({"model": "words", "max_tokens": 4, "stream": true, "messages": [{"role": "user", "content":
      [{"type": "text", "text": "c"}]}], "stop_sequences": ["d"]})");
  post("/v1/messages/count_tokens", R"({"model": "words", "messages": [{"role": "user", "content": "c d"}]})");
  post("/v1/embeddings", R"({"model": "vectors", "input": ["b c", "d"]})");
  post("/v1/embeddings", R"({"model": "vectors", "input": "b", "encoding_format": "base64"})");
  post("/v1/rerank", R"({"model": "vectors", "query": "b", "documents": ["c", "b d"], "top_n": 1})");
  post("/v1/rerank", R"({"model": "vectors", "query": "b", "texts": ["c", "b d"], "return_text": true})");
  post("/v1/embeddings", R"({"model": "vectors", "input": [[1, 2], {"prompt_string": "b"}, [1, "c", 2]]})");
  post("/completion", R"({"prompt": [1, "b", 2], "n_predict": 4, "logit_bias": [["b", false], [2, 3]]})");
  post("/completion",
       R"({"prompt": [{"prompt_string": "b"}, [1, "c"]], "n_predict": 4, "n_probs": 2, "return_tokens": true,
      "response_fields": ["content", "timings/prompt_n"]})");
  post("/completion", R"({"prompt": "b", "n_predict": 3, "stream": true, "cache_prompt": false, "stop": ["c"]})");
  post("/chat/completions/input_tokens", R"({"messages": [{"role": "user", "content": "c"}]})");
  post("/tokenize", R"({"content": "b c d", "add_special": false})");
  post("/detokenize", R"({"tokens": [1, 2, 3]})");
  post("/apply-template", R"({"messages": [{"role": "user", "content": "b"}]})");
  const std::string y = R"({"name": "y", "shape": [2, 2], "datatype": "INT64", "data": [[1, 2], [3, 4]]})";
  out.push_back(
      request("POST", "/v2/models/sums/infer",
              R"({"id": "1", "inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4.5]}, )" +
                  y + "]}"));
  const std::string head =
      R"({"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}}, )" +
      y + R"(], "parameters": {"binary_data_output": true}})";
  out.push_back(request(
      "POST", "/v2/models/sums/versions/1/infer", head + std::string(16, '\0'),
      "Content-Type: application/octet-stream\r\nInference-Header-Content-Length: " + std::to_string(head.size())));
  return out;
}

Blob mutate_request(std::span<const std::byte> input, std::uint64_t seed) {
  Random random(seed);
  const std::string text = text_of(input);
  if (random.one_in(25)) return mutate_bytes(input, random);
  if (random.one_in(40)) return blob_of(text + text);  // the second comes at once with the first
  Message message = split(text);
  if (!message.body.empty() && !random.one_in(4)) message.body = mutate_json(message.body, random, kWords);
  if (message.body.empty() || random.one_in(8)) change_line(message.line, random);
  if (random.one_in(6)) change_headers(message.headers, random);
  return blob_of(message.text(random));
}

}  // namespace graft::fuzz
