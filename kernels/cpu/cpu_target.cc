// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_target.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include "hwy/highway.h"
#include "kernels/cpu/cpu_target.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {
int64_t ThisTarget() { return HWY_TARGET; }
}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(ThisTarget);

std::string CpuTargetName() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(ThisTarget)()); }

bool CpuTargetFuses() {
  constexpr int64_t kUnfused = HWY_SCALAR | HWY_EMU128 | HWY_SSSE3 | HWY_SSE4;
  return (HWY_DYNAMIC_DISPATCH(ThisTarget)() & kUnfused) == 0;
}

bool CpuFuses() {
  static const bool fuses = CpuTargetFuses();
  return fuses;
}

bool SetCpuTargetForTest(const std::string& name) {
  CpuFuses();  // before the choice of target changes
  hwy::SetSupportedTargetsForTest(0);
  const int64_t available = hwy::SupportedTargets() & HWY_TARGETS;
  bool found = name.empty();
  for (int64_t rest = available; rest != 0 && !found; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    if (name == hwy::TargetName(target)) {
      // And the lower targets, for kernels that are not compiled for this one.
      hwy::SetSupportedTargetsForTest(available & ~(target - 1));
      found = true;
    }
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return found && (name.empty() || CpuTargetName() == name);
}

}  // namespace rivulet::kernels
#endif
