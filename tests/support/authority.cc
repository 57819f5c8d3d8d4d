// SPDX-License-Identifier: Apache-2.0
#include "tests/support/authority.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>

#include "tests/support/pem.h"

namespace rivulet {
namespace {

std::string CertificatePem(X509* certificate) {
  return ToPem([&](BIO* bio) { PEM_write_bio_X509(bio, certificate); });
}

}  // namespace

Authority::Authority() : key_(EVP_EC_gen("P-256")) {
  certificate_ = Sign(key_.get(), "authority of a test", NID_basic_constraints, "CA:TRUE");
  pem_ = CertificatePem(certificate_.get());
}

Authority::Certificate Authority::Sign(EVP_PKEY* key, const std::string& common_name, int extension,
                                       const std::string& value) const {
  static std::atomic<long> serial = 1;
  Certificate made(X509_new());
  X509_set_version(made.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
  X509_set_pubkey(made.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                             0);
  X509* const issuer = certificate_ == nullptr ? made.get() : certificate_.get();
  X509_set_issuer_name(made.get(), X509_get_subject_name(issuer));
  X509_EXTENSION* const made_extension =
      X509V3_EXT_conf_nid(nullptr, nullptr, extension, value.c_str());
  X509_add_ext(made.get(), made_extension, -1);
  X509_EXTENSION_free(made_extension);
  X509_sign(made.get(), key_.get(), EVP_sha256());
  return made;
}

Authority::Identity Authority::Issue(const std::string& names) const {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate = Sign(key.get(), "identity", NID_subject_alt_name, names);
  return {CertificatePem(certificate.get()), ToPem([&](BIO* bio) {
            PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

}  // namespace rivulet
