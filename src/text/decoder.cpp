#include "text/decoder.h"

#include "base/check.h"
#include "base/utf8.h"
#include "text/byte_level.h"
#include "text/json.h"
#include "text/pattern.h"
#include "text/pattern_json.h"
#include "text/unicode.h"

namespace graft::text {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

std::string joined(const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) out += piece;
  return out;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  if (from.empty()) return text;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// Removes spaces before English punctuation, as BERT's decoder does.
std::string cleaned_up(std::string text) {
  constexpr std::pair<const char*, const char*> rules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : rules) text = replaced(std::move(text), from, to);
  return text;
}

template <typename Function>
class Stepping : public Decoder {
 public:
  explicit Stepping(Function function) : function_(std::move(function)) {}
  void apply(std::vector<std::string>& pieces) const override { function_(pieces); }

 private:
  Function function_;
};

template <typename Function>
std::unique_ptr<const Decoder> stepping(Function function) {
  return std::make_unique<Stepping<Function>>(std::move(function));
}

void decode_byte_level(std::vector<std::string>& pieces) {
  std::string bytes;
  for (const std::string& piece : pieces) {
    const auto decoded = from_byte_level(piece);
    bytes += decoded ? *decoded : piece;
  }
  pieces = {to_utf8(bytes)};
}

int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

// Tokens such as <0x41>: a run of them is decoded as UTF-8, or else becomes as many replacement characters.
void decode_byte_fallback(std::vector<std::string>& pieces) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (is_utf8(bytes)) {
      if (!bytes.empty()) out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), kReplacement);
    }
    bytes.clear();
  };
  for (std::string& piece : pieces) {
    const bool is_byte = piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>' && hex_digit(piece[3]) >= 0 &&
                         hex_digit(piece[4]) >= 0;
    if (is_byte) {
      bytes += static_cast<char>(hex_digit(piece[3]) * 16 + hex_digit(piece[4]));
    } else {
      flush();
      out.push_back(std::move(piece));
    }
  }
  flush();
  pieces = std::move(out);
}

// Removes up to `start` and `stop` repetitions of the character at the two ends.
std::string stripped(std::string_view piece, std::string_view c, std::int64_t start, std::int64_t stop) {
  for (std::int64_t i = 0; i < start && piece.starts_with(c); ++i) piece.remove_prefix(c.size());
  for (std::int64_t i = 0; i < stop && piece.ends_with(c); ++i) piece.remove_suffix(c.size());
  return std::string(piece);
}

void decode_word_piece(std::vector<std::string>& pieces, const std::string& prefix, bool cleanup) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::string& piece = pieces[i];
    if (i > 0) {
      if (piece.starts_with(prefix))
        piece.erase(0, prefix.size());
      else
        piece.insert(0, 1, ' ');
    }
    if (cleanup) piece = cleaned_up(std::move(piece));
  }
}

void decode_ctc(std::vector<std::string>& pieces, const std::string& pad, const std::string& delimiter, bool cleanup) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0 && pieces[i] == pieces[i - 1]) continue;
    std::string piece = replaced(pieces[i], pad, "");
    if (cleanup) piece = replaced(cleaned_up(std::move(piece)), delimiter, " ");
    if (!piece.empty()) out.push_back(std::move(piece));
  }
  pieces = std::move(out);
}

class Sequence : public Decoder {
 public:
  explicit Sequence(std::vector<std::unique_ptr<const Decoder>> parts) : parts_(std::move(parts)) {}
  void apply(std::vector<std::string>& pieces) const override {
    for (const auto& part : parts_) part->apply(pieces);
  }

 private:
  std::vector<std::unique_ptr<const Decoder>> parts_;
};

std::unique_ptr<const Decoder> make_sequence(const Json& description) {
  std::vector<std::unique_ptr<const Decoder>> parts;
  for (const Json& part : array_at(description, "decoders", "decoder")) {
    parts.push_back(make_decoder(part));
    GRAFT_CHECK(InvalidProgram, parts.back(), "decoder.decoders has a null");
  }
  return std::make_unique<Sequence>(std::move(parts));
}

bool prepends(const Json& description) {
  const Json& scheme = member(description, "prepend_scheme");
  if (!bool_at(description, "add_prefix_space", true, "Metaspace")) return false;
  return scheme.is_null() || !is_text(scheme, "never");
}

std::unique_ptr<const Decoder> make_metaspace(const Json& description) {
  return stepping([sign = string_at(description, "replacement", "Metaspace"),
                   prepended = prepends(description)](std::vector<std::string>& pieces) {
    for (std::size_t i = 0; i < pieces.size(); ++i)
      pieces[i] = replaced(std::move(pieces[i]), sign, i == 0 && prepended ? "" : " ");
  });
}

}  // namespace

std::unique_ptr<const Decoder> make_decoder(const Json& description) {
  if (description.is_null()) return nullptr;
  const std::string type = string_at(description, "type", "decoder");
  if (type == "Sequence") return make_sequence(description);
  if (type == "ByteLevel") return stepping(decode_byte_level);
  if (type == "ByteFallback") return stepping(decode_byte_fallback);
  if (type == "Metaspace") return make_metaspace(description);
  if (type == "Fuse") return stepping([](std::vector<std::string>& pieces) { pieces = {joined(pieces)}; });
  if (type == "Replace")
    return stepping([pattern = pattern_at(description, type),
                     content = string_at(description, "content", type)](std::vector<std::string>& pieces) {
      for (std::string& piece : pieces) piece = pattern.replace(piece, content);
    });
  if (type == "Strip")
    return stepping([c = string_at(description, "content", type), start = integer_at(description, "start", type),
                     stop = integer_at(description, "stop", type)](std::vector<std::string>& pieces) {
      for (std::string& piece : pieces) piece = stripped(piece, c, start, stop);
    });
  if (type == "WordPiece")
    return stepping([prefix = string_at(description, "prefix", type),
                     cleanup = bool_at(description, "cleanup", true, type)](std::vector<std::string>& pieces) {
      decode_word_piece(pieces, prefix, cleanup);
    });
  if (type == "BPEDecoder")
    return stepping([suffix = string_at(description, "suffix", type)](std::vector<std::string>& pieces) {
      for (std::size_t i = 0; i < pieces.size(); ++i)
        pieces[i] = replaced(std::move(pieces[i]), suffix, i + 1 == pieces.size() ? "" : " ");
    });
  if (type == "CTC")
    return stepping([pad = string_at(description, "pad_token", type),
                     delimiter = string_at(description, "word_delimiter_token", type),
                     cleanup = bool_at(description, "cleanup", true, type)](std::vector<std::string>& pieces) {
      decode_ctc(pieces, pad, delimiter, cleanup);
    });
  throw Unsupported(str("the tokenizer has a decoder of the unknown type '", type, "'"));
}

}  // namespace graft::text
