// SPDX-License-Identifier: Apache-2.0
// Products with weights of 8 to 4 bits. A tile is kRows rows by a panel of 32 columns; for each
// group of inputs the integers are summed in registers, a few vectors of columns at a time, then
// scaled and added to the tile's float32 sums.
//
// Highway 1.0.3 lacks the instructions that multiply bytes, so those of x86 are named here. Both
// multiply an unsigned byte of weights and a signed one of a row; weights of 6 bits lie raised by
// 32, and the sum starts with the correction for this.
//   AVX3_DL  vpdpbusd: four products into 32 bits. Weights of 8 bits are raised by 128.
//   AVX2, AVX3  vpmaddubsw: a pair of products into 16 bits. Of 4 bits a pair is at most 2 * 15 *
//            127, so that eight fit; of 5 and 6 bits two fit; of 8 bits one, of the weights without
//            their signs and the row with them.
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
inline constexpr size_t kAhead = 8192;                   // bytes that are requested early

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
  const uint8_t* scales;
  size_t stride;

  HWY_INLINE int32_t Word(int row, int i) const { return Load<int32_t>(integers, row, i); }
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
HWY_INLINE Raw ShiftLeft16(Raw v, int bits) { return _mm512_slli_epi16(v, unsigned(bits)); }
HWY_INLINE Raw ShiftRight16(Raw v, int bits) { return _mm512_srli_epi16(v, unsigned(bits)); }
HWY_INLINE Raw Bytes(int byte) { return _mm512_set1_epi8(char(byte)); }
HWY_INLINE Raw And(Raw a, Raw b) { return _mm512_and_si512(a, b); }
HWY_INLINE Raw Or(Raw a, Raw b) { return _mm512_or_si512(a, b); }
HWY_INLINE Raw Xor(Raw a, Raw b) { return _mm512_xor_si512(a, b); }
HWY_INLINE Raw LookUp(__m128i table, Raw v) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), v);
}
HWY_INLINE Raw Magnitudes(Raw v) { return _mm512_abs_epi8(v); }
// `v`, negated where `signs` are negative.
HWY_INLINE Raw WithSigns(Raw v, Raw signs) {
  return _mm512_mask_sub_epi8(v, _mm512_movepi8_mask(signs), _mm512_setzero_si512(), v);
}
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
HWY_INLINE Raw ShiftLeft16(Raw v, int bits) { return _mm256_slli_epi16(v, bits); }
HWY_INLINE Raw ShiftRight16(Raw v, int bits) { return _mm256_srli_epi16(v, bits); }
HWY_INLINE Raw Bytes(int byte) { return _mm256_set1_epi8(char(byte)); }
HWY_INLINE Raw And(Raw a, Raw b) { return _mm256_and_si256(a, b); }
HWY_INLINE Raw Or(Raw a, Raw b) { return _mm256_or_si256(a, b); }
HWY_INLINE Raw LookUp(__m128i table, Raw v) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), v);
}
HWY_INLINE Raw Magnitudes(Raw v) { return _mm256_abs_epi8(v); }
// `v`, negated where `signs` are negative.
HWY_INLINE Raw WithSigns(Raw v, Raw signs) { return _mm256_sign_epi8(v, signs); }
HWY_INLINE Raw Add32(Raw a, Raw b) { return _mm256_add_epi32(a, b); }
HWY_INLINE Raw Add16(Raw a, Raw b) { return _mm256_add_epi16(a, b); }
HWY_INLINE Raw MultiplyPairs(Raw a, Raw b) { return _mm256_madd_epi16(a, b); }
HWY_INLINE Raw MultiplyBytes(Raw a, Raw b) { return _mm256_maddubs_epi16(a, b); }
HWY_INLINE Raw One16() { return _mm256_set1_epi16(1); }
#endif

// Whether q are signed bytes once they are loaded: of 8 bits, or of the table.
template <WeightType kType>
inline constexpr bool kSignedBytes = FormatOf(kType).bits == 8 || FormatOf(kType).table;

