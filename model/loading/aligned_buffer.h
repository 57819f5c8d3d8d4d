// SPDX-License-Identifier: Apache-2.0
// AlignedBuffer: zeroed anonymous memory, page aligned. Pages are taken from the system when first
// written, so a large reservation costs nothing until it is used.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <span>
#include <utility>

namespace rivulet {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // `bytes` bytes of zeros; empty() if the system refuses.
  explicit AlignedBuffer(size_t bytes) {
    if (bytes == 0) return;
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return;
    // States are accessed at random: small pages would also miss the translation cache each time.
    madvise(p, bytes, MADV_HUGEPAGE);
    pointer_ = p;
    bytes_ = bytes;
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : pointer_(std::exchange(other.pointer_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedBuffer() {
    if (pointer_ != nullptr) munmap(pointer_, bytes_);
  }

  bool empty() const { return pointer_ == nullptr; }
  size_t bytes() const { return bytes_; }
  void* data() const { return pointer_; }
  float* floats() const { return static_cast<float*>(pointer_); }

 private:
  void* pointer_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace rivulet
