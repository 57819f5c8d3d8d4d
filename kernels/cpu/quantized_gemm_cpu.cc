// SPDX-License-Identifier: Apache-2.0
// Products with weights of 8 and 4 bits. A tile is kRows rows by a panel of 32 columns; for each
// group of inputs the integers are summed in registers, a few vectors of columns at a time, then
// scaled and added to the tile's float32 sums.
//
// Highway 1.0.3 lacks the instructions that multiply bytes, so those of x86 are named here:
//   AVX3_DL  vpdpbusd: four products of an unsigned and a signed byte into 32 bits. Signed weights
//            are raised by 128; the sum starts with the correction for this.
//   AVX2, AVX3  8 bits: vpmaddwd of weights widened to 16 bits, once for all rows of the tile.
//            4 bits: vpmaddubsw. A pair is at most 2 * 15 * 127, so eight of them fit into 16 bits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantized_gemm_cpu.cc"
#include "hwy/foreach_target.h"
// (must stand before highway.h)
#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/gemm_epilogue-inl.h"
#include "kernels/gemm.h"
#include "kernels/quantized.h"

#if HWY_TARGET == HWY_AVX3_DL
// Highway chooses this target only for CPUs with VNNI, but does not enable VNNI in the compiler.
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace rivulet::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr int kSumLanes = 16;
inline constexpr int kTileRows = 6;
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kSumLanes = 8;
inline constexpr int kTileRows = 8;
#else
inline constexpr int kSumLanes = static_cast<int>(HWY_MIN(HWY_LANES(float), 4));
inline constexpr int kTileRows = 4;
#endif
inline constexpr int kPanelVecs = kPanelColumns / kSumLanes;
using SumTag = hn::CappedTag<float, kSumLanes>;
using IntTag = hn::Rebind<int32_t, SumTag>;
using FloatSums = hn::Vec<SumTag>;
using IntSums = hn::Vec<IntTag>;
inline constexpr size_t kWordBytes = kPanelColumns * 4;  // of a block: four inputs of a panel
inline constexpr size_t kAhead = 4;                      // blocks that are requested early

// Vectors of columns that are summed at once for `rows` rows.
constexpr int VecsAtOnce(int rows) {
#if HWY_TARGET == HWY_AVX2
  return rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return 2;
#else
  return rows > 0 ? 1 : 0;
#endif
}

// The rows of a tile in one group.
struct GroupRows {
  const uint8_t* integers;  // of the first row
  const uint8_t* pairs;
  const uint8_t* scales;
  size_t stride;

  HWY_INLINE int32_t Word(int row, int i) const { return Load<int32_t>(integers, row, i); }
  HWY_INLINE int32_t Pair(int row, int i) const { return Load<int32_t>(pairs, row, i); }
  HWY_INLINE QuantizedScale Scale(int row) const { return Load<QuantizedScale>(scales, row, 0); }

