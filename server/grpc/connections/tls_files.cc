// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connections/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "server/log.h"

namespace rivulet {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

Owned<BIO> Reader(const std::string& text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// For keys that need a passphrase: the server has none.
int NoPassphrase(char*, int, int, void*) { return -1; }

// One of the files, with its name in errors.
struct PemFile {
  const char* setting;
  const std::string& path;

  absl::Status Error(absl::string_view wrong) const {
    return InvalidField("CONFIG_INVALID", setting, absl::StrCat(setting, " ", path, " ", wrong));
  }
  absl::StatusOr<std::string> Read() const {
    absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxFileBytes);
    if (!text.ok()) return Annotate(text.status(), absl::StrCat(setting, " ", path));
    return text;
  }
};

// Whether every PEM block that begins in `text` also ends in `text`.
bool BlocksEnd(absl::string_view text) {
  bool open = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!absl::StartsWith(line, "--")) continue;
    if (!absl::StartsWith(line, open ? "-----END " : "-----BEGIN ")) return false;
    if (!absl::EndsWith(line, "-----")) return false;
    open = !open;
  }
  return !open;
}

// Checks all certificates of the file: gRPC rejects the whole file if it cannot read one of them.
absl::StatusOr<Owned<X509>> FirstCertificate(const PemFile& file, const std::string& text) {
  const Owned<BIO> reader = Reader(text);
  Owned<X509> first;
  int count = 0;
  for (;; ++count) {
    Owned<X509> certificate(PEM_read_bio_X509(reader.get(), nullptr, NoPassphrase, nullptr));
    if (certificate == nullptr) break;
    if (first == nullptr) first = std::move(certificate);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (first == nullptr) return file.Error("holds no certificate in PEM form");
  if (!at_end || !BlocksEnd(text)) {
    return file.Error(absl::StrCat("is cut off or damaged after its certificate ", count));
  }
  return first;
}

absl::StatusOr<Owned<EVP_PKEY>> PrivateKey(const PemFile& file, const std::string& text) {
  Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(Reader(text).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) return file.Error("holds no private key in PEM form without a passphrase");
  return key;
}

// nullopt if a certificate holds something else than a time.
std::optional<absl::Time> ToTime(const ASN1_TIME* time) {
  std::tm broken_down{};
  if (ASN1_TIME_to_tm(time, &broken_down) != 1) return std::nullopt;
  return absl::FromTM(broken_down, absl::UTCTimeZone());
}

std::string Written(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<std::string> ReadAuthorities(const char* setting, const std::string& path) {
  const PemFile file{setting, path};
  RIVULET_ASSIGN_OR_RETURN(std::string text, file.Read());
  RIVULET_RETURN_IF_ERROR(FirstCertificate(file, text).status());
  return text;
}

absl::Status CheckTlsKey(const std::string& path) {
  const PemFile file{"tls-key", path};
  RIVULET_ASSIGN_OR_RETURN(const std::string text, file.Read());
  return PrivateKey(file, text).status();
}

absl::StatusOr<TlsIdentity> ReadTlsFiles(const TlsFiles& files, absl::Time now) {
  const PemFile cert{"tls-cert", files.cert};
  const PemFile key{"tls-key", files.key};
  TlsIdentity identity;
  RIVULET_ASSIGN_OR_RETURN(identity.cert, cert.Read());
  RIVULET_ASSIGN_OR_RETURN(identity.key, key.Read());
  RIVULET_ASSIGN_OR_RETURN(const auto certificate, FirstCertificate(cert, identity.cert));
  RIVULET_ASSIGN_OR_RETURN(const auto private_key, PrivateKey(key, identity.key));
  if (X509_check_private_key(certificate.get(), private_key.get()) != 1) {
    ERR_clear_error();
    return key.Error(absl::StrCat("is not the key of the certificate in ", files.cert));
  }
  const std::optional<absl::Time> begins = ToTime(X509_get0_notBefore(certificate.get()));
  const std::optional<absl::Time> ends = ToTime(X509_get0_notAfter(certificate.get()));
  ERR_clear_error();
  if (!begins || !ends) return cert.Error("does not say in readable form when it is valid");
  if (now >= *ends) return cert.Error(absl::StrCat("expired on ", Written(*ends)));
  if (now < *begins) return cert.Error(absl::StrCat("is not valid before ", Written(*begins)));
  identity.expires = *ends;
  if (!files.client_ca.empty()) {
    RIVULET_ASSIGN_OR_RETURN(identity.client_ca, ReadAuthorities("tls-client-ca", files.client_ca));
  }
  return identity;
}

TlsReloader::Stamp TlsReloader::StampOf(const TlsFiles& files) {
  return {rivulet::StampOf(files.cert), rivulet::StampOf(files.key),
          rivulet::StampOf(files.client_ca)};
}

absl::StatusOr<std::unique_ptr<TlsReloader>> TlsReloader::Create(TlsFiles files, absl::Time now,
                                                                 OnEnd on_end) {
  const Stamp stamp = StampOf(files);  // before the reading: a change meanwhile is seen later
  RIVULET_ASSIGN_OR_RETURN(TlsIdentity identity, ReadTlsFiles(files, now));
  std::unique_ptr<TlsReloader> reloader(
      new TlsReloader(std::move(files), stamp, std::move(on_end)));
  reloader->Use(std::move(identity));
  return reloader;
}

void TlsReloader::Use(TlsIdentity identity) {
  on_end_(identity.expires);
  MutexLock lock(&mutex_);
  new_ = std::move(identity);
}

void TlsReloader::Look(absl::Time now) {
  const Stamp stamp = StampOf(files_);
  if (stamp == std::exchange(stamp_, stamp)) return;
  absl::StatusOr<TlsIdentity> identity = ReadTlsFiles(files_, now);
  if (!identity.ok()) {
    Log(LogLevel::kError, "tls_reload_failed",
        {{"reason", std::string(identity.status().message())}});
    return;
  }
  const std::string expires = Written(identity->expires);
  Use(*std::move(identity));
  Log(LogLevel::kInfo, "tls_reloaded", {{"expires", expires}});
}

std::optional<TlsIdentity> TlsReloader::TakeNew() {
  MutexLock lock(&mutex_);
  return std::exchange(new_, std::nullopt);
}

}  // namespace rivulet
