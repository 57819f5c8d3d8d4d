// SPDX-License-Identifier: Apache-2.0
// The running hash of a session's tokens that replies and snapshots carry: FNV-1a, 64 bits, over
// each id as 4 bytes, lowest first [Fowler, Noll, Vo 1991]. It detects lost and repeated tokens; it
// does not protect against forgery.
#pragma once

#include <cstdint>
#include <span>

namespace rivulet {

inline constexpr uint64_t kEmptySequenceHash = 0xcbf29ce484222325;

// The hash after one more token. Thread: any.
constexpr uint64_t HashToken(uint64_t hash, int32_t token) {
  for (int byte = 0; byte < 4; ++byte) {
    hash = (hash ^ (static_cast<uint32_t>(token) >> (8 * byte) & 0xffu)) * 0x100000001b3;
  }
  return hash;
}

constexpr uint64_t HashTokens(uint64_t hash, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) hash = HashToken(hash, token);
  return hash;
}

}  // namespace rivulet
