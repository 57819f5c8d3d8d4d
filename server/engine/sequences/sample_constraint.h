// SPDX-License-Identifier: Apache-2.0
// SampleConstraint: the constraint of a sample between its rows: the mask of the next row, and
// whether the row must wait for it.
#pragma once

#include <memory>
#include <utility>

#include "server/constraints/compiler.h"

namespace rivulet {

// Thread: the loop.
class SampleConstraint {
 public:
  // `matcher` null: no constraint. `late_masks`: of BackendLimits.
  SampleConstraint(std::unique_ptr<ConstraintMatcher> matcher, bool late_masks)
      : matcher_(std::move(matcher)), late_masks_(late_masks) {}

  explicit operator bool() const { return matcher_ != nullptr; }
  const TokenMask* mask() const { return matcher_.get(); }
  // The last row fed its tokens and did not draw, as its mask was late.
  bool late() const { return late_; }
  // No row may be planned yet.
  bool waits() const {
    return matcher_ != nullptr && (late_ || !late_masks_) && matcher_->step() == nullptr;
  }

  // A row drew `token`.
  void OnDrawn(int32_t token) {
    late_ = false;
    if (matcher_ == nullptr) return;
    matcher_->Push({&token, 1});
    due_ = true;
  }
  void OnLate() { late_ = due_ = true; }
  // What may follow what was written, once; null: not known yet, or told before. The caller writes
  // its forced tokens.
  const ConstraintStep* Take() {
    const ConstraintStep* const step = due_ ? matcher_->step() : nullptr;
    if (step == nullptr) return nullptr;
    due_ = false;
    matcher_->TakeForced();
    return step;
  }
  // Tokens are fed before the next draw.
  void OnFeed() { late_ = false; }

 private:
  std::unique_ptr<ConstraintMatcher> matcher_;
  bool late_masks_;
  bool due_ = false;  // the step was not told yet
  bool late_ = false;
};

}  // namespace rivulet
