// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/dir/image.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "server/sessions/sections.h"

namespace rivulet::dir_store {
namespace {

constexpr uint32_t kEntryFormat = 1;
constexpr uint32_t kHeadSection = 0x31656872;   // "rhe1"
constexpr uint32_t kBytesSection = 0x31656272;  // "rbe1"
constexpr uint32_t kChunkSection = 0x31656372;  // "rce1"

template <typename T, typename Write>
void WriteList(SectionWriter* writer, const std::vector<T>& list, Write write) {
  writer->Number(static_cast<uint32_t>(list.size()));
  for (const T& element : list) write(element);
}

template <typename Read>
void ReadList(SectionReader* reader, Read read) {
  for (auto left = reader->Number<uint32_t>(); left > 0 && reader->ok(); --left) read();
}

}  // namespace

std::string EncodeEntry(const Entry& entry) {
  SectionWriter head;
  const auto text = [&](const std::string& element) { head.Text(element); };
  head.Number(kEntryFormat);
  head.Number(entry.floor);
  head.Text(entry.session);
  head.Text(entry.file);
  head.Text(entry.claim);
  head.Number(entry.leased_until);
  head.Number(entry.expires);
  WriteList(&head, entry.sets, text);
  WriteList(&head, entry.chunks, [&](const ChunkFile& chunk) {
    head.Text(chunk.id);
    head.Number(chunk.nonce);
  });
  WriteList(&head, entry.swept_sessions, text);
  WriteList(&head, entry.swept_chunks, text);
  WriteList(&head, entry.unused_chunks, [&](const Entry::Unused& unused) {
    head.Text(unused.file.id);
    head.Number(unused.file.nonce);
    head.Number(unused.expires);
  });
  SectionWriter file;
  file.AddSection(kHeadSection, head.bytes());
  file.AddSection(kBytesSection, entry.bytes);
  return file.Take();
}

absl::StatusOr<Entry> DecodeEntry(absl::string_view bytes) {
  SectionReader file(bytes);
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view payload, file.Section(kHeadSection));
  RIVULET_ASSIGN_OR_RETURN(const absl::string_view record, file.Section(kBytesSection));
  SectionReader head(payload);
  if (const auto format = head.Number<uint32_t>(); format != kEntryFormat) {
    return absl::DataLossError(absl::StrCat("it has format ", format, ", not ", kEntryFormat));
  }
  Entry entry;
  entry.floor = head.Number<uint64_t>();
  entry.session = head.Text();
  entry.file = head.Text();
  entry.claim = head.Text();
  entry.leased_until = head.Number<int64_t>();
  entry.expires = head.Number<int64_t>();
  ReadList(&head, [&] { entry.sets.push_back(head.Text()); });
  ReadList(&head, [&] {
    std::string id = head.Text();
    entry.chunks.push_back({std::move(id), head.Number<uint64_t>()});
  });
  ReadList(&head, [&] { entry.swept_sessions.push_back(head.Text()); });
  ReadList(&head, [&] { entry.swept_chunks.push_back(head.Text()); });
  ReadList(&head, [&] {
    Entry::Unused unused;
    unused.file.id = head.Text();
    unused.file.nonce = head.Number<uint64_t>();
    unused.expires = head.Number<int64_t>();
    entry.unused_chunks.push_back(std::move(unused));
  });
  if (!head.ok() || !head.at_end() || !file.at_end()) {
    return absl::DataLossError("it has not the length that it says");
  }
  entry.bytes = std::string(record);
  return entry;
}

std::string EncodeChunk(const StoreChunk& chunk) {
  SectionWriter payload;
  payload.Reserve(chunk.id.size() + chunk.bytes.size() + sizeof(uint32_t));
  payload.Text(chunk.id);
  payload.Bytes(chunk.bytes.data(), chunk.bytes.size());
  SectionWriter file;
  file.AddSection(kChunkSection, payload.bytes());
  return file.Take();
}

absl::StatusOr<std::string> DecodeChunk(absl::string_view id, absl::string_view bytes) {
  SectionReader file(bytes);
  RIVULET_ASSIGN_OR_RETURN(absl::string_view payload, file.Section(kChunkSection));
  SectionReader reader(payload);
  const std::string found = reader.Text();
  if (!file.at_end() || found != id) return absl::DataLossError("it is another chunk");
  payload.remove_prefix(reader.taken().size());
  return std::string(payload);
}

void Image::Forget(const std::string& session) {
  const auto found = records_.find(session);
  if (found == records_.end()) return;
  for (const std::string& name : found->second.sets) {
    const auto set = sets_.find(name);
    set->second.erase({found->second.expires, session});
    if (set->second.empty()) sets_.erase(set);
  }
  Count(&found->second.use, {});
  records_.erase(found);
}

void Image::Drop(const std::string& chunk) {
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end()) return;
  Count(&found->second.use, {});
  chunks_.erase(found);
}

void Image::Count(Use* use, Use counted) {
  const auto add = [this](const Use& one, int64_t bytes) {
    if (one.account.empty()) return;
    Account& account = accounts_[one.account];
    account.bytes += bytes;
    int64_t& expiring = account.expiring[one.expires];
    if ((expiring += bytes) == 0) account.expiring.erase(one.expires);
    if (account.expiring.empty()) accounts_.erase(one.account);
  };
  add(*use, -use->bytes);
  *use = std::move(counted);
  add(*use, use->bytes);
}

void Image::Name(uint64_t number, const ChunkFile& file, int64_t expires) {
  Chunk& chunk = chunks_[file.id];
  chunk.number = number;
  chunk.nonce = file.nonce;
  chunk.expires = std::max(chunk.expires, expires);
  Count(&chunk.use, {chunk.use.account, chunk.use.bytes, chunk.expires});
}

