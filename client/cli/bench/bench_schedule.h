// SPDX-License-Identifier: Apache-2.0
// The intended times of an open loop's requests. Rate and seed determine them; the server's answers
// do not.
#pragma once

#include <cstdint>
#include <random>

namespace rivulet {

// Thread: one at a time.
class ArrivalSchedule {
 public:
  // `rate` requests/s, > 0. Poisson: gaps are exponential, independent, and the same for equal
  // seeds on every machine. Otherwise request i is due i / rate after the start.
  ArrivalSchedule(double rate, bool poisson, uint64_t seed);

  // Nanoseconds from the start to the next request; never less than the previous result.
  int64_t Next();

 private:
  const double rate_;
  const bool poisson_;
  std::mt19937_64 random_;
  double seconds_ = 0;  // Poisson: time of the last request
  int64_t index_ = 0;   // of the next request
};

}  // namespace rivulet
