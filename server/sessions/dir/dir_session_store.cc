// SPDX-License-Identifier: Apache-2.0
// The image of the log (dir/image.h) judges a write; then its chunks and its entry are written to
// files with new names, and the entry becomes a part of the log (dir/log.h). If another entry came
// first, the write is judged again.
//
// A sweep is an entry, too. What it forgets has expired in every image, since all images have the
// same records. The files are removed after the entry. A write that wants to keep such a chunk is
// judged before the sweep, and then the sweep is refused, or after it, and then the chunk is
// missing. Files that no entry names belong to a process that died, or to a write under way. The
// files of such a write must not be missing later. The file of its entry cannot be missing: link(2)
// needs it. For chunks, the sweep lists the unnamed files before its entry, and removes the ones
// that are still unnamed after it. A write that finds a sweep in the log, made after its chunks
// were written, writes the chunks again, with new names.
#include "server/sessions/dir/dir_session_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/random_word.h"
#include "server/base/timed_calls.h"
#include "server/sessions/dir/files.h"
#include "server/sessions/dir/image.h"
#include "server/sessions/dir/log.h"
#include "server/sessions/replicated/check_write.h"

namespace rivulet {
namespace dir_store {
namespace {

constexpr size_t kMostSwept = 1000;  // sessions or chunks, by one entry
constexpr size_t kSpareBytes = 64 << 10;
// A smaller number, which fits into the spare file with names of 100 bytes.
constexpr size_t kMostSweptBySpare = 300;

absl::Status Damaged(absl::string_view what, const absl::Status& why) {
  return absl::DataLossError(
      absl::StrCat("The session store's file of ", what, " is damaged: ", why.message(), "."));
}

// The store without its thread. Thread: one at a time.
class DirStore {
 public:
  DirStore(const std::string& path, DirStoreOptions options)
      : options_(std::move(options)),
        files_(options_.before_step),
        log_(&files_, path, options_.entries_per_segment) {}

  absl::Status Open() {
    RIVULET_RETURN_IF_ERROR(log_.CatchUp());
    MakeSpare();
    return absl::OkStatus();
  }
  // `refused`: the writer was told that the write has failed.
  absl::StatusOr<StoreAnswer> Write(const StoreWrite& write, const std::atomic<bool>& refused);
  absl::StatusOr<StoreAnswer> Read(const std::string& session);
  absl::StatusOr<std::vector<std::string>> ReadChunks(const std::vector<std::string>& ids);
  absl::StatusOr<std::vector<SessionStore::Member>> List(const std::string& set, int64_t after,
                                                         int64_t count);
  // Removes what has expired and what nobody needs. Returns whether there is more to do at once;
  // failed steps are left to the next sweep.
  bool Sweep();

 private:
  // A write's files, which no entry names yet.
  struct Prepared {
    Entry entry;
    std::vector<ChunkFile> new_chunks;
    std::pair<uint64_t, uint64_t> sweeps;  // of the log when they were written
  };

  int64_t Now() const { return absl::ToUnixMillis(options_.clock()); }
  StoreAnswer Answer(StoreAnswer::Kind kind) const;
  absl::StatusOr<StoreAnswer> AnswerFound(StoreAnswer::Kind kind, const std::string& session);
  absl::StatusOr<Entry> ReadRecord(const std::string& session);
  absl::StatusOr<std::string> ReadChunk(const std::string& id);

  std::vector<ChunkFile> KnownChunks(const StoreWrite& write) const;
  bool IsCurrent(const Prepared& prepared, const StoreWrite& write) const;
  absl::StatusOr<Prepared> Prepare(const StoreWrite& write);
  void Discard(const std::optional<Prepared>& prepared);

  Entry Expired() const;
  std::vector<std::string> PathsOf(const Entry& sweep) const;
  absl::Status Forget(uint64_t floor, bool must);
  void RaiseFloor(uint64_t floor, Entry* sweep) const;
  absl::Status WriteSweep(const std::string& path, Entry& entry);
  void MakeSpare();
  absl::Status MoveSegments(uint64_t oldest);
  bool IsTooLong() const;
  absl::flat_hash_set<std::string> NamedPaths() const;
  std::set<std::string> Leftovers();
  void RemoveLeftovers(const std::set<std::string>& leftovers);

