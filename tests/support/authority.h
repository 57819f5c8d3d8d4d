// SPDX-License-Identifier: Apache-2.0
// A certificate authority for tests of TLS.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace rivulet {

class Authority {
 public:
  Authority();

  struct Identity {
    std::string cert, key;  // PEM
  };
  // `names`: the certificate's names, in OpenSSL's form: "DNS:localhost,IP:127.0.0.1".
  Identity Issue(const std::string& names) const;
  const std::string& pem() const { return pem_; }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  Certificate Sign(EVP_PKEY* key, const std::string& common_name, int extension,
                   const std::string& value) const;

  Key key_;
  Certificate certificate_;
  std::string pem_;
};

}  // namespace rivulet
