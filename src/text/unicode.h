#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Characters of UTF-8 text and their Unicode properties. Normalization and the predicates are those of Hugging Face
// tokenizers, whose tables are older than utf8proc's: characters that they do not know are left as they are.
namespace graft::text {

// Well-formed UTF-8: every maximal part that is not becomes U+FFFD, as in Python's bytes.decode(errors="replace").
std::string to_utf8(std::string_view bytes);

// The length of the character that begins with this byte; the text is well-formed.
inline std::size_t char_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Whether the byte is one of a character's after its first.
inline bool continues_char(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Reads the character at `at` of well-formed text and moves `at` behind it.
char32_t next_char(std::string_view text, std::size_t& at);
void append_char(std::string& out, char32_t c);
std::size_t count_chars(std::string_view text);
std::u32string chars_of(std::string_view text);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalized(std::string_view text, NormalForm form);
// Character by character, without context: a final sigma is an ordinary one.
std::string lowercase(std::string_view text);
std::string uppercase(std::string_view text);

bool is_white_space(char32_t c);
bool is_number(char32_t c);          // Nd, Nl, No
bool is_digit(char32_t c);           // Nd
bool is_letter(char32_t c);          // L
bool is_printable(char32_t c);       // neither C nor Z, or the space
bool is_word_char(char32_t c);       // \w of Unicode's regular expressions
bool is_combining_mark(char32_t c);  // M
bool is_accent(char32_t c);          // Mn, as BERT's normalizer has it
bool is_punctuation(char32_t c);     // as BERT's pre-tokenizer has it
bool is_control(char32_t c);         // Cc, Cf and Co, as BERT's normalizer has it; not tab and line ends
bool is_chinese(char32_t c);         // as BERT's normalizer has it

// The end of the extended grapheme cluster that begins at `at`.
std::size_t grapheme_end(std::string_view text, std::size_t at);

}  // namespace graft::text