  const DirStoreOptions options_;
  const Files files_;
  Log log_;
  absl::Time looked_for_leftovers_ = absl::InfinitePast();
};

StoreAnswer DirStore::Answer(StoreAnswer::Kind kind) const {
  StoreAnswer answer;
  answer.kind = kind;
  answer.store_id = log_.store_id();
  return answer;
}

absl::StatusOr<Entry> DirStore::ReadRecord(const std::string& session) {
  const Image::Record* record = log_.image().FindRecord(session, 0);
  RIVULET_ASSIGN_OR_RETURN(const auto bytes, files_.Read(AT_FDCWD, log_.EntryPath(record->number)));
  if (!bytes) return Damaged("a session", absl::NotFoundError("it is missing"));
  auto entry = DecodeEntry(*bytes);
  if (!entry.ok()) return Damaged("a session", entry.status());
  if (entry->session != session || entry->claim != record->claim) {
    return Damaged("a session", absl::DataLossError("it is another one"));
  }
  return entry;
}

// REQUIRES: the image has the session.
absl::StatusOr<StoreAnswer> DirStore::AnswerFound(StoreAnswer::Kind kind,
                                                  const std::string& session) {
  auto entry = ReadRecord(session);
  while (!entry.ok() && entry.status().code() == absl::StatusCode::kDataLoss) {
    // An entry is removed some time after there is a newer one.
    const uint64_t number = log_.image().FindRecord(session, 0)->number;
    RIVULET_RETURN_IF_ERROR(log_.CatchUp());
    const Image::Record* const record = log_.image().FindRecord(session, 0);
    if (record == nullptr) return Answer(StoreAnswer::Kind::kMissing);
    if (record->number == number) break;
    entry = ReadRecord(session);
  }
  if (!entry.ok()) return entry.status();
  StoreAnswer answer = Answer(kind);
  answer.found = {entry->claim, std::move(entry->bytes),
                  absl::Milliseconds(std::max<int64_t>(entry->leased_until - Now(), 0))};
  return answer;
}

absl::StatusOr<StoreAnswer> DirStore::Read(const std::string& session) {
  RIVULET_RETURN_IF_ERROR(log_.CatchUp());
  if (log_.image().FindRecord(session, Now()) == nullptr) {
    return Answer(StoreAnswer::Kind::kMissing);
  }
  return AnswerFound(StoreAnswer::Kind::kDone, session);
}

absl::StatusOr<std::string> DirStore::ReadChunk(const std::string& id) {
  const Image::Chunk* const chunk = log_.image().FindChunk(id, Now());
  if (chunk == nullptr) return "";
  RIVULET_ASSIGN_OR_RETURN(const auto bytes,
                           files_.Read(AT_FDCWD, log_.ChunkPath({id, chunk->nonce})));
  if (!bytes) return Damaged("a chunk", absl::NotFoundError("it is missing"));
  auto decoded = DecodeChunk(id, *bytes);
  if (!decoded.ok()) return Damaged("a chunk", decoded.status());
  return decoded;
}

absl::StatusOr<std::vector<std::string>> DirStore::ReadChunks(const std::vector<std::string>& ids) {
  RIVULET_RETURN_IF_ERROR(log_.CatchUp());
  std::vector<std::string> chunks;
  for (const std::string& id : ids) {
    auto bytes = ReadChunk(id);
    if (!bytes.ok() && bytes.status().code() == absl::StatusCode::kDataLoss) {
      RIVULET_RETURN_IF_ERROR(log_.CatchUp());  // it may have been swept
      bytes = ReadChunk(id);
    }
    if (!bytes.ok()) return bytes.status();
    chunks.push_back(*std::move(bytes));
  }
  return chunks;
}

absl::StatusOr<std::vector<SessionStore::Member>> DirStore::List(const std::string& set,
                                                                 int64_t after, int64_t count) {
  RIVULET_RETURN_IF_ERROR(log_.CatchUp());
  return log_.image().List(set, after, count, Now());
}

// The chunks of a write that the store has.
std::vector<ChunkFile> DirStore::KnownChunks(const StoreWrite& write) const {
  std::vector<ChunkFile> known;
  const auto add = [&](const std::string& id) {
    if (const auto* chunk = log_.image().FindChunk(id, Now())) known.push_back({id, chunk->nonce});
  };
  for (const StoreChunk& chunk : write.chunks) add(chunk.id);
  for (const std::string& id : write.kept_chunks) add(id);
  return known;
}

bool DirStore::IsCurrent(const Prepared& prepared, const StoreWrite& write) const {
  std::vector<ChunkFile> chunks = KnownChunks(write);
  chunks.insert(chunks.end(), prepared.new_chunks.begin(), prepared.new_chunks.end());
  return prepared.sweeps == log_.sweeps() && prepared.entry.chunks == chunks;
}

absl::StatusOr<DirStore::Prepared> DirStore::Prepare(const StoreWrite& write) {
  const int64_t now = Now();
  const auto after = [now](absl::Duration time) { return now + StoreMilliseconds(time); };
  Prepared prepared;
  prepared.sweeps = log_.sweeps();
  Entry& entry = prepared.entry;
  entry.floor = log_.image().floor();  // again, in case the entry that raised it is damaged
  entry.session = write.session;
  entry.file = Log::NewRecordFile(write.session);
  entry.claim = write.record.claim;
  entry.leased_until = write.record.lease > absl::ZeroDuration() ? after(write.record.lease) : 0;
  entry.expires = after(write.expiry);
  entry.bytes = write.record.bytes;
  entry.chunks = KnownChunks(write);
  entry.swept_chunks = write.dropped_chunks;
  if (!write.leaves_sets) {
    for (const StoreSet& set : write.sets) entry.sets.push_back(set.name);
  }
  const auto make = [&]() -> absl::Status {
    for (const StoreChunk& chunk : write.chunks) {
      if (log_.image().FindChunk(chunk.id, now) != nullptr) continue;  // of an earlier try
      const ChunkFile file = {chunk.id, RandomWord()};
      RIVULET_RETURN_IF_ERROR(files_.WriteNew(log_.ChunkPath(file), EncodeChunk(chunk)));
      prepared.new_chunks.push_back(file);
      entry.chunks.push_back(file);
      if (write.account.name.empty()) continue;
      entry.unused_chunks.push_back({file, std::ssize(chunk.bytes) + kStoreEntryBytes});
    }
    if (!prepared.new_chunks.empty()) {
      RIVULET_RETURN_IF_ERROR(files_.SyncFolder(log_.chunks_path()));
    }
    return files_.WriteNew(log_.RecordPath(entry.file), EncodeEntry(entry));
  };
  if (!write.account.name.empty()) {
    entry.swept_sessions = {write.account.name};
    for (const ChunkFile& known : entry.chunks) {
      const Image::Use& use = log_.image().FindChunk(known.id, now)->use;
      if (use.bytes > 0) entry.unused_chunks.push_back({known, use.bytes});
    }
  }
  if (absl::Status status = make(); !status.ok()) {
    Discard(prepared);
    return status;
  }
  return prepared;
}

void DirStore::Discard(const std::optional<Prepared>& prepared) {
  if (!prepared) return;
  files_.Remove(log_.RecordPath(prepared->entry.file));
  for (const ChunkFile& chunk : prepared->new_chunks) files_.Remove(log_.ChunkPath(chunk));
}

absl::StatusOr<StoreAnswer> DirStore::Write(const StoreWrite& write,
                                            const std::atomic<bool>& refused) {
  RIVULET_RETURN_IF_ERROR(CheckWrite(write));
  RIVULET_RETURN_IF_ERROR(log_.CatchUp());
  std::optional<Prepared> prepared;
  while (true) {
    const auto verdict = log_.image().Judge(write, Now());
    if (!verdict.ok() || verdict->kind != StoreAnswer::Kind::kDone) {
      Discard(prepared);
      if (!verdict.ok()) return verdict.status();
      if (verdict->kind == StoreAnswer::Kind::kClaimMismatch) {
        return AnswerFound(verdict->kind, write.session);
      }
      StoreAnswer answer = Answer(verdict->kind);
      answer.full_set = verdict->full_set;
      answer.members = verdict->members;
      return answer;
    }
    if (!prepared || !IsCurrent(*prepared, write)) {
      Discard(std::exchange(prepared, std::nullopt));
      RIVULET_ASSIGN_OR_RETURN(prepared, Prepare(write));
    }
    if (refused) {  // while the disk hung: its writer no longer counts on it
      Discard(prepared);
      return absl::UnavailableError("The write was refused.");
    }
    const Image::Record* const record = log_.image().FindRecord(write.session, 0);
    std::vector<std::string> old;  // files that nothing names after it
    if (record != nullptr) old.push_back(log_.RecordPath(record->file));
    for (const std::string& id : write.dropped_chunks) {
      const Image::Chunk* const chunk = log_.image().FindChunk(id, 0);
      if (chunk != nullptr) old.push_back(log_.ChunkPath({id, chunk->nonce}));
    }
    const auto appended = log_.Append(log_.RecordPath(prepared->entry.file), true);
    if (!appended.ok()) {
      if (absl::IsResourceExhausted(appended.status())) Discard(prepared);  // it is no entry
      return appended.status();
    }
    if (*appended == Log::Appended::kGone) Discard(std::exchange(prepared, std::nullopt));
    if (*appended == Log::Appended::kNot || *appended == Log::Appended::kGone) continue;
    const Image::Record* const written = log_.image().FindRecord(write.session, 0);
    if (*appended == Log::Appended::kUnknown &&
        (written == nullptr || written->file != prepared->entry.file)) {
      return absl::UnavailableError("It is not known whether the session store has the record.");
    }
    for (const std::string& path : old) files_.Remove(path);
    return Answer(StoreAnswer::Kind::kDone);
  }
}

absl::flat_hash_set<std::string> DirStore::NamedPaths() const {
  absl::flat_hash_set<std::string> named;
  for (const auto& [session, record] : log_.image().records()) {
    named.insert(log_.RecordPath(record.file));
  }
  for (const auto& [id, chunk] : log_.image().chunks()) {
    named.insert(log_.ChunkPath({id, chunk.nonce}));
  }
  return named;
}

// Old files that no entry names. To find them takes a look at all files, so this is done rarely.
std::set<std::string> DirStore::Leftovers() {
  std::set<std::string> leftovers;
  const absl::Time old = absl::Now() - options_.leftover_age;  // by the clock of the files
  if (looked_for_leftovers_ > old) return leftovers;
  looked_for_leftovers_ = absl::Now();
  log_.RemoveUnfinished();
  const absl::flat_hash_set<std::string> named = NamedPaths();
  for (const std::string& folder : {log_.records_path(), log_.chunks_path()}) {
    const auto files = files_.List(folder);
    if (!files.ok()) continue;
    for (const ListedFile& file : *files) {
      const std::string path = folder + "/" + file.name;
      if (!named.contains(path) && files_.Changed(path) <= old) leftovers.insert(path);
    }
  }
  return leftovers;
}

void DirStore::RemoveLeftovers(const std::set<std::string>& leftovers) {
  if (leftovers.empty()) return;
  const absl::flat_hash_set<std::string> named = NamedPaths();
  for (const std::string& path : leftovers) {
    if (!named.contains(path)) files_.Remove(path);
  }
}

// Whether most changes in the log have been replaced by later changes.
bool DirStore::IsTooLong() const {
  const uint64_t segments = log_.last_segment() - log_.image().floor();
  const uint64_t needed = log_.image().records().size() / log_.entries_per_segment() + 1;
  return segments > 2 * needed;
}

// Links the entries of the segments up to `oldest` that the image needs to the end of the log.
absl::Status DirStore::MoveSegments(uint64_t oldest) {
  std::vector<std::string> sessions;
  for (const auto& [session, record] : log_.image().records()) {
    if (log_.SegmentOf(record.number) <= oldest) sessions.push_back(session);
  }
  for (const std::string& session : sessions) {
    while (true) {
      const Image::Record* const record = log_.image().FindRecord(session, 0);
      if (record == nullptr || log_.SegmentOf(record->number) > oldest) break;
      const uint64_t number = record->number;
      RIVULET_ASSIGN_OR_RETURN(const auto moved, log_.Append(log_.EntryPath(number), false));
      const Image::Record* const now = log_.image().FindRecord(session, 0);
      if (moved == Log::Appended::kGone && now != nullptr && now->number == number) {
        return absl::DataLossError(absl::StrCat("Entry ", number, " is missing."));
      }
    }
  }
  return absl::OkStatus();
}

// The entry of a sweep: everything that has expired.
Entry DirStore::Expired() const {
  const int64_t now = Now();
  Entry entry;
  for (const auto& [session, record] : log_.image().records()) {
    if (entry.swept_sessions.size() == kMostSwept) break;
    if (record.expires <= now) entry.swept_sessions.push_back(session);
  }
  for (const auto& [id, chunk] : log_.image().chunks()) {
    if (entry.swept_chunks.size() == kMostSwept) break;
    if (chunk.expires <= now) entry.swept_chunks.push_back(id);
  }
  return entry;
}

// The files of the sessions and chunks that an entry forgets.
std::vector<std::string> DirStore::PathsOf(const Entry& sweep) const {
  std::vector<std::string> paths;
  paths.reserve(sweep.swept_sessions.size() + sweep.swept_chunks.size());
  for (const std::string& session : sweep.swept_sessions) {
    paths.push_back(log_.RecordPath(log_.image().FindRecord(session, 0)->file));
  }
  for (const std::string& id : sweep.swept_chunks) {
    paths.push_back(log_.ChunkPath({id, log_.image().FindChunk(id, 0)->nonce}));
  }
  return paths;
}

// Adds the entry of a sweep, if there is anything to sweep or it `must` be there.
absl::Status DirStore::Forget(uint64_t floor, bool must) {
  while (true) {
    Entry entry = Expired();
    if (entry.swept_sessions.empty() && entry.swept_chunks.empty() && !must) {
      return absl::OkStatus();
    }
    if (floor > log_.image().floor()) RaiseFloor(floor, &entry);
    entry.file = Log::NewRecordFile("");
    const std::string path = log_.RecordPath(entry.file);
    RIVULET_RETURN_IF_ERROR(WriteSweep(path, entry));
    const std::vector<std::string> expired = PathsOf(entry);
    const auto appended = log_.Append(path, true);
    files_.Remove(path);
    if (!appended.ok()) return appended.status();
    if (*appended == Log::Appended::kUnknown) {
      return absl::UnavailableError("It is not known whether the session store has the sweep.");
    }
    if (*appended != Log::Appended::kDone) continue;
    for (const std::string& file : expired) files_.Remove(file);
    return absl::OkStatus();
  }
}

void DirStore::RaiseFloor(uint64_t floor, Entry* sweep) const {
  sweep->floor = floor;
  const int64_t now = Now();
  for (const auto& [id, chunk] : log_.image().chunks()) {
    if (chunk.expires <= now || log_.SegmentOf(chunk.number) >= floor) continue;
    sweep->unused_chunks.push_back({{id, chunk.nonce}, chunk.expires});
    sweep->chunks.push_back({chunk.use.account, static_cast<uint64_t>(chunk.use.bytes)});
  }
}

// On a full disk, into the spare file: without sweeps, the disk would stay full.
absl::Status DirStore::WriteSweep(const std::string& path, Entry& entry) {
  const absl::Status status = files_.WriteNew(path, EncodeEntry(entry));
  if (!absl::IsResourceExhausted(status)) return status;
  entry.floor = 0;  // later
  entry.unused_chunks.clear();
  entry.chunks.clear();
  entry.swept_sessions.resize(std::min(entry.swept_sessions.size(), kMostSweptBySpare));
  entry.swept_chunks.resize(std::min(entry.swept_chunks.size(), kMostSweptBySpare));
  RIVULET_RETURN_IF_ERROR(files_.Rename(log_.spare_path(), path));
  return files_.Overwrite(path, EncodeEntry(entry));
}

// Best effort: the next sweep tries again.
void DirStore::MakeSpare() {
  if (files_.Exists(log_.spare_path())) return;
  const std::string path = log_.RecordPath(Log::NewRecordFile(""));
  if (!files_.WriteNew(path, std::string(kSpareBytes, '\0')).ok()) return;
  if (!files_.Rename(path, log_.spare_path()).ok()) files_.Remove(path);
}

bool DirStore::Sweep() {
  if (!log_.CatchUp().ok()) return false;
  const std::set<std::string> leftovers = Leftovers();
  uint64_t floor = 0;
  // Other processes may raise the floor meanwhile: this process has moved only what lies before
  // `higher`.
  const uint64_t higher = log_.image().floor() + 1;
  if (IsTooLong() && MoveSegments(higher - 1).ok()) floor = higher;
  if (!Forget(floor, floor > 0 || !leftovers.empty()).ok()) return false;
  RemoveLeftovers(leftovers);
  log_.RemoveOldSegments();
  MakeSpare();
  const Entry left = Expired();
  return !left.swept_sessions.empty() || !left.swept_chunks.empty() || (floor > 0 && IsTooLong());
}

bool IsOfANetwork(const std::string& path) {
  constexpr uint32_t kNfs = 0x6969, kSmb = 0x517b, kSmb2 = 0xfe534d42, kCifs = 0xff534d42;
  constexpr uint32_t kCeph = 0x00c36400, kAfs = 0x5346414f, kCoda = 0x73757245;
  constexpr uint32_t kLustre = 0x0bd00bd0, k9p = 0x01021997, kGfs2 = 0x01161970;
  constexpr uint32_t kOcfs2 = 0x7461636f, kGpfs = 0x47504653, kVboxsf = 0x786f4256;
  struct statfs info = {};
  if (statfs(path.c_str(), &info) != 0) return false;
  const std::set<uint32_t> networks = {kNfs,    kSmb, kSmb2, kCifs,  kCeph, kAfs,   kCoda,
                                       kLustre, k9p,  kGfs2, kOcfs2, kGpfs, kVboxsf};
  return networks.contains(static_cast<uint32_t>(info.f_type));
}

constexpr size_t kMostWaiting = 4096;  // calls

// A DirStore on a thread of its own.
class DirSessionStore final : public SessionStore {
 public:
  DirSessionStore(std::shared_ptr<DirStore> store, const DirStoreOptions& options)
      : store_(std::move(store)),
        calls_({.name = "session-store",
                .whose = "The session store",
                .most_waiting = kMostWaiting,
                .since_push = options.call_time,
                .end_time = options.call_time,
                .sweep = [store = store_] { return store->Sweep(); },
                .sweep_every = options.sweep_every}) {}

