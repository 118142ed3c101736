#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <span>
#include <string_view>
#include <vector>

// Texts and numbers as Python's bytes: a text may not be UTF-8, and numpy makes arrays of bytes without a copy.
namespace graft {

inline nanobind::bytes bytes_of(std::string_view text) { return nanobind::bytes(text.data(), text.size()); }

inline nanobind::bytes bytes_of(std::span<const float> numbers) {
  return nanobind::bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
}

inline std::vector<float> floats_of(const nanobind::bytes& bytes) {
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.c_str(), numbers.size() * sizeof(float));
  return numbers;
}

}  // namespace graft
