// SPDX-License-Identifier: Apache-2.0
// TLS files, and a server that uses them; tests/e2e/server/tls_test.py tells what clients see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "model/base/error.h"
#include "server/grpc/calls/served_models.h"
#include "server/grpc/connections/tls_files.h"
#include "server/grpc/grpc_server.h"
#include "tests/support/pem.h"
#include "tests/support/random_model.h"

namespace rivulet {
namespace {

struct Pem {
  std::string cert, key, locked_key;  // the last with a passphrase
};

// A certificate that signs itself, valid from `begins` to `ends` seconds after now; or to whatever
// time `end` says.
Pem MakePem(int64_t begins = -60, int64_t ends = 3600, const char* end = nullptr) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), begins);
  X509_gmtime_adj(X509_getm_notAfter(certificate), ends);
  if (end != nullptr) ASN1_STRING_set(X509_getm_notAfter(certificate), end, -1);
  X509_set_pubkey(certificate, key);
  X509_sign(certificate, key, EVP_sha256());
  Pem pem;
  pem.cert = ToPem([&](BIO* bio) { PEM_write_bio_X509(bio, certificate); });
  pem.key = ToPem(
      [&](BIO* bio) { PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr); });
  pem.locked_key = ToPem([&](BIO* bio) {
    unsigned char passphrase[] = "secret";
    PEM_write_bio_PrivateKey(bio, key, EVP_aes_128_cbc(), passphrase, 6, nullptr, nullptr);
  });
  X509_free(certificate);
  EVP_PKEY_free(key);
  return pem;
}

class TlsFilesTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = directory_.File(name);
    // Beside and then over it, as those who renew certificates do: a new inode.
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
    return path;
  }
  TlsFiles Written(const Pem& pem) {
    return {Write("cert.pem", pem.cert), Write("key.pem", pem.key), ""};
  }
  void ExpectError(const TlsFiles& files, const std::string& message) {
    const auto identity = ReadTlsFiles(files, absl::Now());
    ASSERT_FALSE(identity.ok());
    EXPECT_THAT(std::string(identity.status().message()), ::testing::HasSubstr(message));
  }

  testing::TempDir directory_;
};

TEST_F(TlsFilesTest, UsableFilesAreRead) {
  const Pem pem = MakePem();
  TlsFiles files = Written(pem);
  files.client_ca = Write("ca.pem", pem.cert);
  const auto identity = ReadTlsFiles(files, absl::Now());
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->cert, pem.cert);
  EXPECT_EQ(identity->key, pem.key);
  EXPECT_EQ(identity->client_ca, pem.cert);
  EXPECT_GT(identity->expires, absl::Now() + absl::Minutes(30));
  EXPECT_LT(identity->expires, absl::Now() + absl::Minutes(61));
}

TEST_F(TlsFilesTest, WhatCannotBeUsedIsNamed) {
  const Pem pem = MakePem();
  const TlsFiles good = Written(pem);
  const std::string empty = Write("empty.pem", "");
  const std::string absent = directory_.File("absent.pem");
  ExpectError({absent, good.key, ""}, "tls-cert " + absent);
  ExpectError({good.cert, absent, ""}, "tls-key " + absent);
  ExpectError({good.cert, good.key, absent}, "tls-client-ca " + absent);
  ExpectError({empty, good.key, ""}, "tls-cert " + empty + " holds no certificate");
  ExpectError({good.cert, empty, ""}, "tls-key " + empty + " holds no private key");
  ExpectError({good.cert, good.key, empty}, "tls-client-ca " + empty + " holds no certificate");
  ExpectError({good.cert, Write("locked.pem", pem.locked_key), ""}, "without a passphrase");
  ExpectError({good.cert, Write("other.pem", MakePem().key), ""},
              "is not the key of the certificate in " + good.cert);
  ExpectError({Write("cut.pem", pem.cert.substr(0, pem.cert.size() / 2)), good.key, ""},
              "holds no certificate");
}

TEST_F(TlsFilesTest, CertificatesOfThePastAndTheFutureAreRefused) {
  ExpectError(Written(MakePem(-7200, -3600)), "expired on 20");
  ExpectError(Written(MakePem(3600, 7200)), "is not valid before 20");
}

TEST_F(TlsFilesTest, ACertificateWithoutAReadableTimeIsRefused) {
  ExpectError(Written(MakePem(-60, 3600, "tomorrow")), "does not say in readable form");
}

TEST_F(TlsFilesTest, ErrorsNameTheSettingAsField) {
  const auto identity = ReadTlsFiles(Written({"", "", ""}), absl::Now());
  EXPECT_EQ(GetErrorDetail(identity.status()).field, "tls-cert");
  EXPECT_EQ(GetErrorDetail(identity.status()).reason, "CONFIG_INVALID");
}