  void Write(StoreWrite write, Done done) override {
    calls_.Push(std::move(done),
                [store = store_, write = std::move(write)](const std::atomic<bool>& refused) {
                  return store->Write(write, refused);
                });
  }
  void Read(std::string session, Done done) override {
    calls_.Push(std::move(done),
                [store = store_, session = std::move(session)] { return store->Read(session); });
  }
  void ReadChunks(std::vector<std::string> ids, ChunksDone done) override {
    calls_.Push(std::move(done),
                [store = store_, ids = std::move(ids)] { return store->ReadChunks(ids); });
  }
  void List(std::string set, int64_t after_ms, int64_t count, MembersDone done) override {
    calls_.Push(std::move(done), [store = store_, set = std::move(set), after_ms, count] {
      return store->List(set, after_ms, count);
    });
  }

 private:
  const std::shared_ptr<DirStore> store_;
  TimedCalls calls_;
};

absl::Status BadPath(const std::string& path, absl::string_view why) {
  return InvalidField("CONFIG_INVALID", "session-store",
                      absl::StrCat("session-store: ", path, " ", why));
}

}  // namespace
}  // namespace dir_store

absl::StatusOr<std::unique_ptr<SessionStore>> OpenDirSessionStore(const std::string& path,
                                                                  const DirStoreOptions& options) {
  using dir_store::BadPath;
  if (path.empty()) return BadPath(path, "is empty; it is the path of a directory");
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return BadPath(path, absl::StrCat("cannot be made: ", std::strerror(errno)));
  }
  if (dir_store::IsOfANetwork(path)) {
    return BadPath(path, "is on a network's file system; the directory must be of this machine");
  }
  auto store = std::make_shared<dir_store::DirStore>(path, options);
  const absl::Status opened = store->Open();
  if (opened.code() == absl::StatusCode::kDataLoss) {
    return Annotate(opened, absl::StrCat("session-store: ", path));
  }
  if (!opened.ok()) return BadPath(path, absl::StrCat("cannot be used: ", opened.message()));
  return std::make_unique<dir_store::DirSessionStore>(std::move(store), options);
}

}  // namespace rivulet
