// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/sealed/encrypted_state_archive.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rivulet {
namespace {

class EncryptedStateArchive final : public StateArchive {
 public:
  EncryptedStateArchive(std::shared_ptr<StateArchive> archive, std::shared_ptr<const Sealer> sealer)
      : sealer_(std::move(sealer)), archive_(std::move(archive)) {}

  void Put(std::function<ArchivedState()> state, absl::Duration expiry, PutDone done) override {
    archive_->Put(
        [sealer = sealer_, state = std::move(state)] {
          ArchivedState open = state();
          const std::string name = open.name;
          const auto added = static_cast<int64_t>(sealer->SealBySecret("", name).size());
          return ArchivedState{StoredName(*sealer, name), open.size + added,
                               [sealer, name, bytes = std::move(open.bytes)] {
                                 return sealer->SealBySecret(bytes(), name);
                               }};
        },
        expiry, std::move(done));
  }

  void Get(std::string name, GetDone done) override {
    std::string stored = StoredName(*sealer_, name);
    archive_->Get(std::move(stored), [sealer = sealer_, name = std::move(name),
                                      done = std::move(done)](absl::StatusOr<std::string> bytes) {
      if (bytes.ok() && !bytes->empty()) bytes = sealer->OpenBySecret(*bytes, name);
      done(std::move(bytes));
    });
  }

  void Drop(std::string name) override { archive_->Drop(StoredName(*sealer_, name)); }

 private:
  static std::string StoredName(const Sealer& sealer, absl::string_view name) {
    return sealer.Name(absl::StrCat("state/", name));
  }

  const std::shared_ptr<const Sealer> sealer_;
  const std::shared_ptr<StateArchive> archive_;
};

}  // namespace

std::unique_ptr<StateArchive> MakeEncryptedStateArchive(std::shared_ptr<StateArchive> archive,
                                                        std::shared_ptr<const Sealer> sealer) {
  return std::make_unique<EncryptedStateArchive>(std::move(archive), std::move(sealer));
}

}  // namespace rivulet
