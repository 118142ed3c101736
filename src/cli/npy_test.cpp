#include "cli/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cli/text.h"

namespace graft::cli {
namespace {

Bytes bytes_of(const std::string& text) {
  Bytes bytes = allocate(text.size());
  std::memcpy(bytes.data.get(), text.data(), text.size());
  return bytes;
}

std::string file(const std::string& dict, const std::string& data, char version = 1) {
  std::string out = "\x93NUMPY";
  out += version;
  out += '\0';
  const std::string header = dict + "\n";
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) out += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return out + header + data;
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
std::vector<T> elements(const Array& array) {
  const T* data = static_cast<const T*>(array.tensor.data);
  return std::vector<T>(data, data + array.tensor.shape.numel());
}

std::string error_of(const std::string& text) {
  try {
    parse_npy(bytes_of(text), "x.npy");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Npy, ReadsEveryVersionAndKeyOrder) {
  for (const char version : {'\1', '\2', '\3'}) {
    const Array array = parse_npy(bytes_of(file("{'shape': (2, 1), \"descr\": '<i4', 'fortran_order': False}",
                                                raw<std::int32_t>({7, -8}), version)),
                                  "x.npy");
    EXPECT_EQ(array.tensor.dtype, DType::i32);
    EXPECT_EQ(array.tensor.shape, (Shape{2, 1}));
    EXPECT_EQ(elements<std::int32_t>(array), (std::vector<std::int32_t>{7, -8}));
  }
}

TEST(Npy, ConvertsFortranOrderAndBigEndian) {
  // [[1, 2, 3], [4, 5, 6]] by columns, high byte first.
  const std::string data("\0\1\0\4\0\2\0\5\0\3\0\6", 12);
  const Array array =
      parse_npy(bytes_of(file("{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }", data)), "x");
  EXPECT_EQ(array.tensor.shape, (Shape{2, 3}));
  EXPECT_EQ(elements<std::int16_t>(array), (std::vector<std::int16_t>{1, 2, 3, 4, 5, 6}));
}

TEST(Npy, FortranOrderOfThreeDimensions) {
  std::vector<std::uint8_t> data(24);
  for (std::uint8_t i = 0; i < 2; ++i)
    for (std::uint8_t j = 0; j < 3; ++j)
      for (std::uint8_t k = 0; k < 4; ++k)
        data[static_cast<std::size_t>(i + 2 * j + 6 * k)] = static_cast<std::uint8_t>(100 * i + 10 * j + k);
  const Array array =
      parse_npy(bytes_of(file("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4)}", raw(data))), "x");
  std::vector<std::uint8_t> expected;
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) expected.push_back(static_cast<std::uint8_t>(100 * i + 10 * j + k));
  EXPECT_EQ(elements<std::uint8_t>(array), expected);
}

TEST(Npy, WhatIsWrittenIsReadBack) {
  std::vector<std::byte> data(16);
  for (int t = 0; t < static_cast<int>(kDTypeCount); ++t)
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{2}, Shape{1, 2, 1}, Shape{1, 1, 1, 1, 1, 1, 1, 2}}) {
      const auto dtype = static_cast<DType>(t);
      const std::string header = npy_header(dtype, shape);
      EXPECT_EQ(header.size() % 64, 0U);
      const std::size_t bytes = TensorDesc(dtype, shape).byte_count();
      const Array array =
          parse_npy(bytes_of(header + std::string(reinterpret_cast<const char*>(data.data()), bytes)), "x.npy");
      EXPECT_EQ(array.tensor.dtype, dtype);
      EXPECT_EQ(array.tensor.shape, shape);
    }
}

TEST(Npy, RefusesWhatItCannotHold) {
  const auto with = [](const std::string& descr, const std::string& shape) {
    return error_of(file("{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + "}", ""));
  };
  for (const char* descr :
       {"'<c8'", "'|O'", "'<U3'", "'<u4'", "'<u8'", "'<f16'", "'|S1'", "'f4'", "''", "'!f4'", "'<f4 '"})
    EXPECT_NE(with(descr, "(0,)").find("is not supported"), std::string::npos) << descr;
  EXPECT_NE(with("[('a', '<f4')]", "(0,)").find("structured"), std::string::npos);
  EXPECT_NE(with("'<f4'", "(1,1,1,1,1,1,1,1,0)").find("at most 8 dimensions"), std::string::npos);
  EXPECT_NE(with("'<f4'", "(4611686018427387904, 4)").find("does not fit"), std::string::npos);
  EXPECT_NE(with("'<f4'", "(0, 4611686018427387904, 4)").find("does not fit"), std::string::npos);
  EXPECT_NE(with("'<f4'", "(99999999999999999999,)").find("expected a size"), std::string::npos);
  EXPECT_NE(with("'<f4'", "(-1,)").find("expected a size"), std::string::npos);
  EXPECT_NE(with("'<f4'", "(1000000000,)").find("must have 4000000000 bytes"), std::string::npos);
}

TEST(Npy, NamesWhatIsMalformed) {
  EXPECT_NE(error_of("").find("not a .npy file"), std::string::npos);
  EXPECT_NE(error_of("PK\3\4 something else").find("not a .npy file"), std::string::npos);
  EXPECT_NE(error_of(file("{'descr': '<f4'}", "", 4)).find("version must be 1, 2 or 3"), std::string::npos);
  EXPECT_NE(error_of(file("{'descr': '<f4'}", "")).find("must have the keys"), std::string::npos);
  EXPECT_NE(error_of(std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14)).find("truncated"), std::string::npos);
  EXPECT_NE(error_of(file("{'descr': '<f4', 'descr': '<f4'}", "")).find("twice"), std::string::npos);
  EXPECT_NE(error_of(file("{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", "\1\2")).find("0 or 1"),
            std::string::npos);
  // More data than the header says: several arrays in one file are not silently dropped.
  EXPECT_NE(error_of(file("{'descr': '|b1', 'fortran_order': False, 'shape': (1,)}", "\1\1")).find("must have 1 bytes"),
            std::string::npos);
}

// Cut anywhere or with bits flipped: an error or an array, never a crash (run under sanitizers too).
TEST(Npy, DamagedFilesAreErrors) {
  const std::string good = npy_header(DType::f32, Shape{2, 3}) + raw<float>({1, 2, 3, 4, 5, 6});
  ASSERT_EQ(error_of(good), "no error");
  for (std::size_t cut = 0; cut < good.size(); ++cut) EXPECT_NE(error_of(good.substr(0, cut)), "no error") << cut;
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (auto flips = random() % 4 + 1; flips > 0; --flips) {
      char& byte = bad[random() % bad.size()];
      byte = static_cast<char>(byte ^ (1 << random() % 8));
    }
    error_of(bad);
  }
}

}  // namespace
}  // namespace graft::cli