#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

// What q are raised by where they are multiplied as unsigned bytes: 128 / RaiseOf; 0: by nothing.
template <WeightType kType>
constexpr int RaiseOf() {
  if (FormatOf(kType).bits == 6) return 4;
  if (FormatOf(kType).bits == 5 && !FormatOf(kType).minimum) return 8;
  return kSignedBytes<kType> && HWY_TARGET == HWY_AVX3_DL ? 1 : 0;
}

// Word `word` of a vector of columns, whose words of the group begin at `values`.
template <WeightType kType>
HWY_INLINE Raw LoadIntegers(const uint8_t* HWY_RESTRICT values, int word) {
  constexpr QuantizedFormat kFormat = FormatOf(kType);
  const auto load = [values](int i) HWY_ATTR { return LoadRaw(values + size_t(i) * kWordBytes); };
  constexpr int kSign = RaiseOf<kType>() == 1 ? 128 : 0;
  if constexpr (kFormat.bits == 8 && kSign == 0) {
    return load(word);
  } else if constexpr (kFormat.bits == 8) {
    return Xor(load(word), Bytes(kSign));
  }
  if constexpr (kFormat.bits == 6) {
    const int first = word / 4 * 3;
    if (word % 4 < 3) return And(load(first + word % 4), Bytes(63));
    const Raw low = And(ShiftRight16(load(first), 6), Bytes(3));
    const Raw middle = And(ShiftRight16(load(first + 1), 4), Bytes(12));
    return Or(Or(low, middle), And(ShiftRight16(load(first + 2), 2), Bytes(48)));
  }
  const Raw both = load(word % 4);
  const Raw low = And(word < 4 ? both : ShiftRight16(both, 4), Bytes(15));
  if constexpr (kFormat.table) {
    HWY_ALIGN int8_t table[16];
    for (int i = 0; i < 16; ++i) table[i] = int8_t(kTableValues[i] ^ kSign);
    return LookUp(_mm_load_si128(reinterpret_cast<const __m128i*>(table)), low);
  }
  if constexpr (kFormat.bits == 5) {
    const Raw high = load(4);
    const Raw fifth = word < 4 ? ShiftLeft16(high, 4 - word) : ShiftRight16(high, word - 4);
    return Or(low, And(fifth, Bytes(16)));
  }
  return low;
}

// sum + w p + v q: sums of four products each. Of 4 bits without VNNI: of two, in 16 bits.
template <WeightType kType>
HWY_INLINE Raw AddProducts(Raw sum, Raw w, Raw p, Raw v, Raw q) {
#if HWY_TARGET == HWY_AVX3_DL
  return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, w, p), v, q);
#else
  if constexpr (kSignedBytes<kType>) {
    const Raw first = MultiplyBytes(Magnitudes(w), WithSigns(p, w));
    const Raw second = MultiplyBytes(Magnitudes(v), WithSigns(q, v));
    return Add32(Add32(sum, MultiplyPairs(first, One16())), MultiplyPairs(second, One16()));
  }
  if constexpr (FormatOf(kType).bits == 4) {
    return Add16(Add16(sum, MultiplyBytes(w, p)), MultiplyBytes(v, q));
  }
  return Add32(sum, MultiplyPairs(Add16(MultiplyBytes(w, p), MultiplyBytes(v, q)), One16()));
#endif
}

// Adds words `a` and `b`.
template <WeightType kType, int kRows, int kVecs>
HWY_INLINE void AddWords(const uint8_t* HWY_RESTRICT values, const GroupRows& x, int a, int b,
                         IntSums (&sums)[kRows][kVecs]) {
  Raw w[kVecs], v[kVecs];
  RIVULET_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    w[j] = LoadIntegers<kType>(values + size_t(j) * sizeof(Raw), a);
    v[j] = LoadIntegers<kType>(values + size_t(j) * sizeof(Raw), b);
  }
  RIVULET_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const Raw p = Broadcast(x.Word(i, a)), q = Broadcast(x.Word(i, b));
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      sums[i][j].raw = AddProducts<kType>(sums[i][j].raw, w[j], p, v[j], q);
    }
  }
}

