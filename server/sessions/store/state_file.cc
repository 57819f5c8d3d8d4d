// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/store/state_file.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "model/base/sha256.h"
#include "server/sessions/sections.h"
#include "server/sessions/snapshot.h"

namespace rivulet {
namespace {

constexpr absl::string_view kMagic = "RVLTSTAT";
constexpr uint32_t kVersion = 2;
constexpr size_t kChunkBytes = size_t{1} << 20;
enum Section : uint32_t { kMeta = 1, kState = 2 };

std::string Header(const StateStamp& stamp, uint64_t number, size_t num_values) {
  SectionWriter meta;
  for (const std::string* text :
       {&stamp.weights_sha256, &stamp.config_sha256, &stamp.numerics_id, &stamp.owner}) {
    meta.Text(*text);
  }
  meta.Number(number);
  meta.Number(static_cast<uint64_t>(num_values));
  SectionWriter header;
  header.Bytes(kMagic.data(), kMagic.size());
  header.Number(kVersion);
  header.AddSection(Section::kMeta, meta.bytes());
  return header.Take();
}

// Reads all remaining values.
absl::StatusOr<std::vector<float>> ReadValues(SectionReader* reader, size_t num_values) {
  std::vector<float> values(num_values);
  const size_t size = num_values * sizeof(float);
  for (size_t at = 0; at < size;) {
    RIVULET_ASSIGN_OR_RETURN(const absl::string_view chunk, reader->Section(Section::kState));
    if (chunk.size() != std::min(kChunkBytes, size - at)) {
      return absl::DataLossError("its state has gaps");
    }
    std::memcpy(reinterpret_cast<char*>(values.data()) + at, chunk.data(), chunk.size());
    at += chunk.size();
  }
  if (!reader->at_end()) return absl::DataLossError("bytes follow its end");
  return values;
}

}  // namespace

StateStamp MakeStateStamp(const Model& model, absl::string_view numerics_id) {
  Snapshot fingerprint;
  SetFingerprint(model, &fingerprint);
  StateStamp stamp;
  stamp.weights_sha256 = fingerprint.weights_sha256;
  stamp.config_sha256 = fingerprint.config_sha256;
  stamp.numerics_id = std::string(numerics_id);
  for (int i = 0; i < 2; ++i) {
    absl::StrAppend(&stamp.owner, absl::Hex(RandomWord(), absl::kZeroPad16));
  }
  return stamp;
}

StateStamp ArchivedStateStamp(StateStamp model, absl::string_view tenant,
                              absl::string_view previous, std::span<const int32_t> tokens) {
  SectionWriter owner;
  owner.Text(tenant);
  owner.Text(previous);
  owner.Bytes(tokens.data(), tokens.size_bytes());
  model.owner = owner.Take();
  return model;
}

std::string ArchivedStateName(const StateStamp& stamp, uint64_t number, size_t num_values) {
  return Sha256Hex(Header(stamp, number, num_values));
}

size_t StateFileBytes(const StateStamp& stamp, size_t num_values) {
  const size_t state = num_values * sizeof(float);
  const size_t sections = (state + kChunkBytes - 1) / kChunkBytes;
  return Header(stamp, 0, num_values).size() + state + sections * kSectionOverhead;
}

std::string EncodeStateFile(const StateStamp& stamp, uint64_t number,
                            std::span<const float> values) {
  const absl::string_view state(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  const std::string header = Header(stamp, number, values.size());
  SectionWriter out;
  out.Reserve(StateFileBytes(stamp, values.size()));
  out.Bytes(header.data(), header.size());
  for (size_t at = 0; at < state.size(); at += kChunkBytes) {
    out.AddSection(Section::kState, state.substr(at, kChunkBytes));
  }
  return out.Take();
}

absl::StatusOr<std::vector<float>> DecodeStateFile(absl::string_view bytes, const StateStamp& stamp,
                                                   uint64_t number, size_t num_values) {
  // Byte for byte: any other header was not written for this state.
  const std::string header = Header(stamp, number, num_values);
  SectionReader reader(bytes);
  if (reader.Bytes(header.size()) != header) {
    return absl::DataLossError("it does not begin as this state's file does");
  }
  return ReadValues(&reader, num_values);
}

absl::StatusOr<std::vector<float>> DecodeArchivedState(absl::string_view bytes,
                                                       absl::string_view name, size_t num_values) {
  SectionReader reader(bytes);
  reader.Bytes(kMagic.size() + sizeof kVersion);
  RIVULET_RETURN_IF_ERROR(reader.Section(Section::kMeta).status());
  if (Sha256Hex(reader.taken()) != name) {
    return absl::DataLossError("it does not begin as the state of this name does");
  }
  return ReadValues(&reader, num_values);
}

}  // namespace rivulet
