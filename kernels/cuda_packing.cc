// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda_packing.h"

#include <emmintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"
#include "kernels/quantized.h"

namespace rivulet::kernels {
namespace {

constexpr int kStep = 32;  // k that are packed at a time
static_assert(kStep == kQuantizedInputs);
constexpr uint16_t kInfinity = 0x7C00;  // F16
constexpr float kLargestF16 = 65504;

// Weights of a panel of `from` and a step: [k][column]; 0 behind the matrix's k.
constexpr int kSquare = kStep * kPanelColumns;
template <class T>
using Square = T[kSquare];

template <class T>
const T* RowsOf(const PackedMatrix& w, int panel, int k) {
  return static_cast<const T*>(w.panels) +
         (static_cast<size_t>(panel) * static_cast<size_t>(w.k) + static_cast<size_t>(k)) *
             kPanelColumns;
}

void Widen(const PackedMatrix& w, int panel, int k, Square<float>& to) {
  const int rows = std::min(kStep, w.k - k), values = rows * kPanelColumns;
  std::fill(to + values, to + kSquare, 0.0f);
  if (w.type == WeightType::kF32) {
    std::copy_n(RowsOf<float>(w, panel, k), values, to);
  } else if (!IsQuantized(w.type)) {
    const uint16_t* const from = RowsOf<uint16_t>(w, panel, k);
    const bool f16 = w.type == WeightType::kF16;
    for (int i = 0; i < values; ++i) to[i] = f16 ? F16ToF32(from[i]) : Bf16ToF32(from[i]);
  } else {
    for (int c = 0; c < kPanelColumns; ++c) {
      float group[kStep];
      UnpackWeights(UnpackGroup(w, panel * kPanelColumns + c, k / kStep), group);
      for (int i = 0; i < rows; ++i) to[i * kPanelColumns + c] = group[i];
    }
  }
}

void Narrow(const PackedMatrix& w, int panel, int k, Square<uint16_t>& to) {
  if (w.type == WeightType::kF16) {
    const int values = std::min(kStep, w.k - k) * kPanelColumns;
    std::copy_n(RowsOf<uint16_t>(w, panel, k), values, to);
    std::fill(to + values, to + kSquare, uint16_t{0});
  } else {
    Square<float> wide;
    Widen(w, panel, k, wide);
    for (int i = 0; i < kSquare; ++i) to[i] = F32ToF16(wide[i]);
  }
}

// Calls put(place, j) for the weights j of a column in a step. Weight j = 16 half + 8 high + 2 t +
// low belongs to lane (column % 8, t), and is number 4 half + 2 high + low there.
template <class Put>
void ForEachInLanes(int column, const Put& put) {
  for (int t = 0; t < 4; ++t) {
    for (int at = 0; at < 8; ++at) {
      const int j = at / 4 * 16 + at / 2 % 2 * 8 + 2 * t + at % 2;
      put(static_cast<size_t>((column % 8 * 4 + t) * 8 + at), j);
    }
  }
}

// Copies a column of a square to its lanes in the halves of a panel and step. False if a weight is
// infinite.
bool PlaceOne(const uint16_t* square, int column, uint16_t* halves) {
  bool infinite = false;
  ForEachInLanes(column, [&](size_t place, int j) {
    halves[place] = square[j * kPanelColumns];
    infinite |= (halves[place] & kInfinity) == kInfinity;
  });
  return !infinite;
}

// PlaceOne for all eight columns of a panel: for each t, transposes the eight rows of k that its
// lanes hold.
bool PlaceEight(const uint16_t* square, uint16_t* halves) {
  const __m128i infinity = _mm_set1_epi16(kInfinity);
  __m128i infinite = _mm_setzero_si128();
  for (int t = 0; t < 4; ++t) {
    __m128i row[8], pairs[8], fours[8];
    for (int i = 0; i < 8; ++i) {
      const int j = i / 4 * 16 + i / 2 % 2 * 8 + 2 * t + i % 2;
      row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(square + j * kPanelColumns));
      const __m128i exponent = _mm_and_si128(row[i], infinity);
      infinite = _mm_or_si128(infinite, _mm_cmpeq_epi16(exponent, infinity));
    }
    for (int i = 0; i < 4; ++i) {  // columns 0 .. 3, 4 .. 7
      pairs[i] = _mm_unpacklo_epi16(row[2 * i], row[2 * i + 1]);
      pairs[i + 4] = _mm_unpackhi_epi16(row[2 * i], row[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 2) {
      fours[i] = _mm_unpacklo_epi32(pairs[i], pairs[i + 1]);
      fours[i + 1] = _mm_unpackhi_epi32(pairs[i], pairs[i + 1]);
    }
    for (int c = 0; c < 8; ++c) {
      const int from = c / 4 * 4 + c % 4 / 2;  // from, from + 2: columns c / 2 * 2 and the next
      const __m128i all = c % 2 == 0 ? _mm_unpacklo_epi64(fours[from], fours[from + 2])
                                     : _mm_unpackhi_epi64(fours[from], fours[from + 2]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(halves + (c * 4 + t) * 8), all);
    }
  }
  return _mm_movemask_epi8(infinite) == 0;
}

// Copies a group of a column to its step in a panel. False if one of its weights is too large.
bool PackInt8(const QuantizedGroup& group, int all_k, int step, int column, uint8_t* panel) {
  const uint16_t scale = F32ToF16(group.d);  // exact: the scale is an F16
  const auto g = static_cast<size_t>(step), c = static_cast<size_t>(column % 8);
  std::memcpy(panel + static_cast<size_t>(CudaSteps(all_k)) * kInt8Bytes + g * kInt8ScaleBytes +
                  c * sizeof scale,
              &scale, sizeof scale);
  uint8_t lanes[kStep];  // of this column; does not alias the group
  ForEachInLanes(0, [&](size_t place, int j) {
    if (place % 2 == 0) std::memcpy(lanes + place, group.q + j, 2);  // q of j and of j + 1
  });
  for (uint8_t& q : lanes) q ^= 0x80;
  std::memcpy(panel + g * kInt8Bytes + c * sizeof lanes, lanes, sizeof lanes);
  int most = 0;
  for (int j = 0; j < kStep; ++j) most = std::max(most, std::abs(int{lanes[j]} - 128));
  return std::abs(static_cast<float>(most) * group.d) <= kLargestF16;
}

// Calls pack(panel of `from`, k, columns begin .. end - 1 of the panel, their destination).
template <class Pack>
void ForEachSquare(const PackedMatrix& from, int first, int count, int column, const Pack& pack) {
  for (int begin = first; begin < first + count;) {
    const int panel = begin / kPanelColumns;
    const int end = std::min(first + count, (panel + 1) * kPanelColumns);
    for (int k = 0; k < from.k; k += kStep) {
      pack(panel, k, begin % kPanelColumns, end - panel * kPanelColumns, column + begin - first);
    }
    begin = end;
  }
}

}  // namespace

size_t CudaPackedSize(WeightType type, int k, int n) {
  const auto blocks = [](int value, int of) { return static_cast<size_t>((value + of - 1) / of); };
  constexpr size_t kBlock = 512;
  if (type == WeightType::kInt8) {
    return (blocks(n, 8) * Int8PanelBytes(k) + kBlock - 1) / kBlock * kBlock;
  }
  return type == WeightType::kF32 ? blocks(n, 32) * blocks(k, 4) * kBlock
                                  : blocks(n, 8) * blocks(k, 32) * kBlock;
}

bool PackForCuda(WeightType type, const PackedMatrix& from, int first, int count, int column,
                 void* packed) {
  bool finite = true;
  if (type == WeightType::kInt8) {
    // All columns of a square before the next square: they lie side by side in each line of memory.
    ForEachSquare(from, first, count, column, [&](int panel, int k, int begin, int end, int to) {
      for (int c = begin; c < end; ++c) {
        const int at = to + c - begin;
        auto* const into =
            static_cast<uint8_t*>(packed) + static_cast<size_t>(at / 8) * Int8PanelBytes(from.k);
        const QuantizedGroup group = UnpackGroup(from, panel * kPanelColumns + c, k / kStep);
        finite = PackInt8(group, from.k, k / kStep, at, into) && finite;
      }
    });
  } else if (type == WeightType::kF16) {
    ForEachSquare(from, first, count, column, [&](int panel, int k, int begin, int end, int to) {
      Square<uint16_t> square;
      Narrow(from, panel, k, square);
      for (int c = begin; c < end;) {
        const int at = to + c - begin;
        const size_t block = static_cast<size_t>(at / 8) * static_cast<size_t>(CudaSteps(from.k)) +
                             static_cast<size_t>(k / kStep);
        uint16_t* const halves = static_cast<uint16_t*>(packed) + block * 256;
        const int columns = at % 8 == 0 && end - c >= 8 ? 8 : 1;
        const bool fits =
            columns == 8 ? PlaceEight(square + c, halves) : PlaceOne(square + c, at, halves);
        finite = fits && finite;
        c += columns;
      }
    });
  } else {
    ForEachSquare(from, first, count, column, [&](int panel, int k, int begin, int end, int to) {
      Square<float> square;
      Widen(from, panel, k, square);
      const int fours = (from.k + 3) / 4;
      for (int c = begin; c < end; ++c) {
        const int at = to + c - begin;
        for (int j = 0; j < kStep && k + j < from.k; ++j) {
          const size_t block = static_cast<size_t>(at / 32) * static_cast<size_t>(fours) +
                               static_cast<size_t>((k + j) / 4);
          static_cast<float*>(packed)[(block * 32 + static_cast<size_t>(at % 32)) * 4 +
                                      static_cast<size_t>(j % 4)] = square[j * kPanelColumns + c];
        }
      }
    });
  }
  return finite;
}

}  // namespace rivulet::kernels