// sum_k q p for kRows rows and kVecs vectors of columns, of half kHalf of a group, or of the group
// where it has no halves. `values`: of the first column.
template <WeightType kType, int kHalf, int kRows, int kVecs>
HWY_INLINE void SumIntegers(const uint8_t* HWY_RESTRICT values, const GroupRows& x,
                            IntSums (&sums)[kRows][kVecs]) {
  constexpr QuantizedFormat kFormat = FormatOf(kType);
  constexpr int kRaise = RaiseOf<kType>();
  RIVULET_UNROLL
  for (int i = 0; i < kRows; ++i) {
    int32_t raised = 0;
    if constexpr (kRaise != 0) {
      const QuantizedScale t = x.Scale(i);
      raised = (kFormat.halves == 2 ? t.raised[kHalf] : t.raised[0] + t.raised[1]) / kRaise;
    }
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) sums[i][j].raw = Broadcast(raised);
  }
  // Two words at a time, as they lie: of 4 and 5 bits in the same bytes.
  constexpr int kFirst = kFormat.bits == 8 ? 2 : 1, kNext = kFormat.bits == 8 ? 1 : 4;
  if constexpr (kFormat.halves == 2) {
    AddWords<kType, kRows, kVecs>(values, x, 4 * kHalf, 4 * kHalf + 1, sums);
    AddWords<kType, kRows, kVecs>(values, x, 4 * kHalf + 2, 4 * kHalf + 3, sums);
  } else if constexpr (kFormat.bits == 5 || HWY_TARGET == HWY_AVX3_DL) {
    RIVULET_UNROLL
    for (int i = 0; i < 4; ++i) {
      AddWords<kType, kRows, kVecs>(values, x, kFirst * i, kFirst * i + kNext, sums);
    }
  } else {  // unrolled it needs too many registers: 17 % slower with AVX2
    RIVULET_NO_UNROLL
    for (int i = 0; i < 4; ++i) {
      AddWords<kType, kRows, kVecs>(values, x, kFirst * i, kFirst * i + kNext, sums);
    }
  }
#if HWY_TARGET != HWY_AVX3_DL
  if constexpr (kFormat.bits == 4 && !kFormat.table) {
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) {
      RIVULET_UNROLL
      for (int j = 0; j < kVecs; ++j) sums[i][j].raw = MultiplyPairs(sums[i][j].raw, One16());
    }
  }
#endif
}

#else

// For any target: the integers of a lane one after the other.
template <WeightType kType, int kHalf, int kRows, int kVecs>
HWY_INLINE void SumIntegers(const uint8_t* HWY_RESTRICT values, const GroupRows& x,
                            IntSums (&sums)[kRows][kVecs]) {
  constexpr int kInputs = kQuantizedInputs / FormatOf(kType).halves;
  HWY_ALIGN int32_t lanes[kVecs * kSumLanes];
  for (int row = 0; row < kRows; ++row) {
    for (int lane = 0; lane < kVecs * kSumLanes; ++lane) {
      int32_t sum = 0;
      for (int i = kHalf * kInputs; i < (kHalf + 1) * kInputs; ++i) {
        sum += IntegerAt(FormatOf(kType), values, lane, i) *
               static_cast<int8_t>(x.integers[size_t(row) * x.stride + size_t(i)]);
      }
      lanes[lane] = sum;
    }
    for (int j = 0; j < kVecs; ++j) sums[row][j] = hn::Load(IntTag(), lanes + j * kSumLanes);
  }
}

#endif

// s and m of a block.
template <WeightType kType>
class Scales {
 public:
  HWY_INLINE explicit Scales(const uint8_t* HWY_RESTRICT block) : block_(block) {
    if constexpr (kFormat.groups > 1) {
      units_ = block + kFormat.units();
      for (int vec = 0; vec < kPanelVecs; ++vec) {
        hn::Store(LoadHalves(0, vec), SumTag(), d_ + vec * kSumLanes);
        if constexpr (!kFormat.minimum) continue;
        hn::Store(LoadHalves(kFormat.minima(), vec), SumTag(), e_ + vec * kSumLanes);
      }
      if constexpr (kFormat.minimum) UnpackSixBits();
    }
  }

