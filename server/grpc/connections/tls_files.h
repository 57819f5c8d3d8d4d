// SPDX-License-Identifier: Apache-2.0
// The PEM files of a listener's TLS: read, checked before gRPC sees them, and read again when they
// change.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/file_stamp.h"
#include "server/base/mutex.h"

namespace rivulet {

struct TlsFiles {
  std::string cert;       // the server's certificate, then intermediate ones
  std::string key;        // of the certificate, without a passphrase
  std::string client_ca;  // authorities: only clients with their certificates may connect; "": all

  bool given() const { return !cert.empty(); }  // false: plaintext
};

// What the files hold.
struct TlsIdentity {
  std::string cert, key, client_ca;  // PEM
  absl::Time expires;                // of the server's certificate
};

// Reads the files. Errors: INVALID_ARGUMENT or NOT_FOUND, which name the setting (tls-cert,
// tls-key, tls-client-ca), the file and what is wrong: it cannot be read, it holds no PEM of that
// kind, a certificate in it is cut off or damaged, the key needs a passphrase or does not belong to
// the certificate, or the certificate is not valid at `now`.
absl::StatusOr<TlsIdentity> ReadTlsFiles(const TlsFiles& files, absl::Time now);

// Whether the file of tls-key holds a key. Errors: as ReadTlsFiles.
absl::Status CheckTlsKey(const std::string& path);

// The certificates of authorities in the file that `setting` names. Errors: INVALID_ARGUMENT or
// NOT_FOUND, as ReadTlsFiles.
absl::StatusOr<std::string> ReadAuthorities(const char* setting, const std::string& path);

// TLS files that others replace while the server runs; a FileWatch calls Look. A change that cannot
// be used is logged (tls_reload_failed), and the identity stays as it was. Thread: any.
class TlsReloader {
 public:
  // Called with the end of each identity's certificate, on the thread that reads it.
  using OnEnd = std::function<void(absl::Time)>;
  // Errors: as ReadTlsFiles.
  static absl::StatusOr<std::unique_ptr<TlsReloader>> Create(TlsFiles files, absl::Time now,
                                                             OnEnd on_end);

  // The identity, if this is the first call or it has changed since the last one; else nullopt.
  // Never waits for a file.
  std::optional<TlsIdentity> TakeNew();
  // Reads the files if one has changed. Thread: one at a time.
  void Look(absl::Time now);

 private:
  using Stamp = std::array<FileStamp, 3>;  // of each file
  static Stamp StampOf(const TlsFiles& files);

  TlsReloader(TlsFiles files, Stamp stamp, OnEnd on_end)
      : files_(std::move(files)), on_end_(std::move(on_end)), stamp_(stamp) {}
  void Use(TlsIdentity identity);

  const TlsFiles files_;
  const OnEnd on_end_;
  Stamp stamp_;  // of Look
  Mutex mutex_;  // not held while files are looked at or read
  std::optional<TlsIdentity> new_ ABSL_GUARDED_BY(mutex_);  // not yet taken
};

}  // namespace rivulet
