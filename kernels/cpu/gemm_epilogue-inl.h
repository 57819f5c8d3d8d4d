// SPDX-License-Identifier: Apache-2.0
// Shared by the matrix products: how loops over tiles are unrolled, and the epilogue of outputs.
// Per-target include: see Highway's `-inl.h` convention.
#if defined(RIVULET_KERNELS_GEMM_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RIVULET_KERNELS_GEMM_EPILOGUE_INL_H_
#undef RIVULET_KERNELS_GEMM_EPILOGUE_INL_H_
#else
#define RIVULET_KERNELS_GEMM_EPILOGUE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/gemm.h"

#ifndef RIVULET_UNROLL
#if defined(__clang__)
#define RIVULET_UNROLL _Pragma("clang loop unroll(full)")
#define RIVULET_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define RIVULET_UNROLL _Pragma("GCC unroll 16")
#define RIVULET_NO_UNROLL _Pragma("GCC unroll 1")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

template <Epilogue kEpilogue, class D>
HWY_INLINE void StoreOutput(D d, const GemmArgs& args, hn::Vec<D> v, size_t at) {
  if constexpr (kEpilogue == Epilogue::kRelu) v = hn::Max(v, hn::Zero(d));
  if constexpr (kEpilogue == Epilogue::kGelu) v = Gelu(d, v);
  if constexpr (kEpilogue == Epilogue::kResidual) v = hn::Add(v, hn::LoadU(d, args.residual + at));
  hn::StoreU(v, d, args.y + at);
}

// y[row][column ..] = epilogue(v).
template <class D>
HWY_INLINE void StoreOutputs(D d, const GemmArgs& args, hn::Vec<D> v, int row, size_t column) {
  const size_t at = size_t(row) * size_t(args.ldy) + column;
  switch (args.epilogue) {
    case Epilogue::kNone:
      return StoreOutput<Epilogue::kNone>(d, args, v, at);
    case Epilogue::kRelu:
      return StoreOutput<Epilogue::kRelu>(d, args, v, at);
    case Epilogue::kGelu:
      return StoreOutput<Epilogue::kGelu>(d, args, v, at);
    case Epilogue::kResidual:
      return StoreOutput<Epilogue::kResidual>(d, args, v, at);
    case Epilogue::kScatter: {
      float* const y = args.y + size_t(args.scatter.rows[row]) * size_t(args.ldy) + column;
      return hn::StoreU(hn::MulAdd(hn::Set(d, args.scatter.scales[row]), v, hn::LoadU(d, y)), d, y);
    }
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