  // Vector `vec` of group `group`.
  HWY_INLINE FloatSums Scale(int group, int half, int vec) const {
    if constexpr (kFormat.groups == 1) return LoadHalves(0, vec);
    return Product(d_, group * kFormat.halves + half, vec);
  }
  HWY_INLINE FloatSums Minimum(int group, int vec) const {
    if constexpr (kFormat.groups == 1) return LoadHalves(kFormat.minima(), vec);
    return Product(e_, kFormat.groups + group, vec);
  }

 private:
  static constexpr QuantizedFormat kFormat = FormatOf(kType);

  HWY_INLINE FloatSums LoadHalves(size_t at, int vec) const {
    const hn::Rebind<hwy::float16_t, SumTag> halves;
    const auto* const from = reinterpret_cast<const hwy::float16_t*>(block_ + at);
    return hn::PromoteTo(SumTag(), hn::Load(halves, from + vec * kSumLanes));
  }

  HWY_INLINE FloatSums Product(const float* factors, int row, int vec) const {
    const hn::Rebind<int8_t, SumTag> bytes;
    const auto* const units = reinterpret_cast<const int8_t*>(units_) + row * kPanelColumns;
    const auto wide = hn::PromoteTo(IntTag(), hn::Load(bytes, units + vec * kSumLanes));
    return hn::Mul(hn::ConvertTo(SumTag(), wide), hn::Load(SumTag(), factors + vec * kSumLanes));
  }

  // u of all groups, then v.
  HWY_INLINE void UnpackSixBits() {
    const hn::Rebind<uint32_t, SumTag> d;
    constexpr size_t kRows = 4 * kPanelColumns;
    const auto low6 = hn::Set(d, 0x3F3F3F3Fu), low4 = hn::Set(d, 0x0F0F0F0Fu),
               upper = hn::Set(d, 0x30303030u);
    for (size_t i = 0; i < kRows; i += size_t(kSumLanes) * 4) {
      const auto row = [&](size_t n) HWY_ATTR {
        return hn::Load(d, reinterpret_cast<const uint32_t*>(units_ + n * kRows + i));
      };
      const auto store = [&](auto v, size_t n) HWY_ATTR {
        hn::Store(v, d, reinterpret_cast<uint32_t*>(unpacked_ + n * kRows + i));
      };
      const auto u = row(0), v = row(1), lower = row(2);
      store(hn::And(u, low6), 0);
      store(hn::Or(hn::And(lower, low4), hn::And(hn::ShiftRight<2>(u), upper)), 1);
      store(hn::And(v, low6), 2);
      store(hn::Or(hn::And(hn::ShiftRight<4>(lower), low4), hn::And(hn::ShiftRight<2>(v), upper)),
            3);
    }
    units_ = unpacked_;
  }

  const uint8_t* block_;
  const uint8_t* units_ = nullptr;
  HWY_ALIGN float d_[kPanelColumns];
  HWY_ALIGN float e_[kPanelColumns];
  HWY_ALIGN uint8_t unpacked_[16 * kPanelColumns];
};

// y += s t sum of the integers of half kHalf of a group, for vectors vec .. vec + kVecs - 1 of the
// panel.
template <WeightType kType, int kHalf, int kRows, int kVecs>
HWY_INLINE void AddSums(const uint8_t* HWY_RESTRICT values, const Scales<kType>& scales, int group,
                        const GroupRows& x, int vec, FloatSums (&y)[kRows][kPanelVecs]) {
  const SumTag d;
  IntSums sums[kRows][kVecs];
  SumIntegers<kType, kHalf, kRows, kVecs>(values + size_t(vec) * kSumLanes * 4, x, sums);
  RIVULET_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const FloatSums s = scales.Scale(group, kHalf, vec + j);
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const FloatSums st = hn::Mul(s, hn::Set(d, x.Scale(i).scale));
      y[i][vec + j] = hn::MulAdd(hn::ConvertTo(d, sums[i][j]), st, y[i][vec + j]);
    }
  }
}

