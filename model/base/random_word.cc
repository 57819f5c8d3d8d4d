// SPDX-License-Identifier: Apache-2.0
#include "model/base/random_word.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace rivulet {

uint64_t RandomWord() {
  uint64_t word = 0;
  while (getrandom(&word, sizeof word, 0) != ssize_t{sizeof word}) {
    if (errno == EINTR) continue;
    std::perror("getrandom");
    std::abort();
  }
  return word;
}

}  // namespace rivulet