 private:
  template <class T>
  HWY_INLINE T Load(const uint8_t* from, int row, int i) const {
    T value;
    std::memcpy(&value, from + size_t(row) * stride + size_t(i) * sizeof(T), sizeof(T));
    return value;
  }
};

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
using Raw = __m512i;
HWY_INLINE Raw LoadRaw(const uint8_t* p) { return _mm512_load_si512(p); }
HWY_INLINE Raw Broadcast(int32_t word) { return _mm512_set1_epi32(word); }
HWY_INLINE Raw LowHalves(Raw v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
HWY_INLINE Raw HighHalves(Raw v) { return LowHalves(_mm512_srli_epi16(v, 4)); }
HWY_INLINE Raw EvenBytes(Raw v) { return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8); }
HWY_INLINE Raw OddBytes(Raw v) { return _mm512_srai_epi16(v, 8); }
HWY_INLINE Raw Add32(Raw a, Raw b) { return _mm512_add_epi32(a, b); }
HWY_INLINE Raw Add16(Raw a, Raw b) { return _mm512_add_epi16(a, b); }
HWY_INLINE Raw MultiplyPairs(Raw a, Raw b) { return _mm512_madd_epi16(a, b); }
HWY_INLINE Raw MultiplyBytes(Raw a, Raw b) { return _mm512_maddubs_epi16(a, b); }
HWY_INLINE Raw One16() { return _mm512_set1_epi16(1); }
#elif HWY_TARGET == HWY_AVX2
using Raw = __m256i;
HWY_INLINE Raw LoadRaw(const uint8_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
HWY_INLINE Raw Broadcast(int32_t word) { return _mm256_set1_epi32(word); }
HWY_INLINE Raw LowHalves(Raw v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
HWY_INLINE Raw HighHalves(Raw v) { return LowHalves(_mm256_srli_epi16(v, 4)); }
HWY_INLINE Raw EvenBytes(Raw v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
HWY_INLINE Raw OddBytes(Raw v) { return _mm256_srai_epi16(v, 8); }
HWY_INLINE Raw Add32(Raw a, Raw b) { return _mm256_add_epi32(a, b); }
HWY_INLINE Raw Add16(Raw a, Raw b) { return _mm256_add_epi16(a, b); }
HWY_INLINE Raw MultiplyPairs(Raw a, Raw b) { return _mm256_madd_epi16(a, b); }
HWY_INLINE Raw MultiplyBytes(Raw a, Raw b) { return _mm256_maddubs_epi16(a, b); }
HWY_INLINE Raw One16() { return _mm256_set1_epi16(1); }
#endif

template <int kRows, int kVecs>
HWY_INLINE void ClearSums(IntSums (&sums)[kRows][kVecs]) {
  RIVULET_UNROLL
  for (int i = 0; i < kRows; ++i) {
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) sums[i][j] = hn::Zero(IntTag());
  }
}

// sum_k q p for kRows rows and kVecs vectors of columns: of words kFirst .. kEnd - 1 of integers of
// 8 bits (of a group or one of its halves), or of a group of 4 bits. `values`: of the first column.

#if HWY_TARGET == HWY_AVX3_DL

template <int kRows, int kVecs, int kFirst, int kEnd>
HWY_INLINE void SumBytes(const uint8_t* HWY_RESTRICT values, const GroupRows& x,
                         IntSums (&sums)[kRows][kVecs]) {
  RIVULET_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const QuantizedScale t = x.Scale(i);
    const int32_t raised = (kFirst < 4 ? t.raised[0] : 0) + (kEnd > 4 ? t.raised[1] : 0);
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) sums[i][j].raw = Broadcast(raised);
  }
  RIVULET_UNROLL
  for (int word = kFirst; word < kEnd; ++word) {
    Raw w[kVecs];
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      const Raw raw = LoadRaw(values + size_t(word) * kWordBytes + size_t(j) * sizeof(Raw));
      w[j] = _mm512_xor_si512(raw, _mm512_set1_epi8(-128));
    }
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Raw p = Broadcast(x.Word(i, word));
      RIVULET_UNROLL
      for (int j = 0; j < kVecs; ++j) {
        sums[i][j].raw = _mm512_dpbusd_epi32(sums[i][j].raw, w[j], p);
      }
    }
  }
}

// Words of 4 bits: four products into 32 bits.
HWY_INLINE Raw AddNibbles(Raw sum, Raw w, Raw p) { return _mm512_dpbusd_epi32(sum, w, p); }
HWY_INLINE Raw WidenNibbles(Raw sum) { return sum; }

#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

