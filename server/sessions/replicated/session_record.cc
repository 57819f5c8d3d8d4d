// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/replicated/session_record.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/utf8.h"
#include "server/sessions/sealed/sealer.h"
#include "server/sessions/sections.h"

namespace rivulet {
namespace {

// Both forms of bytes are one section, a checksum included. Later releases only add fields at the
// end of a payload: a reader takes the fields that it knows, and missing fields are 0.
constexpr uint32_t kRecordSection = 1, kChunkSection = 2;                      // types of sections
constexpr uint32_t kRecordFormat = 1;                                          // first in a payload
constexpr uint8_t kClosed = 1, kAbandoned = 2, kRequest = 4, kOwnsChunks = 8;  // of a record
constexpr int64_t kMostChunkTokens = 65536;                                    // some 264 KiB
constexpr size_t kMostMarkBytes = 64 << 10;  // of all marks, as in a snapshot

absl::Status RecordError(absl::StatusCode code, absl::string_view reason, absl::string_view verb,
                         absl::string_view what) {
  ErrorDetail detail;
  detail.reason = std::string(reason);
  detail.field = "session_id";
  return MakeError(code, absl::StrCat("The session in the shared store ", verb, what), detail);
}

absl::StatusOr<SectionReader> Open(absl::string_view bytes, uint32_t type) {
  if (IsSealed(bytes)) {
    return UnreadableRecord("it is encrypted, and this server has no file of keys for it.");
  }
  SectionReader whole(bytes);
  const absl::StatusOr<absl::string_view> payload = whole.Section(type);
  if (!payload.ok() || !whole.at_end()) {
    return DamagedRecord("its bytes are cut or do not match their checksum.");
  }
  SectionReader reader(*payload);
  const auto format = reader.Number<uint32_t>();
  if (format == kRecordFormat) return reader;
  return RecordError(absl::StatusCode::kFailedPrecondition, "SESSION_RECORD_VERSION", "has ",
                     absl::StrCat("format ", format, "; this server reads ", kRecordFormat, "."));
}

// Whether the parts of a record agree with each other.
bool IsConsistent(const SessionRecord& record) {
  for (const std::string* const text :
       {&record.model_name, &record.weights_sha256, &record.config_sha256, &record.numerics_id,
        &record.tenant, &record.key}) {
    if (!IsUtf8(*text)) return false;  // clients are told some of them
  }
  int64_t tokens = 0;
  for (const ChunkUse& use : record.chunks) {
    if (use.id.empty() || use.tokens <= 0 || use.tokens > record.position - tokens) return false;
    tokens += use.tokens;
  }
  const auto inside = [&](int64_t position) {
    return position >= 0 && position <= record.position;
  };
  int64_t before = 0;
  for (const int64_t fed : record.states) {
    if (fed <= std::exchange(before, fed)) return false;
  }
  size_t mark_bytes = 0;
  for (const auto& [name, position] : record.marks) {
    mark_bytes += sizeof(uint32_t) + name.size() + sizeof position;
    if (!IsUtf8(name) || !inside(position)) return false;
  }
  // A bos may be fed beside the tokens.
  return before - 1 <= record.position && tokens == record.position &&
         inside(record.abandoned_from.value_or(0)) && record.idle_timeout > absl::ZeroDuration() &&
         mark_bytes <= kMostMarkBytes;
}

}  // namespace

absl::Status DamagedRecord(absl::string_view what) {
  return RecordError(absl::StatusCode::kDataLoss, "SESSION_RECORD_DAMAGED", "is damaged: ", what);
}

absl::Status UnreadableRecord(absl::string_view what) {
  return RecordError(absl::StatusCode::kFailedPrecondition, "SESSION_RECORD_KEY",
                     "cannot be read: ", what);
}

bool IsOfRecord(const absl::Status& status) {
  const std::string reason = GetErrorDetail(status).reason;
  return reason == "SESSION_RECORD_DAMAGED" || reason == "SESSION_RECORD_KEY";
}

std::string EncodeRecord(const SessionRecord& record) {
  SectionWriter payload;
  payload.Number(kRecordFormat);
  payload.Number(static_cast<uint8_t>(
      (record.closed ? kClosed : 0) | (record.abandoned_from ? kAbandoned : 0) |
      (record.request ? kRequest : 0) | (record.owns_chunks ? kOwnsChunks : 0)));
  for (const std::string& text : {record.model_name, record.weights_sha256, record.config_sha256,
                                  record.numerics_id, record.tenant, record.key}) {
    payload.Text(text);
  }
  payload.Number(record.epoch);
  payload.Number(record.position);
  payload.Number(record.sequence_hash);
  payload.Number(record.seed);
  payload.Number(absl::ToInt64Milliseconds(record.idle_timeout));
  payload.Number(record.abandoned_from.value_or(0));
  payload.Number(record.request.value_or(0));
  payload.Number(absl::ToUnixMillis(record.written));
  payload.Number(static_cast<uint32_t>(record.marks.size()));
  for (const auto& [name, position] : record.marks) {
    payload.Text(name);
    payload.Number(position);
  }
  payload.Number(static_cast<uint32_t>(record.chunks.size()));
  for (const ChunkUse& use : record.chunks) {
    payload.Text(use.id);
    payload.Number(use.tokens);
  }
  payload.Number(static_cast<uint32_t>(record.states.size()));
  for (const int64_t fed : record.states) payload.Number(fed);
  SectionWriter bytes;
  bytes.AddSection(kRecordSection, payload.bytes());
  return bytes.Take();
}

absl::StatusOr<SessionRecord> DecodeRecord(absl::string_view bytes) {
  RIVULET_ASSIGN_OR_RETURN(SectionReader reader, Open(bytes, kRecordSection));
  SessionRecord record;
  const auto flags = reader.Number<uint8_t>();
  record.closed = (flags & kClosed) != 0;
  record.owns_chunks = (flags & kOwnsChunks) != 0;
  for (std::string* const text : {&record.model_name, &record.weights_sha256, &record.config_sha256,
                                  &record.numerics_id, &record.tenant, &record.key}) {
    *text = reader.Text();
  }
  record.epoch = reader.Number<uint64_t>();
  record.position = reader.Number<int64_t>();
  record.sequence_hash = reader.Number<uint64_t>();
  record.seed = reader.Number<uint64_t>();
  record.idle_timeout = absl::Milliseconds(reader.Number<int64_t>());
  const auto abandoned_from = reader.Number<int64_t>();
  if ((flags & kAbandoned) != 0) record.abandoned_from = abandoned_from;
  const auto request = reader.Number<uint64_t>();
  if ((flags & kRequest) != 0) record.request = request;
  record.written = absl::FromUnixMillis(reader.Number<int64_t>());
  for (auto marks = reader.Number<uint32_t>(); marks > 0 && reader.ok(); --marks) {
    std::string name = reader.Text();
    record.marks[std::move(name)] = reader.Number<int64_t>();
  }
  for (auto chunks = reader.Number<uint32_t>(); chunks > 0 && reader.ok(); --chunks) {
    std::string id = reader.Text();
    record.chunks.push_back({std::move(id), reader.Number<int64_t>()});
  }
  if (!reader.at_end()) {
    for (auto states = reader.Number<uint32_t>(); states > 0 && reader.ok(); --states) {
      record.states.push_back(reader.Number<int64_t>());
    }
  }
  if (!reader.ok() || (!record.closed && !IsConsistent(record))) {
    return DamagedRecord("the parts of its record contradict each other.");
  }
  return record;
}

std::vector<ChunkUse> FirstTokens(const std::vector<ChunkUse>& uses, int64_t tokens) {
  std::vector<ChunkUse> first;
  for (const ChunkUse& use : uses) {
    if (tokens == 0) break;
    first.push_back({use.id, std::min(use.tokens, tokens)});
    tokens -= first.back().tokens;
  }
  return first;
}

int64_t CommonTokens(const std::vector<ChunkUse>& a, const std::vector<ChunkUse>& b) {
  int64_t common = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()) && a[i].id == b[i].id; ++i) {
    common += std::min(a[i].tokens, b[i].tokens);
    if (a[i].tokens != b[i].tokens) break;
  }
  return common;
}

