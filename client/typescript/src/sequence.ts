// SPDX-License-Identifier: Apache-2.0
// The running hash over a session's tokens, as the server computes it: FNV-1a, 64 bits, over each
// id as 4 bytes, lowest first.

const PRIME = 0x100000001b3n;

/** The hash after more tokens. */
export function hashTokens(tokens: ArrayLike<number>, begin: bigint): bigint {
  let hash = begin;
  for (const token of Array.from(tokens)) {
    for (let shift = 0; shift < 32; shift += 8) {
      hash = BigInt.asUintN(64, (hash ^ BigInt((token >>> shift) & 0xff)) * PRIME);
    }
  }
  return hash;
}