template <int kRows, int kVecs, int kFirst, int kEnd>
HWY_INLINE void SumBytes(const uint8_t* HWY_RESTRICT values, const GroupRows& x,
                         IntSums (&sums)[kRows][kVecs]) {
  ClearSums(sums);
  RIVULET_NO_UNROLL
  for (int word = kFirst; word < kEnd; ++word) {
    Raw even[kVecs], odd[kVecs];
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      const Raw raw = LoadRaw(values + size_t(word) * kWordBytes + size_t(j) * sizeof(Raw));
      even[j] = EvenBytes(raw);
      odd[j] = OddBytes(raw);
    }
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Raw p = Broadcast(x.Pair(i, 2 * word)), behind = Broadcast(x.Pair(i, 2 * word + 1));
      RIVULET_UNROLL
      for (int j = 0; j < kVecs; ++j) {
        const Raw first = Add32(sums[i][j].raw, MultiplyPairs(even[j], p));
        sums[i][j].raw = Add32(first, MultiplyPairs(odd[j], behind));
      }
    }
  }
}

// Words of 4 bits: eight pairs of products into 16 bits, which are then added.
HWY_INLINE Raw AddNibbles(Raw sum, Raw w, Raw p) { return Add16(sum, MultiplyBytes(w, p)); }
HWY_INLINE Raw WidenNibbles(Raw sum) { return MultiplyPairs(sum, One16()); }

#else

// For any target: the integers of a lane one after the other.
template <int kRows, int kVecs, class Integer>
HWY_INLINE void PlainSum(const GroupRows& x, int begin, int end, IntSums (&sums)[kRows][kVecs],
                         const Integer& integer) {
  HWY_ALIGN int32_t lanes[kVecs * kSumLanes];
  for (int row = 0; row < kRows; ++row) {
    for (int lane = 0; lane < kVecs * kSumLanes; ++lane) {
      int32_t sum = 0;
      for (int i = begin; i < end; ++i) {
        sum +=
            integer(lane, i) * static_cast<int8_t>(x.integers[size_t(row) * x.stride + size_t(i)]);
      }
      lanes[lane] = sum;
    }
    for (int j = 0; j < kVecs; ++j) sums[row][j] = hn::Load(IntTag(), lanes + j * kSumLanes);
  }
}

template <int kRows, int kVecs, int kFirst, int kEnd>
HWY_INLINE void SumBytes(const uint8_t* HWY_RESTRICT values, const GroupRows& x,
                         IntSums (&sums)[kRows][kVecs]) {
  PlainSum<kRows, kVecs>(x, kFirst * 4, kEnd * 4, sums, [values](int lane, int i) {
    return static_cast<int8_t>(values[size_t(i / 4) * kWordBytes + size_t(lane * 4 + i % 4)]);
  });
}

template <int kRows, int kVecs>
HWY_INLINE void SumNibbles(const uint8_t* HWY_RESTRICT values, const GroupRows& x,
                           IntSums (&sums)[kRows][kVecs]) {
  PlainSum<kRows, kVecs>(x, 0, kQuantizedInputs, sums, [values](int lane, int i) {
    const uint8_t both = values[size_t(i % 16 / 4) * kWordBytes + size_t(lane * 4 + i % 4)];
    return int{i < 16 ? uint8_t(both & 15) : uint8_t(both >> 4)};
  });
}

#endif

#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
template <int kRows, int kVecs>
HWY_INLINE void SumNibbles(const uint8_t* HWY_RESTRICT values, const GroupRows& x,
                           IntSums (&sums)[kRows][kVecs]) {
  ClearSums(sums);
#if HWY_TARGET == HWY_AVX3_DL
  RIVULET_UNROLL
#else
  RIVULET_NO_UNROLL  // unrolled it needs too many registers: 17 % slower with AVX2
#endif
  for (int word = 0; word < kQuantizedInputs / 8; ++word) {
    Raw low[kVecs], high[kVecs];
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      const Raw raw = LoadRaw(values + size_t(word) * kWordBytes + size_t(j) * sizeof(Raw));
      low[j] = LowHalves(raw);
      high[j] = HighHalves(raw);
    }
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const Raw p = Broadcast(x.Word(i, word)), behind = Broadcast(x.Word(i, word + 4));
      RIVULET_UNROLL
      for (int j = 0; j < kVecs; ++j) {
        const Raw first = AddNibbles(sums[i][j].raw, low[j], p);
        sums[i][j].raw = AddNibbles(first, high[j], behind);
      }
    }
  }
  RIVULET_UNROLL
  for (int i = 0; i < kRows; ++i) {
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) sums[i][j].raw = WidenNibbles(sums[i][j].raw);
  }
}
#endif

