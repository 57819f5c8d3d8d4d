// SPDX-License-Identifier: Apache-2.0
// Sums and products of untrusted numbers: nullopt if the result does not fit its type. Numbers that
// were checked against a limit before do not need these functions.
#pragma once

#include <concepts>
#include <optional>

namespace rivulet {

template <std::integral T>
constexpr std::optional<T> CheckedAdd(T a, T b) {
  T sum{};
  return __builtin_add_overflow(a, b, &sum) ? std::nullopt : std::optional<T>(sum);
}

template <std::integral T>
constexpr std::optional<T> CheckedMul(T a, T b) {
  T product{};
  return __builtin_mul_overflow(a, b, &product) ? std::nullopt : std::optional<T>(product);
}

}  // namespace rivulet
