#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mutate.h"

// What all mutators are made of. The same seed gives the same choices.
namespace graft::fuzz {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t count) { return count == 0 ? 0 : engine_() % count; }
  std::uint64_t next() { return engine_(); }
  bool one_in(std::size_t n) { return below(n) == 0; }

  template <typename T>
  T& of(std::vector<T>& items) {
    return items[below(items.size())];
  }
  // Mostly near the old value, sometimes at a limit of some integer range.
  std::int64_t integer(std::int64_t old) {
    constexpr std::array<std::int64_t, 18> kEnds = {0,         1,         -1,        2,         3,         4,
                                                    8,         33,        64,        255,       1 << 16,   1 << 24,
                                                    INT32_MAX, INT32_MIN, 1LL << 40, 1LL << 62, INT64_MAX, INT64_MIN};
    switch (below(6)) {
      case 0:
        return kEnds[below(kEnds.size())];
      case 1:
        return static_cast<std::int64_t>(below(9)) - 4;
      case 2:
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(old) * 2);
      case 3:
        return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(old));
      default:
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(old) + (one_in(2) ? 1 : ~std::uint64_t{0}));
    }
  }
  double real(double old) {
    constexpr std::array<double, 8> kEnds = {
        0, -0.0, 1, -1, 1e30, 0.5, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()};
    return one_in(2) ? kEnds[below(kEnds.size())] : old * 1.5 + 1;
  }
  template <typename T>
  void change(T& number) {
    number = static_cast<T>(integer(static_cast<std::int64_t>(number)));
  }
  // An enum, sometimes one beyond the last.
  template <typename Enum>
  void change_enum(Enum& e, int last) {
    e = static_cast<Enum>(below(static_cast<std::size_t>(last) + (one_in(8) ? 3 : 1)));
  }
  void text(std::string& s) {
    if (s.empty() || one_in(4))
      s = one_in(2) ? "" : std::string(below(40), 'x');
    else
      s[below(s.size())] = static_cast<char>(below(256));
  }

  // Removes, repeats or exchanges items; false when there is nothing to change. `copy` makes a new item.
  template <typename T, typename Copy>
  bool rearrange(std::vector<T>& items, Copy&& copy) {
    if (items.empty()) return false;
    const std::size_t at = below(items.size());
    switch (below(3)) {
      case 0:
        items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
        return true;
      case 1: {
        T item = copy(items[at]);
        items.insert(items.begin() + static_cast<std::ptrdiff_t>(below(items.size() + 1)), std::move(item));
        return true;
      }
      default:
        std::swap(items[at], of(items));
        return true;
    }
  }
  template <typename T>
  bool rearrange(std::vector<T>& items) {
    return rearrange(items, [](const T& item) { return item; });
  }

 private:
  std::mt19937_64 engine_;
};

// Changes, cuts or lengthens bytes that are taken as no more than that.
inline Blob mutate_bytes(std::span<const std::byte> bytes, Random& random) {
  Blob out(bytes.begin(), bytes.end());
  if (out.empty() || random.one_in(8)) {
    out.resize(random.one_in(2) ? random.below(out.size() + 1) : out.size() + random.below(64));
    return out;
  }
  for (std::size_t n = 1 + random.below(4); n > 0; --n) {
    std::byte& b = random.of(out);
    b = random.one_in(2) ? static_cast<std::byte>(random.below(256))
                         : b ^ static_cast<std::byte>(1U << random.below(8));
  }
  return out;
}

}  // namespace graft::fuzz