TEST_F(TlsFilesTest, TheReloaderGivesWhatIsNewOnce) {
  const absl::Time now = absl::Now();
  const Pem first = MakePem(), second = MakePem();
  std::vector<absl::Time> ends;
  auto reloader =
      TlsReloader::Create(Written(first), now, [&](absl::Time t) { ends.push_back(t); });
  ASSERT_TRUE(reloader.ok()) << reloader.status();
  auto identity = (*reloader)->TakeNew();
  ASSERT_TRUE(identity.has_value());
  EXPECT_EQ(identity->cert, first.cert);
  (*reloader)->Look(now);
  EXPECT_FALSE((*reloader)->TakeNew().has_value());
  Written(second);
  EXPECT_FALSE((*reloader)->TakeNew().has_value()) << "nobody has looked";
  (*reloader)->Look(now);
  identity = (*reloader)->TakeNew();
  ASSERT_TRUE(identity.has_value());
  EXPECT_EQ(identity->cert, second.cert);
  EXPECT_EQ(identity->key, second.key);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[1], identity->expires);
  (*reloader)->Look(now);
  EXPECT_FALSE((*reloader)->TakeNew().has_value());
}

TEST_F(TlsFilesTest, AChangeThatCannotBeUsedLeavesTheIdentity) {
  const absl::Time now = absl::Now();
  const Pem first = MakePem(), second = MakePem();
  auto reloader = TlsReloader::Create(Written(first), now, [](absl::Time) {});
  ASSERT_TRUE(reloader.ok()) << reloader.status();
  const auto look = [&] {
    (*reloader)->Look(now);
    return (*reloader)->TakeNew();
  };
  EXPECT_TRUE(look().has_value());
  Write("cert.pem", second.cert);  // the key is still the first one's
  EXPECT_FALSE(look().has_value());
  std::filesystem::remove(directory_.File("key.pem"));
  EXPECT_FALSE(look().has_value());
  Write("key.pem", second.key);
  const auto identity = look();
  ASSERT_TRUE(identity.has_value());
  EXPECT_EQ(identity->cert, second.cert);
}

TEST_F(TlsFilesTest, AChainThatIsCutOffOrDamagedIsRefused) {
  const Pem pem = MakePem();
  const std::string next = MakePem().cert, key = Write("key.pem", pem.key);
  const auto with = [&](const std::string& rest) {
    return TlsFiles{Write("chain.pem", pem.cert + rest), key, ""};
  };
  for (const std::string& good : {next, next + next, "# ours\n" + next, pem.key, next + pem.key}) {
    const auto identity = ReadTlsFiles(with(good), absl::Now());
    EXPECT_TRUE(identity.ok()) << identity.status();
  }
  for (const size_t left : {size_t{3}, size_t{20}, size_t{28}, next.size() / 2, next.size() - 3}) {
    ExpectError(with(next.substr(0, left)),
                "chain.pem is cut off or damaged after its certificate 1");
    ExpectError(with(next + next.substr(0, left)), "after its certificate 2");
  }
  std::string damaged = next;
  damaged[next.size() / 2] = '!';
  ExpectError(with(damaged), "after its certificate 1");
  ExpectError(with(damaged + next), "after its certificate 1");
}

TEST_F(TlsFilesTest, AReloaderNeedsUsableFiles) {
  EXPECT_FALSE(
      TlsReloader::Create({"absent.pem", "absent.pem", ""}, absl::Now(), [](absl::Time) {}).ok());
}

TEST_F(TlsFilesTest, AServerThatAsksForCertificatesReachesItselfWithoutOne) {
  const Pem pem = MakePem();
  const ServedModels models;
  GrpcServerOptions options;
  options.listen = "127.0.0.1:0";
  options.tls = Written(pem);
  options.tls.client_ca = Write("ca.pem", pem.cert);
  const auto server = GrpcServer::Create(&models, options);
  ASSERT_TRUE(server.ok()) << server.status();
  const absl::Status answered = (*server)->CallSelf(absl::Seconds(30));
  EXPECT_TRUE(answered.ok()) << answered;
}

TEST_F(TlsFilesTest, AServerDoesNotStartWithFilesThatItCannotUse) {
  const ServedModels models;
  GrpcServerOptions options;
  options.listen = "127.0.0.1:0";
  options.tls = Written(MakePem(-7200, -3600));
  const auto server = GrpcServer::Create(&models, options);
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(std::string(server.status().message()), ::testing::HasSubstr("expired on 20"));
}

}  // namespace
}  // namespace rivulet
