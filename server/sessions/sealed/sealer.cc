// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/sealed/sealer.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/base/error.h"
#include "model/base/file.h"
#include "model/base/random_word.h"

namespace rivulet {
namespace {

constexpr absl::string_view kSealMagic("RVE\1", 4);
constexpr char kStoreId[] = "store";
constexpr size_t kKeyBytes = 32, kNonceBytes = 12, kTagBytes = 16, kMostKeyIdBytes = 32;
constexpr size_t kMostFileBytes = size_t{64} << 10;

// Ends the process on a failure of the library, so that nothing is written in clear.
void Must(bool done) {
  if (done) return;
  std::fputs("OpenSSL fails at AES-256-GCM or HMAC-SHA-256\n", stderr);
  std::abort();
}

const unsigned char* BytesOf(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* BytesOf(std::string* text) { return reinterpret_cast<unsigned char*>(text->data()); }

// 32 bytes. The store sees names and must not learn keys, so each `use` has another first byte.
std::string Derive(absl::string_view key, absl::string_view use, absl::string_view text) {
  const std::string all = absl::StrCat(use, text);
  std::string derived(kKeyBytes, '\0');
  unsigned int size = 0;
  Must(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), BytesOf(all), all.size(),
            BytesOf(&derived), &size) != nullptr &&
       size == kKeyBytes);
  return derived;
}

// AES-256-GCM with the key that follows from `root` and the associated data.
class Cipher {
 public:
  Cipher(bool encrypts, absl::string_view root, absl::string_view nonce, absl::string_view header,
         absl::string_view associated_data)
      : context_(EVP_CIPHER_CTX_new()) {
    const std::string key = Derive(root, "key/", associated_data);
    Must(context_ != nullptr &&
         EVP_CipherInit_ex(context_, EVP_aes_256_gcm(), nullptr, BytesOf(key), BytesOf(nonce),
                           encrypts ? 1 : 0) == 1);
    Update(header, nullptr);
    Update(associated_data, nullptr);
  }
  ~Cipher() { EVP_CIPHER_CTX_free(context_); }
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  // `out` has room for in.size() bytes; nullptr: `in` is only authenticated.
  void Update(absl::string_view in, unsigned char* out) {
    int size = 0;
    Must(in.size() <= INT_MAX &&
         EVP_CipherUpdate(context_, out, &size, BytesOf(in), static_cast<int>(in.size())) == 1);
  }
  // Encrypting: always true. Decrypting: whether the tag that was set is right.
  bool Finish() {
    int size = 0;
    unsigned char none[EVP_MAX_BLOCK_LENGTH];
    return EVP_CipherFinal_ex(context_, none, &size) == 1;
  }
  void Tag(int command, unsigned char* tag) {
    Must(EVP_CIPHER_CTX_ctrl(context_, command, kTagBytes, tag) == 1);
  }

