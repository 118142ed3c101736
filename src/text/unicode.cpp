#include "text/unicode.h"

#include <utf8proc.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/check.h"
#include "base/utf8.h"
#include "text/unicode_tables.h"

namespace graft::text {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// How many bytes at `at` are one well-formed character (then `good`) or one maximal ill-formed part (Unicode 3.9,
// D93b).
std::size_t part_length(std::string_view bytes, std::size_t at, bool& good) {
  const auto byte = [&](std::size_t i) {
    return i < bytes.size() ? static_cast<unsigned>(static_cast<unsigned char>(bytes[i])) : 0u;
  };
  const unsigned lead = byte(at);
  good = true;
  if (lead < 0x80) return 1;
  good = false;
  const std::size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                             : lead >= 0xE0 && lead <= 0xEF ? 3
                             : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                            : 1;
  if (length == 1) return 1;
  // Bounds of the second byte exclude overlong forms, surrogates, and code points beyond U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(at + 1) < low || byte(at + 1) > high) return 1;
  for (std::size_t i = 2; i < length; ++i)
    if ((byte(at + i) & 0xC0) != 0x80) return i;
  good = true;
  return length;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool in_mark_category(char32_t c) {
  const utf8proc_category_t k = category(c);
  return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }  // NOLINT: utf8proc allocates so
};

// Normalizes text of characters that both tables know.
void append_normalized(std::string& out, std::string_view known, utf8proc_option_t options) {
  if (known.empty()) return;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(known.data()),
                                             static_cast<utf8proc_ssize_t>(known.size()), &result, options);
  const std::unique_ptr<utf8proc_uint8_t, Free> keep(result);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  GRAFT_CHECK(InvalidArgument, size >= 0, "text of ", known.size(),
              " bytes cannot be normalized: ", utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(result), static_cast<std::size_t>(size));
}

}  // namespace

std::string to_utf8(std::string_view bytes) {
  if (is_utf8(bytes)) return std::string(bytes);
  std::string out;
  out.reserve(bytes.size() + 16);
  for (std::size_t at = 0; at < bytes.size();) {
    bool good = false;
    const std::size_t length = part_length(bytes, at, good);
    if (good)
      out.append(bytes.substr(at, length));
    else
      append_char(out, kReplacement);
    at += length;
  }
  return out;
}

char32_t next_char(std::string_view text, std::size_t& at) {
  const auto byte = [&] { return static_cast<char32_t>(static_cast<unsigned char>(text[at++])); };
  const char32_t lead = byte();
  if (lead < 0x80) return lead;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  char32_t c = lead & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) c = c << 6 | (byte() & 0x3Fu);
  return c;
}

void append_char(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

std::size_t count_chars(std::string_view text) {
  std::size_t n = 0;
  for (char byte : text) n += !continues_char(byte);
  return n;
}

std::u32string chars_of(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) out += next_char(text, at);
  return out;
}

std::string normalized(std::string_view text, NormalForm form) {
  // NFC changes nothing below U+0300, no form changes anything below U+0080.
  const unsigned char first_changed = form == NormalForm::nfc ? 0xCC : 0x80;
  bool unchanged = true;
  for (char byte : text) unchanged &= static_cast<unsigned char>(byte) < first_changed;
  if (unchanged) return std::string(text);

  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;

  std::string out;
  out.reserve(text.size());
  std::size_t known_begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_char(text, at);
    if (!contains(kUnknownToNormalizer, c)) continue;
    append_normalized(out, text.substr(known_begin, begin - known_begin), static_cast<utf8proc_option_t>(options));
    out.append(text.substr(begin, at - begin));
    known_begin = at;
  }
  append_normalized(out, text.substr(known_begin), static_cast<utf8proc_option_t>(options));
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    if (c < 0x80)
      out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    else if (c == 0x130)  // the one character whose lowercase form is two
      out += "i\xCC\x87";
    else
      append_char(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
  return out;
}

std::string uppercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_char(text, at);
    if (c == 0xDF)
      out += "SS";
    else
      append_char(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
  return out;
}

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_number(char32_t c) {
  const utf8proc_category_t k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool is_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_letter(char32_t c) {
  const utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_printable(char32_t c) {
  const utf8proc_category_t k = category(c);
  return c == ' ' || (k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS);
}

bool is_word_char(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // joiners, and the symbols that are alphabetic: letters in circles and squares
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  }
}

bool is_combining_mark(char32_t c) {
  if (c < 0x300) return false;
  return c == 0x1CF2 || c == 0x1CF3 || (in_mark_category(c) && !contains(kUnknownToNormalizer, c));
}

bool is_accent(char32_t c) { return c >= 0x300 && (category(c) == UTF8PROC_CATEGORY_MN) != contains(kOtherAccents, c); }

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  const utf8proc_category_t k = category(c);
  return (k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO) != contains(kOtherPunctuation, c);
}

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const utf8proc_category_t k = category(c);
  const bool control = k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
  return control != contains(kOtherControls, c);
}

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

std::size_t grapheme_end(std::string_view text, std::size_t at) {
  utf8proc_int32_t state = 0;
  char32_t before = next_char(text, at);
  while (at < text.size()) {
    std::size_t after = at;
    const char32_t c = next_char(text, after);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before), static_cast<utf8proc_int32_t>(c),
                                         &state))
      break;
    before = c;
    at = after;
  }
  return at;
}

}  // namespace graft::text
