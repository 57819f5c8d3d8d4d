// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/causal_conv_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <array>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/causal_conv.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rivulet::kernels::HWY_NAMESPACE {

// Input `i` of the call: first the inputs in the state, then the inputs of the tokens.
HWY_INLINE const float* Input(const CausalConvArgs& args, size_t i) {
  const size_t past = size_t(args.width) - 1;
  return i < past ? args.state + i * size_t(args.channels) : args.x + (i - past) * args.x_stride;
}

template <bool kSilu>
void ConvolveToken(const CausalConvArgs& args, size_t t) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d), channels = size_t(args.channels), width = size_t(args.width);
  std::array<const float*, kMaxConvWidth> taps{};
  for (size_t j = 0; j < width; ++j) taps[j] = Input(args, t + j);
  float* y = args.y + t * args.y_stride;
  for (size_t c = 0; c < channels; c += lanes) {
    const size_t count = std::min(lanes, channels - c);
    FloatVec sum = args.bias == nullptr ? hn::Zero(d) : LoadSome(args.bias + c, count);
    for (size_t j = 0; j < width; ++j) {
      sum = hn::MulAdd(LoadSome(args.weight + j * channels + c, count),
                       LoadSome(taps[j] + c, count), sum);
    }
    if constexpr (kSilu) sum = hn::Mul(sum, Sigmoid(d, sum));
    StoreSome(sum, y + c, count);
  }
}

void CausalConv(const CausalConvArgs& args) {
  const size_t tokens = size_t(args.tokens), past = size_t(args.width) - 1;
  for (size_t t = 0; t < tokens; ++t) {
    if (args.silu) {
      ConvolveToken<true>(args, t);
    } else {
      ConvolveToken<false>(args, t);
    }
  }
  // In ascending order: row i takes the input `tokens` rows later, which is not overwritten yet.
  for (size_t i = 0; i < past && tokens > 0; ++i) {
    std::memcpy(args.state + i * size_t(args.channels), Input(args, tokens + i),
                size_t(args.channels) * sizeof(float));
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(CausalConv);

void CausalConvCpu(const CausalConvArgs& args) { HWY_DYNAMIC_DISPATCH(CausalConv)(args); }

}  // namespace rivulet::kernels
#endif