 private:
  EVP_CIPHER_CTX* const context_;
};

std::string SealUnder(absl::string_view id, absl::string_view root, absl::string_view plaintext,
                      absl::string_view associated_data) {
  const std::string header =
      absl::StrCat(kSealMagic, std::string(1, static_cast<char>(id.size())), id);
  const uint64_t words[] = {RandomWord(), RandomWord()};
  const absl::string_view nonce(reinterpret_cast<const char*>(words), kNonceBytes);
  Cipher cipher(true, root, nonce, header, associated_data);
  std::string sealed = absl::StrCat(header, nonce);
  const size_t begin = sealed.size();
  sealed.resize(begin + plaintext.size() + kTagBytes);
  cipher.Update(plaintext, BytesOf(&sealed) + begin);
  Must(cipher.Finish());
  cipher.Tag(EVP_CTRL_GCM_GET_TAG, BytesOf(&sealed) + begin + plaintext.size());
  return sealed;
}

struct SealedParts {
  absl::string_view header, id, nonce, ciphertext, tag;
};

absl::Status Changed() {
  return absl::DataLossError("they were changed, or belong to something else");
}

bool IsId(absl::string_view id) {
  return !id.empty() && id.size() <= kMostKeyIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

absl::StatusOr<SealedParts> Split(absl::string_view bytes) {
  if (!IsSealed(bytes)) {
    return absl::FailedPreconditionError(
        "they are not encrypted, and this server takes only encrypted bytes");
  }
  SealedParts parts;
  const size_t prefix = kSealMagic.size() + 1;
  if (bytes.size() < prefix || bytes.size() > INT_MAX) return Changed();
  const size_t id_size = static_cast<unsigned char>(bytes[kSealMagic.size()]);
  if (bytes.size() < prefix + id_size + kNonceBytes + kTagBytes) return Changed();
  parts.header = bytes.substr(0, prefix + id_size);
  parts.id = parts.header.substr(prefix);
  parts.nonce = bytes.substr(parts.header.size(), kNonceBytes);
  bytes.remove_prefix(parts.header.size() + kNonceBytes);
  parts.ciphertext = bytes.substr(0, bytes.size() - kTagBytes);
  parts.tag = bytes.substr(parts.ciphertext.size());
  if (!IsId(parts.id)) return Changed();  // an error may repeat it
  return parts;
}

absl::StatusOr<std::string> OpenUnder(absl::string_view root, const SealedParts& parts,
                                      absl::string_view associated_data) {
  Cipher cipher(false, root, parts.nonce, parts.header, associated_data);
  std::string plaintext(parts.ciphertext.size(), '\0'), tag(parts.tag);
  cipher.Update(parts.ciphertext, BytesOf(&plaintext));
  cipher.Tag(EVP_CTRL_GCM_SET_TAG, BytesOf(&tag));
  if (!cipher.Finish()) return Changed();
  return plaintext;
}

// `why` follows the name of the file.
absl::Status BadKeys(const std::string& path, absl::string_view why) {
  constexpr absl::string_view kSetting = "session-store-encryption-keys";
  return InvalidField("CONFIG_INVALID", kSetting, absl::StrCat(kSetting, " ", path, why));
}

}  // namespace

absl::StatusOr<SealKeys> ReadSealKeys(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMostFileBytes);
  if (!text.ok()) return BadKeys(path, absl::StrCat(": ", text.status().message()));
  SealKeys keys;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++number;
    const auto bad = [&](absl::string_view why) {
      return BadKeys(path, absl::StrCat(", line ", number, ": ", why));
    };
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty() || absl::StartsWith(words[0], "#")) continue;
    if (words.size() != 2) return bad(absl::StrCat(words.size(), " words, not an id and a key"));
    const auto [id, hex] = std::pair(words[0], words[1]);
    if (!IsId(id)) return bad("its id is not 1 to 32 of A-Z a-z 0-9 . _ -");
    if (hex.size() != 2 * kKeyBytes) {
      return bad(absl::StrCat("its key has ", hex.size(), " characters, not 64"));
    }
    if (!std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) {
      return bad("its key has a character that is no hexadecimal digit");
    }
    const bool repeated = id == kStoreId
                              ? !keys.store_key.empty()
                              : std::any_of(keys.keys.begin(), keys.keys.end(),
                                            [id = id](const auto& key) { return key.id == id; });
    if (repeated) return bad("its id is that of a line before");
    std::string key = absl::HexStringToBytes(hex);
    if (id == kStoreId) {
      keys.store_key = std::move(key);
    } else {
      keys.keys.push_back({std::string(id), std::move(key)});
    }
  }
  if (keys.store_key.empty()) return BadKeys(path, " has no line with the id store");
  if (keys.keys.empty()) return BadKeys(path, " has no line with another id than store");
  return keys;
}

Sealer::Sealer(SealKeys keys)
    : store_key_(keys.store_key), keys_(std::make_shared<const SealKeys>(std::move(keys))) {}

std::shared_ptr<const SealKeys> Sealer::keys() const {
  MutexLock lock(&mutex_);
  return keys_;
}

absl::Status Sealer::Use(SealKeys keys) {
  if (keys.store_key != store_key_) {
    return absl::FailedPreconditionError(
        "the key of the line store is another one than when the server started");
  }
  auto fresh = std::make_shared<const SealKeys>(std::move(keys));
  MutexLock lock(&mutex_);
  keys_ = std::move(fresh);
  return absl::OkStatus();
}

std::string Sealer::Seal(absl::string_view plaintext, absl::string_view associated_data) const {
  const auto all = keys();
  return SealUnder(all->keys[0].id, all->keys[0].bytes, plaintext, associated_data);
}

absl::StatusOr<std::string> Sealer::Open(absl::string_view bytes,
                                         absl::string_view associated_data) const {
  RIVULET_ASSIGN_OR_RETURN(const SealedParts parts, Split(bytes));
  const auto all = keys();
  for (const SealKeys::Key& key : all->keys) {
    if (key.id == parts.id) return OpenUnder(key.bytes, parts, associated_data);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("they are encrypted with key \"", parts.id,
                   "\", which is not in this server's file of keys"));
}

std::string Sealer::SealBySecret(absl::string_view plaintext, absl::string_view secret) const {
  return SealUnder(kStoreId, store_key_, plaintext, secret);
}

absl::StatusOr<std::string> Sealer::OpenBySecret(absl::string_view bytes,
                                                 absl::string_view secret) const {
  RIVULET_ASSIGN_OR_RETURN(const SealedParts parts, Split(bytes));
  if (parts.id != kStoreId) return Changed();
  return OpenUnder(store_key_, parts, secret);
}

std::string Sealer::Name(absl::string_view text) const {
  return absl::BytesToHexString(Derive(store_key_, "name/", text));
}

bool IsSealed(absl::string_view bytes) { return absl::StartsWith(bytes, kSealMagic); }

}  // namespace rivulet