void CoverTokens(const TokenHistory& history, absl::string_view tenant, std::vector<ChunkUse>* uses,
                 std::vector<StoreChunk>* written) {
  int64_t begin = 0;
  for (const ChunkUse& use : *uses) begin += use.tokens;
  const int64_t end = history.size();
  if (begin == end) return;
  while (!uses->empty() && uses->back().tokens <= end - begin &&
         uses->back().tokens + end - begin <= kMostChunkTokens) {
    begin -= uses->back().tokens;
    uses->pop_back();
  }
  while (begin < end) {
    const int64_t count = std::min(end - begin, kMostChunkTokens);
    uses->push_back({SessionId::Random().ToString(), count});
    written->push_back({uses->back().id, EncodeTokens(history, begin, begin + count, tenant)});
    begin += count;
  }
}

std::string EncodeTokens(const TokenHistory& history, int64_t begin, int64_t end,
                         absl::string_view tenant) {
  const auto count = static_cast<size_t>(end - begin);
  std::string generated((count + 7) / 8, '\0');
  for (size_t i = 0; i < count; ++i) {
    if (!history.generated(begin + static_cast<int64_t>(i))) continue;
    generated[i / 8] = static_cast<char>(generated[i / 8] | 1 << i % 8);
  }
  SectionWriter payload;
  payload.Number(kRecordFormat);
  payload.Text(tenant);
  payload.Number(begin);
  payload.Number(static_cast<uint64_t>(count));
  payload.Bytes(history.tokens().data() + begin, count * sizeof(int32_t));
  payload.Bytes(generated.data(), generated.size());
  SectionWriter bytes;
  bytes.AddSection(kChunkSection, payload.bytes());
  return bytes.Take();
}

absl::Status AppendTokens(const ChunkUse& use, absl::string_view bytes, absl::string_view tenant,
                          TokenHistory* history) {
  if (bytes.empty()) return DamagedRecord("a chunk of its tokens is missing.");
  RIVULET_ASSIGN_OR_RETURN(SectionReader reader, Open(bytes, kChunkSection));
  const bool ours = reader.Text() == tenant;
  const bool here = reader.Number<int64_t>() == history->size();
  const auto count = reader.Number<uint64_t>();
  if (!ours || !here || count > bytes.size() || static_cast<uint64_t>(use.tokens) > count) {
    return DamagedRecord("a chunk of its tokens is too short or of another session.");
  }
  SectionReader tokens(reader.Bytes(count * sizeof(int32_t)));
  const absl::string_view generated = reader.Bytes((count + 7) / 8);
  if (!reader.ok()) return DamagedRecord("a chunk of its tokens is cut.");
  for (size_t i = 0; i < static_cast<size_t>(use.tokens); ++i) {
    history->Append(tokens.Number<int32_t>(), (generated[i / 8] >> i % 8 & 1) != 0);
  }
  return absl::OkStatus();
}

}  // namespace rivulet
