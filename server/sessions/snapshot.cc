// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/snapshot.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/sha256.h"
#include "model/base/utf8.h"
#include "model/cache_type.h"
#include "server/sessions/sections.h"
#include "server/sessions/sequence_hash.h"

namespace rivulet {
namespace {

constexpr absl::string_view kMagic = "RVLTSNAP";
// Version 2 is for the family's models, whose states have more parts, version 3 for models whose
// states grow with their tokens.
constexpr uint32_t kLinearVersion = 1, kPartsVersion = 2, kGrowingVersion = 3;
constexpr size_t kMacBytes = 32;
constexpr size_t kChunkBytes = size_t{1} << 20;
// Most bytes of the strings, marks and numbers of the first section.
constexpr size_t kMaxMetaBytes = size_t{64} << 10;

enum Section : uint32_t { kMeta = 1, kTokens = 2, kState = 3, kEnd = 4 };

absl::Status Refuse(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  detail.field = "chunk";
  return MakeError(code, message, detail);
}

absl::Status Damaged(absl::string_view what) {
  return Refuse(absl::StatusCode::kDataLoss, "SNAPSHOT_DAMAGED",
                absl::StrCat("the snapshot is damaged: ", what, "."));
}

std::string Mac(absl::string_view bytes, absl::string_view key) {
  unsigned char mac[kMacBytes];
  unsigned int size = sizeof mac;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), mac, &size);
  return std::string(reinterpret_cast<const char*>(mac), size);
}

// The payload of the next section, which must be of this type and match its checksum.
absl::StatusOr<absl::string_view> NextSection(SectionReader* reader, Section type) {
  auto payload = reader->Section(type);
  if (!payload.ok()) return Damaged(payload.status().message());
  return payload;
}

uint32_t VersionOf(const Snapshot& s) {
  if (s.grows) return kGrowingVersion;
  return s.layout_sha256.empty() ? kLinearVersion : kPartsVersion;
}

std::string EncodeMeta(const Snapshot& s, size_t state_floats) {
  SectionWriter meta;
  for (const std::string* text :
       {&s.model_name, &s.weights_sha256, &s.config_sha256, &s.numerics_id, &s.tenant}) {
    meta.Text(*text);
  }
  if (VersionOf(s) == kLinearVersion) {
    for (const int n : {s.layout.layers, s.layout.heads, s.layout.features, s.layout.value_dim}) {
      meta.Number(static_cast<int32_t>(n));
    }
  } else {
    meta.Text(s.layout_sha256);
    meta.Number(static_cast<uint64_t>(state_floats));
  }
  meta.Number(s.seed);
  meta.Number(s.sequence_hash);
  meta.Number(static_cast<uint64_t>(s.tokens.size()));
  meta.Number(s.fed);
  meta.Number(static_cast<uint32_t>(s.marks.size()));
  for (const auto& [name, position] : s.marks) {
    meta.Text(name);
    meta.Number(position);
  }
  return meta.Take();
}

// `state_floats`: the floats of a state, from version 2 on.
absl::Status DecodeMeta(absl::string_view payload, uint32_t version, Snapshot* s,
                        uint64_t* num_tokens, uint64_t* state_floats) {
  if (payload.size() > kMaxMetaBytes) return Damaged("its first section is too long");
  SectionReader meta(payload);
  for (std::string* text :
       {&s->model_name, &s->weights_sha256, &s->config_sha256, &s->numerics_id, &s->tenant}) {
    *text = meta.Text();
  }
  if (version == kLinearVersion) {
    for (int* n :
         {&s->layout.layers, &s->layout.heads, &s->layout.features, &s->layout.value_dim}) {
      *n = meta.Number<int32_t>();
    }
  } else {
    s->grows = version == kGrowingVersion;
    s->layout_sha256 = meta.Text();
    *state_floats = meta.Number<uint64_t>();
    if (s->layout_sha256.size() != 2 * SHA256_DIGEST_LENGTH) {
      return Damaged("the hash of its layout has another length");
    }
  }
  s->seed = meta.Number<uint64_t>();
  s->sequence_hash = meta.Number<uint64_t>();
  *num_tokens = meta.Number<uint64_t>();
  s->fed = meta.Number<int64_t>();
  for (auto left = meta.Number<uint32_t>(); left > 0 && meta.ok(); --left) {
    std::string name = meta.Text();
    const auto position = meta.Number<int64_t>();
    if (position < 0 || static_cast<uint64_t>(position) > *num_tokens) {
      return Damaged("a mark lies outside the history");
    }
    // The name is sent as text, which must be UTF-8 on the wire.
    if (!IsUtf8(name)) return Damaged("a mark's name is not UTF-8");
    if (!s->marks.emplace(std::move(name), position).second) return Damaged("a mark stands twice");
  }
  if (!meta.ok() || !meta.at_end()) return Damaged("its first section has another length");
  // One more than the tokens: the implied bos.
  if (s->fed < 0 || (s->fed > 0 && static_cast<uint64_t>(s->fed - 1) > *num_tokens)) {
    return Damaged("its state has seen more tokens than there are");
  }
  return absl::OkStatus();
}

