// SPDX-License-Identifier: Apache-2.0
// Which instruction set the `_cpu` kernels run on.
#pragma once

#include <string>

namespace rivulet::kernels {

// Name of the chosen target: "AVX3_DL" (AVX-512 with VNNI), "AVX3" (AVX-512), "AVX2", "NEON",
// "SCALAR", ...
std::string CpuTargetName();

// Whether the chosen target fuses multiply-adds. All targets that do give the same bits.
bool CpuTargetFuses();

// Whether this machine's best target fuses multiply-adds, whatever SetCpuTargetForTest chose.
bool CpuFuses();

// For tests: restricts the kernels to `name` ("AVX3_DL", "AVX3", "AVX2" or "SCALAR"); a kernel that
// is not compiled for it uses the next lower target. "" lifts the restriction. Returns false where
// this machine or build lacks it. Thread: no kernel may be running.
bool SetCpuTargetForTest(const std::string& name);

}  // namespace rivulet::kernels
