#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace graft {
namespace {

std::string digest_of(const std::string& text) { return hex_of(sha256(std::as_bytes(std::span(text)))); }

// The examples of FIPS 180-2 and the lengths around the padding's edges (from Python's hashlib).
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(digest_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest_of(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(digest_of(std::string(55, 'b')), "eb2c86e932179f4ba13fe8715a26124b77d6bad290b9b4c1cc140cf633300c19");
  EXPECT_EQ(digest_of(std::string(56, 'b')), "a5fc6e203a4c2b657d0d153885932414b2ffc6a93f0f8bf8b3183315e5a7212c");
  EXPECT_EQ(digest_of(std::string(64, 'b')), "a0fab1377f49a759b57f63318262ebe89fabfc990e8e93ceac2984561482b9d4");
}

TEST(Sha256, PartsAreTheWhole) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (std::size_t step = 1; step <= text.size(); step += step < 130 ? 1 : 30) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += step)
      hash.add(std::as_bytes(std::span(text)).subspan(at, std::min(step, text.size() - at)));
    hash.add({});
    EXPECT_EQ(hex_of(hash.digest()), digest_of(text)) << step;
  }
}

}  // namespace
}  // namespace graft
