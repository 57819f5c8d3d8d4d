// SPDX-License-Identifier: Apache-2.0
// Limits the work on one text, whatever the text and the tokenizer's file, in steps and in bytes of
// memory. A callback can end the work earlier.
//
// A step takes some nanoseconds: a node of a trie, an entry of a queue, a copied byte, one try of a
// pattern's item. Bytes count intermediate forms and the tokens.
// Tested by: tests/unit/model/text/text_budget_test.cc
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"

namespace rivulet {

// Ordinary texts take 5 to 30 steps per byte. The rest is for short texts and rare characters.
constexpr uint64_t kTextSteps = 1'000'000;
constexpr uint64_t kTextStepsPerByte = 64;
constexpr size_t kTextWorkBytes = size_t{64} << 20;
constexpr size_t kTextBytesPerByte = 12;  // for tokens, if each byte is a token

// Thread: one at a time.
class TextBudget {
 public:
  // OK to continue the work; else the error that ends it, for example a passed deadline.
  using Stopped = std::function<absl::Status()>;

  // Allows kTextSteps and kTextWorkBytes, and for each byte kTextStepsPerByte and
  // kTextBytesPerByte. `stopped` may be null. It is called before the first step and then after
  // every kStepsPerQuestion steps, about a millisecond.
  explicit TextBudget(size_t text_bytes, Stopped stopped = nullptr)
      : TextBudget(kTextSteps + kTextStepsPerByte * text_bytes,
                   kTextWorkBytes + kTextBytesPerByte * text_bytes, std::move(stopped)) {}
  TextBudget(uint64_t steps, size_t bytes, Stopped stopped);
  TextBudget(const TextBudget&) = delete;
  TextBudget& operator=(const TextBudget&) = delete;

  // Takes steps. False if the work must end now: then status() says why, and every later call
  // returns false.
  [[nodiscard]] bool Step(uint64_t steps) {
    steps_used_ += steps;
    return steps_used_ < next_look_ || Look();
  }
  // Takes bytes of memory, before they are allocated; returns as Step.
  [[nodiscard]] bool Take(size_t bytes);
  void Give(size_t bytes) { bytes_left_ += bytes; }

  // OK, TEXT_TOO_HARD (INVALID_ARGUMENT, field "text"), or the error of `stopped`.
  const absl::Status& status() const { return status_; }

  uint64_t steps_used() const { return steps_used_; }
  uint64_t steps_left() const { return steps_used_ < steps_ ? steps_ - steps_used_ : 0; }
  size_t bytes_left() const { return bytes_left_; }

  static constexpr uint64_t kStepsPerQuestion = 1 << 16;

 private:
  bool Look();

  const uint64_t steps_;
  const size_t bytes_;
  const Stopped stopped_;
  uint64_t steps_used_ = 0;
  uint64_t next_look_ = 0;
  size_t bytes_left_;
  absl::Status status_;
};

// Takes bytes of a budget and returns them when it is destroyed. Thread: one at a time. Lifetime:
// the budget must outlive it.
class BudgetedBytes {
 public:
  explicit BudgetedBytes(TextBudget* budget) : budget_(budget) {}
  BudgetedBytes(const BudgetedBytes&) = delete;
  BudgetedBytes& operator=(const BudgetedBytes&) = delete;
  ~BudgetedBytes() { budget_->Give(bytes_); }

  // As TextBudget::Take.
  [[nodiscard]] bool Add(size_t bytes) {
    if (!budget_->Take(bytes)) return false;
    bytes_ += bytes;
    return true;
  }

 private:
  TextBudget* const budget_;
  size_t bytes_ = 0;
};

}  // namespace rivulet
