// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/bio.h>

#include <cstddef>
#include <string>

namespace rivulet {

// The output of `write`, one of OpenSSL's PEM_write_bio functions.
template <typename Write>
std::string ToPem(Write write) {
  BIO* const bio = BIO_new(BIO_s_mem());
  write(bio);
  char* data = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(bio, &data));
  std::string text(data, size);
  BIO_free(bio);
  return text;
}

}  // namespace rivulet