std::string EncodeTokens(const Snapshot& s) {
  SectionWriter tokens;
  tokens.Bytes(s.tokens.data(), s.tokens.size() * sizeof(int32_t));
  std::string flags((s.tokens.size() + 7) / 8, '\0');
  for (size_t i = 0; i < s.generated.size(); ++i) {
    if (s.generated[i]) flags[i / 8] = static_cast<char>(flags[i / 8] | 1 << i % 8);
  }
  tokens.Bytes(flags.data(), flags.size());
  return tokens.Take();
}

absl::Status DecodeTokens(absl::string_view payload, uint64_t count, Snapshot* s) {
  const uint64_t most = payload.size() / sizeof(int32_t);
  if (count > most || payload.size() != count * sizeof(int32_t) + (count + 7) / 8) {
    return Damaged("its tokens have another number");
  }
  s->tokens.resize(count);
  if (count > 0) std::memcpy(s->tokens.data(), payload.data(), count * sizeof(int32_t));
  const absl::string_view flags = payload.substr(count * sizeof(int32_t));
  for (size_t i = 0; i < count; ++i) s->generated.push_back((flags[i / 8] >> i % 8 & 1) != 0);
  if (count % 8 != 0 && static_cast<unsigned char>(flags.back()) >> count % 8 != 0) {
    return Damaged("bits beyond its tokens are set");
  }
  if (HashTokens(kEmptySequenceHash, s->tokens) != s->sequence_hash) {
    return Damaged("the hash of its tokens does not match");
  }
  return absl::OkStatus();
}

// Whether a state of version 1's layout fits into `num_bytes`. The first product has no padding; if
// it is small, the second does not overflow.
bool Fits(const kernels::StateLayout& l, size_t num_bytes) {
  const double floats = static_cast<double>(l.layers) * l.heads * l.features * (l.value_dim + 1.0);
  return l.layers >= 1 && l.heads >= 1 && l.features >= 1 && l.value_dim >= 1 &&
         floats <= static_cast<double>(num_bytes) && l.bytes_per_slot() <= num_bytes;
}

absl::Status DecodeState(SectionReader* reader, size_t num_bytes, uint64_t state_floats,
                         Snapshot* s) {
  if (s->fed == 0) return absl::OkStatus();
  // A layout must not ask for more bytes than there are.
  const bool fits = VersionOf(*s) == kLinearVersion
                        ? Fits(s->layout, num_bytes)
                        : state_floats >= 1 && state_floats <= num_bytes / sizeof(float);
  if (!fits) return Damaged("its layout does not fit its size");
  s->state.resize(VersionOf(*s) == kLinearVersion ? s->layout.floats_per_slot() : state_floats);
  const size_t size = s->state.size() * sizeof(float);
  for (size_t at = 0; at < size;) {
    RIVULET_ASSIGN_OR_RETURN(const absl::string_view chunk, NextSection(reader, Section::kState));
    if (chunk.size() != std::min(kChunkBytes, size - at)) return Damaged("its state has gaps");
    std::memcpy(reinterpret_cast<char*>(s->state.data()) + at, chunk.data(), chunk.size());
    at += chunk.size();
  }
  return absl::OkStatus();
}

absl::Status CheckMac(absl::string_view covered, absl::string_view mac, absl::string_view key) {
  if (!mac.empty() && mac.size() != kMacBytes) return Damaged("its end has another length");
  if (key.empty()) return absl::OkStatus();
  const std::string want = Mac(covered, key);
  if (mac.size() == want.size() && CRYPTO_memcmp(mac.data(), want.data(), want.size()) == 0) {
    return absl::OkStatus();
  }
  return Refuse(absl::StatusCode::kFailedPrecondition, "SNAPSHOT_KEY",
                mac.empty() ? "the snapshot is not signed, and this server asks for that."
                            : "the snapshot was not signed with this server's key.");
}