// Scales or minima of a vector of columns.
template <WeightType kType>
HWY_INLINE FloatSums LoadScales(const uint8_t* p, int vec) {
  p += size_t(vec) * kSumLanes * size_t(FormatOf(kType).scale_bytes);
  if constexpr (FormatOf(kType).scale_bytes == 4) {
    return hn::Load(SumTag(), reinterpret_cast<const float*>(p));
  } else {
    const hn::Rebind<hwy::float16_t, SumTag> halves;
    return hn::PromoteTo(SumTag(), hn::Load(halves, reinterpret_cast<const hwy::float16_t*>(p)));
  }
}

// y += s t sum of the integers from word kFirst to kEnd - 1, vectors vec .. vec + kVecs - 1 of the
// panel; kFirst > 0: the second half of a group.
template <WeightType kType, int kRows, int kVecs, int kFirst, int kEnd>
HWY_INLINE void AddSums(const uint8_t* HWY_RESTRICT block, const GroupRows& x, int vec,
                        FloatSums (&y)[kRows][kPanelVecs]) {
  constexpr QuantizedFormat kFormat = FormatOf(kType);
  const SumTag d;
  const uint8_t* const values = block + kFormat.values() + size_t(vec) * kSumLanes * 4;
  IntSums sums[kRows][kVecs];
  if constexpr (kFormat.bits == 8) {
    SumBytes<kRows, kVecs, kFirst, kEnd>(values, x, sums);
  } else {
    SumNibbles<kRows, kVecs>(values, x, sums);
  }
  const uint8_t* const scales =
      block + (kFirst > 0 ? size_t(kPanelColumns * kFormat.scale_bytes) : size_t{0});
  RIVULET_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const FloatSums s = LoadScales<kType>(scales, vec + j);
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const FloatSums st = hn::Mul(s, hn::Set(d, x.Scale(i).scale));
      y[i][vec + j] = hn::MulAdd(hn::ConvertTo(d, sums[i][j]), st, y[i][vec + j]);
    }
  }
}

// Adds a group to a tile's sums, vectors vec .. vec + kVecs - 1 of the panel.
template <WeightType kType, int kRows, int kVecs>
HWY_INLINE void AddGroup(const uint8_t* HWY_RESTRICT block, const GroupRows& x, int vec,
                         FloatSums (&y)[kRows][kPanelVecs]) {
  constexpr QuantizedFormat kFormat = FormatOf(kType);
  constexpr int kWords = kQuantizedInputs / 4;
  if constexpr (kFormat.halves == 2) {
    AddSums<kType, kRows, kVecs, 0, kWords / 2>(block, x, vec, y);
    AddSums<kType, kRows, kVecs, kWords / 2, kWords>(block, x, vec, y);
  } else {
    AddSums<kType, kRows, kVecs, 0, kWords>(block, x, vec, y);
  }
  if constexpr (kFormat.minimum) {
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      const FloatSums m = LoadScales<kType>(block + kFormat.minima(), vec + j);
      RIVULET_UNROLL
      for (int i = 0; i < kRows; ++i) {
        y[i][vec + j] = hn::MulAdd(m, hn::Set(SumTag(), x.Scale(i).offset), y[i][vec + j]);
      }
    }
  }
}