// Adds group `group` of a block to a tile's sums, vectors vec .. vec + kVecs - 1 of the panel.
template <WeightType kType, int kRows, int kVecs>
HWY_INLINE void AddGroup(const uint8_t* HWY_RESTRICT values, const Scales<kType>& scales, int group,
                         const GroupRows& x, int vec, FloatSums (&y)[kRows][kPanelVecs]) {
  constexpr QuantizedFormat kFormat = FormatOf(kType);
  AddSums<kType, 0, kRows, kVecs>(values, scales, group, x, vec, y);
  if constexpr (kFormat.halves == 2)
    AddSums<kType, 1, kRows, kVecs>(values, scales, group, x, vec, y);
  if constexpr (kFormat.minimum) {
    RIVULET_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      const FloatSums m = scales.Minimum(group, vec + j);
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
  constexpr QuantizedFormat kFormat = FormatOf(kType);
  constexpr size_t kBlock = kFormat.bytes();
  const int blocks = QuantizedBlocks(kType, args.w.k);
  const uint8_t* HWY_RESTRICT block =
      static_cast<const uint8_t*>(args.w.panels) + size_t(panel) * size_t(blocks) * kBlock;
  const uint8_t* const first =
      static_cast<const uint8_t*>(args.quantized_x) + size_t(row) * layout.bytes;
  GroupRows x = {first, first + layout.scales, layout.bytes};
  FloatSums y[kRows][kPanelVecs];
  RIVULET_UNROLL
  for (int j = 0; j < kPanelVecs; ++j) {
    const FloatSums bias = hn::LoadU(d, args.bias + panel * kPanelColumns + j * kSumLanes);
    RIVULET_UNROLL
    for (int i = 0; i < kRows; ++i) y[i][j] = bias;
  }
  constexpr int kVecs = VecsAtOnce(kRows);
  for (int b = 0; b < blocks; ++b, block += kBlock) {
    const Scales<kType> scales(block);
    RIVULET_NO_UNROLL
    for (int group = 0; group < kFormat.groups; ++group) {
      // One stream of memory per thread is too little to use the full bandwidth of memory.
      constexpr size_t kShare = kBlock / size_t(kFormat.groups);
      const uint8_t* const ahead = block + kAhead + size_t(group) * kShare;
      for (size_t line = 0; row == 0 && line < kShare; line += 64) hwy::Prefetch(ahead + line);
      const uint8_t* const values =
          block + kFormat.values() + size_t(group) * kFormat.group_bytes();
      if constexpr (kVecs == kPanelVecs) {
        AddGroup<kType, kRows, kVecs>(values, scales, group, x, 0, y);
      } else {
        RIVULET_NO_UNROLL
        for (int vec = 0; vec < kPanelVecs; vec += kVecs) {
          AddGroup<kType, kRows, kVecs>(values, scales, group, x, vec, y);
        }
      }
      x.integers += kQuantizedInputs;
      x.scales += sizeof(QuantizedScale);
    }
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
    case WeightType::kInt5:
      return RunQuantized<WeightType::kInt5>(args);
    case WeightType::kInt5Signed:
      return RunQuantized<WeightType::kInt5Signed>(args);
    case WeightType::kQ4K:
      return RunQuantized<WeightType::kQ4K>(args);
    case WeightType::kQ5K:
      return RunQuantized<WeightType::kQ5K>(args);
    case WeightType::kQ6K:
      return RunQuantized<WeightType::kQ6K>(args);
    case WeightType::kIQ4NL:
      return RunQuantized<WeightType::kIQ4NL>(args);
    case WeightType::kIQ4XS:
      return RunQuantized<WeightType::kIQ4XS>(args);
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
