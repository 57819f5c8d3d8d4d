// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/sealed/encrypted_session_store.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/sessions/replicated/check_write.h"
#include "server/sessions/replicated/session_record.h"

namespace rivulet {
namespace {

using Kind = StoreAnswer::Kind;

// A claim has 16 bytes, so no other session and claim give the same text.
std::string RecordData(absl::string_view session, absl::string_view claim) {
  return absl::StrCat("record/", session, "/", claim);
}
std::string NameOfChunk(const Sealer& sealer, absl::string_view id) {
  return sealer.Name(absl::StrCat("chunk/", id));
}
std::string NameOfSet(const Sealer& sealer, absl::string_view name) {
  return sealer.Name(absl::StrCat("set/", name));
}

// The error for `status`, which a Sealer returned for bytes of a session.
absl::Status CannotOpen(const absl::Status& status) {
  const std::string what = absl::StrCat("its bytes are refused: ", status.message(), ".");
  return absl::IsDataLoss(status) ? DamagedRecord(what) : UnreadableRecord(what);
}

// Opens the record of an answer of kind `with`. Answers of other kinds have no record.
absl::StatusOr<StoreAnswer> OpenAnswer(const Sealer& sealer, absl::string_view session, Kind with,
                                       absl::StatusOr<StoreAnswer> answer) {
  if (!answer.ok()) return answer;
  StoreRecord& found = answer->found;
  if (answer->kind != with) {
    found = {};
    return answer;
  }
  absl::StatusOr<std::string> bytes = sealer.Open(found.bytes, RecordData(session, found.claim));
  if (!bytes.ok()) return CannotOpen(bytes.status());
  found.bytes = *std::move(bytes);
  return answer;
}

class EncryptedSessionStore final : public SessionStore {
 public:
  EncryptedSessionStore(std::shared_ptr<SessionStore> store, std::shared_ptr<const Sealer> sealer)
      : sealer_(std::move(sealer)), store_(std::move(store)) {}

  void Write(StoreWrite write, Done done) override {
    // Checked here, because the hidden names of chunks would pass the check of `store_`.
    if (absl::Status status = CheckWrite(write); !status.ok()) return done(std::move(status));
    StoreRecord& record = write.record;
    record.bytes = sealer_->Seal(record.bytes, RecordData(write.session, record.claim));
    for (StoreChunk& chunk : write.chunks) {
      chunk.bytes = sealer_->SealBySecret(chunk.bytes, chunk.id);
      chunk.id = NameOfChunk(*sealer_, chunk.id);
    }
    for (std::string& id : write.kept_chunks) id = NameOfChunk(*sealer_, id);
    for (std::string& id : write.dropped_chunks) id = NameOfChunk(*sealer_, id);
    for (StoreSet& set : write.sets) set.name = NameOfSet(*sealer_, set.name);
    std::string& account = write.account.name;
    if (!account.empty()) account = sealer_->Name(absl::StrCat("account/", account));
    std::string session = write.session;
    store_->Write(std::move(write),
                  Opening(std::move(session), Kind::kClaimMismatch, std::move(done)));
  }

  void Read(std::string session, Done done) override {
    Done opening = Opening(session, Kind::kDone, std::move(done));
    store_->Read(std::move(session), std::move(opening));
  }

  void ReadChunks(std::vector<std::string> ids, ChunksDone done) override {
    std::vector<std::string> names;
    names.reserve(ids.size());
    for (const std::string& id : ids) names.push_back(NameOfChunk(*sealer_, id));
    store_->ReadChunks(
        std::move(names), [sealer = sealer_, ids = std::move(ids), done = std::move(done)](
                              absl::StatusOr<std::vector<std::string>> chunks) {
          for (size_t i = 0; chunks.ok() && i < chunks->size(); ++i) {
            std::string& bytes = (*chunks)[i];
            if (bytes.empty()) continue;  // there is no such chunk
            absl::StatusOr<std::string> opened = sealer->OpenBySecret(bytes, ids.at(i));
            if (!opened.ok()) return done(CannotOpen(opened.status()));
            bytes = *std::move(opened);
          }
          done(std::move(chunks));
        });
  }

  void List(std::string set, int64_t after_ms, int64_t count, MembersDone done) override {
    store_->List(NameOfSet(*sealer_, set), after_ms, count, std::move(done));
  }

  std::optional<bool> connected() const override { return store_->connected(); }

 private:
  Done Opening(std::string session, Kind with, Done done) const {
    return [sealer = sealer_, session = std::move(session), with,
            done = std::move(done)](absl::StatusOr<StoreAnswer> answer) {
      done(OpenAnswer(*sealer, session, with, std::move(answer)));
    };
  }

  const std::shared_ptr<const Sealer> sealer_;
  const std::shared_ptr<SessionStore> store_;
};

}  // namespace

std::unique_ptr<SessionStore> MakeEncryptedSessionStore(std::shared_ptr<SessionStore> store,
                                                        std::shared_ptr<const Sealer> sealer) {
  return std::make_unique<EncryptedSessionStore>(std::move(store), std::move(sealer));
}

}  // namespace rivulet