// Rows row .. row + kRows - 1 of a panel.
template <WeightType kType, int kRows>
HWY_NOINLINE void QuantizedTile(const GemmArgs& args, int row, int panel) {
  const SumTag d;
  const QuantizedRowLayout layout(args.w.k);
  constexpr size_t kBlock = FormatOf(kType).bytes();
  const uint8_t* HWY_RESTRICT block =
      static_cast<const uint8_t*>(args.w.panels) + size_t(panel) * size_t(layout.groups) * kBlock;
  const uint8_t* const first =
      static_cast<const uint8_t*>(args.quantized_x) + size_t(row) * layout.bytes;
  GroupRows x = {first, first + layout.pairs, first + layout.scales, layout.bytes};
  FloatSums y[kRows][kPanelVecs];
  RIVULET_UNROLL
  for (int j = 0; j < kPanelVecs; ++j) {
    const FloatSums bias = hn::LoadU(d, args.bias + panel * kPanelColumns + j * kSumLanes);
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) y[i][j] = bias;
  }
  constexpr int kVecs = VecsAtOnce(kRows);
  for (int g = 0; g < layout.groups; ++g, block += kBlock) {
    // One stream of memory per thread is too little to use the full bandwidth of memory.
    for (size_t line = 0; row == 0 && line < kBlock; line += 64) {
      hwy::Prefetch(block + kAhead * kBlock + line);
    }
    if constexpr (kVecs == kPanelVecs) {
      AddGroup<kType, kRows, kVecs>(block, x, 0, y);
    } else {
      RIVULET_NO_UNROLL
      for (int vec = 0; vec < kPanelVecs; vec += kVecs) {
        AddGroup<kType, kRows, kVecs>(block, x, vec, y);
      }
    }
    x.integers += kQuantizedInputs;
    x.pairs += kQuantizedInputs * 2;
    x.scales += sizeof(QuantizedScale);
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kPanelVecs; ++j) {
      StoreOutputs(d, args, y[i][j], row + i, size_t(panel * kPanelColumns + j * kSumLanes));
    }
  }
}

template <WeightType kType, int kRows>
HWY_INLINE void QuantizedRows(const GemmArgs& args, int rows, int row, int panel) {
  if constexpr (kRows >= 1) {
    if (rows == kRows) return QuantizedTile<kType, kRows>(args, row, panel);
    QuantizedRows<kType, kRows - 1>(args, rows, row, panel);
  }
}

template <WeightType kType>
void RunQuantized(const GemmArgs& args) {
  // Whole blocks, and the last rows in two of equal size: 8 rows are 4 + 4, not 6 + 2, because a
  // small block takes almost as long. All blocks pass a panel while it is cached.
  const int whole = std::max(0, (args.rows + kTileRows - 1) / kTileRows - 2);
  const int split = whole * kTileRows, left = args.rows - split,
            half = left > kTileRows ? (left + 1) / 2 : left;
  for (int panel = args.panel_begin; panel < args.panel_end; ++panel) {
    for (int row = 0; row < split; row += kTileRows) {
      QuantizedRows<kType, kTileRows>(args, kTileRows, row, panel);
    }
    QuantizedRows<kType, kTileRows>(args, half, split, panel);
    if (half < left) QuantizedRows<kType, kTileRows>(args, left - half, split + half, panel);
  }
}

void QuantizedGemm(const GemmArgs& args) {
  switch (args.w.type) {
    case WeightType::kInt8:
      return RunQuantized<WeightType::kInt8>(args);
    case WeightType::kInt4:
      return RunQuantized<WeightType::kInt4>(args);
    case WeightType::kQ4K:
      return RunQuantized<WeightType::kQ4K>(args);
    case WeightType::kQ5K:
      return RunQuantized<WeightType::kQ5K>(args);
    case WeightType::kQ6K:
      return RunQuantized<WeightType::kQ6K>(args);
    default:
      return;  // GemmCpu's
  }
}

}  // namespace rivulet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rivulet::kernels {

HWY_EXPORT(QuantizedGemm);

void QuantizedGemmCpu(const GemmArgs& args) { HWY_DYNAMIC_DISPATCH(QuantizedGemm)(args); }

}  // namespace rivulet::kernels
#endif