void Image::Apply(uint64_t number, const Entry& entry) {
  floor_ = std::max(floor_, entry.floor);
  if (entry.session.empty()) {
    ++sweeps_;
    for (const std::string& session : entry.swept_sessions) Forget(session);
    for (const std::string& id : entry.swept_chunks) Drop(id);
    for (size_t i = 0; i < entry.unused_chunks.size(); ++i) {
      const auto& [file, expires] = entry.unused_chunks[i];
      Name(number, file, expires);
      if (i >= entry.chunks.size()) continue;  // a server of the version before wrote it
      Chunk& chunk = chunks_[file.id];
      const ChunkFile& counted = entry.chunks[i];
      Count(&chunk.use, {counted.id, static_cast<int64_t>(counted.nonce), chunk.expires});
    }
    return;
  }
  Forget(entry.session);
  Record& record = records_[entry.session];
  record.number = number;
  record.file = entry.file;
  record.claim = entry.claim;
  record.leased_until = entry.leased_until;
  record.expires = entry.expires;
  for (const std::string& set : entry.sets) {
    if (!sets_[set].insert({entry.expires, entry.session}).second) continue;  // named twice
    record.sets.push_back(set);
  }
  for (const ChunkFile& file : entry.chunks) Name(number, file, entry.expires);
  for (const std::string& id : entry.swept_chunks) Drop(id);
  if (entry.swept_sessions.empty()) return;
  const std::string& account = entry.swept_sessions.front();
  Count(&record.use, {account, std::ssize(entry.bytes) + kStoreEntryBytes, entry.expires});
  for (const auto& counted : entry.unused_chunks) {
    const auto chunk = chunks_.find(counted.file.id);
    if (chunk == chunks_.end()) continue;
    Count(&chunk->second.use, {account, counted.expires, chunk->second.expires});
  }
}

void Image::ApplyDamaged(const std::string& session, Record record) {
  Forget(session);
  record.damaged = true;
  records_[session] = std::move(record);
}

const Image::Record* Image::FindRecord(const std::string& session, int64_t now) const {
  const auto found = records_.find(session);
  return found == records_.end() || found->second.expires <= now ? nullptr : &found->second;
}

const Image::Chunk* Image::FindChunk(const std::string& id, int64_t now) const {
  const auto found = chunks_.find(id);
  return found == chunks_.end() || found->second.expires <= now ? nullptr : &found->second;
}

int64_t Image::CountMembers(const std::string& set, int64_t now) const {
  const auto found = sets_.find(set);
  if (found == sets_.end()) return 0;
  const Members& members = found->second;
  auto expired = members.begin();  // few: sweeps forget them
  int64_t count = static_cast<int64_t>(members.size());
  for (; expired != members.end() && expired->first <= now; ++expired) --count;
  return count;
}

int64_t Image::BytesOf(const std::string& account, int64_t now) const {
  const auto found = accounts_.find(account);
  if (found == accounts_.end()) return 0;
  int64_t bytes = found->second.bytes;
  for (const auto& [expires, expired] : found->second.expiring) {
    if (expires > now) break;
    bytes -= expired;  // few: sweeps forget them
  }
  return bytes;
}

int64_t Image::NoBytesFor(const StoreWrite& write, const Record* record, int64_t now) const {
  const StoreAccount& account = write.account;
  if (account.name.empty() || account.most <= 0) return 0;
  int64_t more = std::ssize(write.record.bytes) + kStoreEntryBytes;
  if (record != nullptr && record->use.account == account.name) more -= record->use.bytes;
  for (const StoreChunk& chunk : write.chunks) more += std::ssize(chunk.bytes) + kStoreEntryBytes;
  const int64_t bytes = BytesOf(account.name, now);
  return bytes + more <= account.most ? 0 : std::max<int64_t>(bytes, 1);
}

absl::StatusOr<Image::Verdict> Image::Judge(const StoreWrite& write, int64_t now) const {
  const Record* const record = FindRecord(write.session, now);
  if (record == nullptr && !write.expected.empty()) return Verdict{StoreAnswer::Kind::kMissing};
  if (record != nullptr && record->damaged) {
    return absl::DataLossError("The session's record in the store is damaged.");
  }
  if (record != nullptr && record->claim != write.expected) {
    return Verdict{StoreAnswer::Kind::kClaimMismatch};
  }
  for (size_t i = 0; record == nullptr && i < write.sets.size(); ++i) {
    const int64_t members = CountMembers(write.sets[i].name, now);
    if (members >= write.sets[i].most) return Verdict{StoreAnswer::Kind::kFull, i, members};
  }
  for (const std::string& id : write.kept_chunks) {
    if (FindChunk(id, now) == nullptr) {
      return absl::DataLossError(absl::StrCat("Chunk ", id, " is not in the session store."));
    }
  }
  const int64_t bytes = NoBytesFor(write, record, now);
  if (bytes > 0) return Verdict{StoreAnswer::Kind::kNoBytes, 0, bytes};
  return Verdict{};
}

std::vector<SessionStore::Member> Image::List(const std::string& set, int64_t after, int64_t count,
                                              int64_t now) const {
  std::vector<SessionStore::Member> listed;
  const auto found = sets_.find(set);
  if (found == sets_.end()) return listed;
  const Members& members = found->second;
  const int64_t first = std::min(std::max(after, now), INT64_MAX - 1) + 1;
  for (auto member = members.lower_bound({first, ""}); member != members.end(); ++member) {
    const bool enough = static_cast<int64_t>(listed.size()) >= count;
    if (enough && (listed.empty() || listed.back().expires_ms != member->first)) break;
    listed.push_back({member->second, member->first});
  }
  return listed;
}

}  // namespace rivulet::dir_store