// Up to the end of the first section.
absl::Status DecodeBeginning(SectionReader* reader, Snapshot* snapshot, uint64_t* num_tokens,
                             uint64_t* state_floats) {
  if (reader->Bytes(kMagic.size()) != kMagic)
    return Damaged("it does not begin as a snapshot does");
  const auto version = reader->Number<uint32_t>();
  if (!reader->ok()) return Damaged("it ends early");
  if (version < kLinearVersion || version > kGrowingVersion) {
    return Refuse(absl::StatusCode::kFailedPrecondition, "SNAPSHOT_VERSION",
                  absl::StrCat("the snapshot has format version ", version, "; this server reads ",
                               kLinearVersion, " to ", kGrowingVersion, "."));
  }
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view meta, NextSection(reader, Section::kMeta));
  return DecodeMeta(meta, version, snapshot, num_tokens, state_floats);
}

}  // namespace

void SetFingerprint(const Model& model, Snapshot* snapshot) {
  const ModelConfig& config = model.config();
  snapshot->model_name = config.name;
  snapshot->weights_sha256 = model.weights_sha256();
  snapshot->config_sha256 = Sha256Hex(model.config_text());
  const ModelConfig::StateIdentity state = config.state_identity();
  snapshot->layout = state.layout;
  snapshot->layout_sha256 = state.text.empty() ? "" : Sha256Hex(state.text);
  snapshot->grows = config.state().size().per_block > 0;
}

SnapshotEncoder::SnapshotEncoder(const Snapshot& snapshot,
                                 std::vector<std::span<const float>> state, absl::string_view key)
    : state_(std::move(state)) {
  std::reverse(state_.begin(), state_.end());
  size_t floats = 0;
  for (const auto& part : state_) floats += part.size();
  SectionWriter out;
  out.Bytes(kMagic.data(), kMagic.size());
  out.Number(VersionOf(snapshot));
  out.AddSection(Section::kMeta, EncodeMeta(snapshot, floats));
  out.AddSection(Section::kTokens, EncodeTokens(snapshot));
  begin_ = out.Take();
  if (key.empty()) return;
  mac_.reset(EVP_MD_CTX_new());
  EVP_PKEY* const owned = EVP_PKEY_new_raw_private_key(
      EVP_PKEY_HMAC, nullptr, reinterpret_cast<const unsigned char*>(key.data()), key.size());
  const bool begun = mac_ != nullptr && owned != nullptr &&
                     EVP_DigestSignInit(mac_.get(), nullptr, EVP_sha256(), nullptr, owned) == 1;
  EVP_PKEY_free(owned);
  if (!begun) throw std::bad_alloc();
}

std::string SnapshotEncoder::Next() {
  if (ended_) return "";
  while (!state_.empty() && state_.back().empty()) state_.pop_back();
  std::string bytes = std::exchange(begin_, "");
  if (bytes.empty()) bytes = state_.empty() ? End() : Chunk();
  if (mac_ != nullptr && !ended_) EVP_DigestSignUpdate(mac_.get(), bytes.data(), bytes.size());
  return bytes;
}

std::string SnapshotEncoder::Chunk() {
  std::string chunk;
  chunk.reserve(kChunkBytes);
  while (!state_.empty() && chunk.size() < kChunkBytes) {
    std::span<const float>& part = state_.back();
    const size_t count = std::min(part.size(), (kChunkBytes - chunk.size()) / sizeof(float));
    chunk.append(reinterpret_cast<const char*>(part.data()), count * sizeof(float));
    part = part.subspan(count);
    if (part.empty()) state_.pop_back();
  }
  SectionWriter out;
  out.Reserve(chunk.size() + kSectionOverhead);
  out.AddSection(Section::kState, chunk);
  return out.Take();
}

std::string SnapshotEncoder::End() {
  ended_ = true;
  unsigned char mac[kMacBytes];
  size_t size = mac_ == nullptr ? 0 : sizeof mac;
  if (mac_ != nullptr) EVP_DigestSignFinal(mac_.get(), mac, &size);
  SectionWriter out;
  out.AddSection(Section::kEnd, {reinterpret_cast<const char*>(mac), size});
  return out.Take();
}

