// SPDX-License-Identifier: Apache-2.0
// A state as bytes: in a file, which only the server that wrote it reads, or in an archive that
// replicas share (replicated/state_archive.h):
//
//   "RVLTSTAT"  version u32 = 2  section...          (server/sessions/sections.h)
//   1 meta   texts: SHA-256 of the weights, of config.json, numerics id, owner; u64 number, floats
//   2 state  float32 values, cut into sections of 1 MiB, the last one shorter
//
// Unlike a snapshot (server/sessions/snapshot.h) these bytes say nothing about a session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/model.h"

namespace rivulet {

// What all files of one server and model have in common.
struct StateStamp {
  std::string weights_sha256, config_sha256;  // lower-case hex
  std::string numerics_id;
  // In files: unique to this process and model. In shared states: see ArchivedStateStamp.
  std::string owner;
};

// A stamp with a random owner.
StateStamp MakeStateStamp(const Model& model, absl::string_view numerics_id);

// `model` with the owner of a shared state or segment: the tenant, the name of the segment before
// it ("": there is none), which stands for all tokens up to its end, and the tokens seen since. So
// to compute the names of all segments of a state takes time linear in its tokens.
StateStamp ArchivedStateStamp(StateStamp model, absl::string_view tenant,
                              absl::string_view previous, std::span<const int32_t> tokens);
// The `number` of a shared state after `fed` tokens, the implied bos counted, without its segments;
// and of the segment that ends there.
inline uint64_t ArchivedStateNumber(int64_t fed) { return static_cast<uint64_t>(fed); }
inline uint64_t ArchivedSegmentNumber(int64_t fed) {
  return uint64_t{1} << 63 | static_cast<uint64_t>(fed);
}
// The name of a published state, or segment, of `num_values` values: SHA-256, lower-case hex, of
// all its bytes before the values.
std::string ArchivedStateName(const StateStamp& stamp, uint64_t number, size_t num_values);

// The values of a shared state with this name; they need not be finite. Errors: DATA_LOSS, unless
// the bytes are whole and the part before the values has this name.
absl::StatusOr<std::vector<float>> DecodeArchivedState(absl::string_view bytes,
                                                       absl::string_view name, size_t num_values);

// Bytes of every file of this stamp with `num_values` values.
size_t StateFileBytes(const StateStamp& stamp, size_t num_values);

std::string EncodeStateFile(const StateStamp& stamp, uint64_t number,
                            std::span<const float> values);

// The values, bit for bit as they were encoded. Errors: DATA_LOSS with what is wrong, unless the
// bytes are whole and match this stamp, number and count of values exactly.
absl::StatusOr<std::vector<float>> DecodeStateFile(absl::string_view bytes, const StateStamp& stamp,
                                                   uint64_t number, size_t num_values);

}  // namespace rivulet
