#pragma once

#include <array>

namespace graft {

// Weights of the four neighbours -1, 0, 1, 2 of a position `part` past neighbour 0 (Keys, a = -0.75, as PyTorch).
template <typename T>
std::array<T, 4> cubic_weights(T part) {
  constexpr T a = T(-0.75);
  const auto near = [](T x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [](T x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  return {far(part + 1), near(part), near(1 - part), far(2 - part)};
}

}  // namespace graft