std::string EncodeSnapshot(const Snapshot& snapshot, absl::string_view key) {
  SnapshotEncoder encoder(snapshot, {snapshot.state}, key);
  std::string all;
  for (std::string next = encoder.Next(); !next.empty(); next = encoder.Next()) all += next;
  return all;
}

std::optional<int64_t> SnapshotTokens(absl::string_view beginning) {
  SectionReader reader(beginning);
  Snapshot snapshot;
  uint64_t num_tokens = 0, state_floats = 0;
  const bool read = DecodeBeginning(&reader, &snapshot, &num_tokens, &state_floats).ok();
  if (!read || num_tokens > uint64_t{INT64_MAX}) return std::nullopt;
  return static_cast<int64_t>(num_tokens);
}

absl::StatusOr<Snapshot> DecodeSnapshot(absl::string_view bytes, absl::string_view key) {
  SectionReader reader(bytes);
  Snapshot snapshot;
  uint64_t num_tokens = 0, state_floats = 0;
  RIVULET_RETURN_IF_ERROR(DecodeBeginning(&reader, &snapshot, &num_tokens, &state_floats));
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view tokens, NextSection(&reader, Section::kTokens));
  RIVULET_RETURN_IF_ERROR(DecodeTokens(tokens, num_tokens, &snapshot));
  RIVULET_RETURN_IF_ERROR(DecodeState(&reader, bytes.size(), state_floats, &snapshot));
  const absl::string_view covered = reader.taken();
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view mac, NextSection(&reader, Section::kEnd));
  if (!reader.at_end()) return Damaged("bytes follow its end");
  RIVULET_RETURN_IF_ERROR(CheckMac(covered, mac, key));
  return snapshot;
}

absl::Status CheckSnapshot(const Snapshot& snapshot, const Model& model,
                           const BackendLimits& limits, absl::string_view tenant) {
  Snapshot ours;
  SetFingerprint(model, &ours);
  const auto other_model = [](absl::string_view part) {
    return Refuse(
        absl::StatusCode::kFailedPrecondition, "SNAPSHOT_MODEL",
        absl::StrCat("the snapshot is of another model: its ", part, " differs from this one's."));
  };
  if (snapshot.weights_sha256 != ours.weights_sha256) return other_model("weights_sha256");
  if (snapshot.config_sha256 != ours.config_sha256) return other_model("config_sha256");
  const kernels::StateLayout &a = snapshot.layout, &b = ours.layout;
  if (a.layers != b.layers || a.heads != b.heads || a.features != b.features ||
      a.value_dim != b.value_dim || snapshot.layout_sha256 != ours.layout_sha256 ||
      snapshot.grows != ours.grows) {
    return other_model("state layout");
  }
  if (snapshot.tenant != tenant) {
    return Refuse(absl::StatusCode::kPermissionDenied, "SNAPSHOT_TENANT",
                  "the snapshot belongs to another tenant.");
  }
  const ModelConfig& config = model.config();
  // Another type of cache: the state is not used.
  if (snapshot.fed > 0 && SameCache(snapshot.numerics_id, limits.numerics_id)) {
    const StateSize size = limits.state_size();
    if (snapshot.state.size() * sizeof(float) != size.At(snapshot.fed)) {
      return Damaged("its state has another size than its layout");
    }
    if (!size.AllFinite(snapshot.state)) {
      return Damaged("its state holds a value that is not finite");
    }
  }
  const int64_t bos = config.has_bos() ? 1 : 0;
  if (snapshot.fed > static_cast<int64_t>(snapshot.tokens.size()) + bos) {
    return Damaged("its state has seen more tokens than there are");
  }
  if (const auto limit = config.model_max_tokens();
      limit && static_cast<int64_t>(snapshot.tokens.size()) > *limit) {
    return Damaged("it holds more tokens than the model's sequences");
  }
  const bool known =
      std::all_of(snapshot.tokens.begin(), snapshot.tokens.end(),
                  [&](int32_t token) { return token >= 0 && token < config.vocab_size; });
  return known ? absl::OkStatus() : Damaged("it holds a token that the model does not have");
}

size_t MaxSnapshotBytes(size_t state_bytes, int64_t max_tokens) {
  const size_t sections = 3 + state_bytes / kChunkBytes + 1;
  return kMagic.size() + sizeof kGrowingVersion + kMaxMetaBytes +
         static_cast<size_t>(max_tokens) * 5 + state_bytes + sections * kSectionOverhead +
         kMacBytes;
}

}  // namespace rivulet
