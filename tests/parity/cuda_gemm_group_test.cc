// SPDX-License-Identifier: Apache-2.0
// Products of a group: the bits of each alone, and of its activation behind it.
#include <algorithm>
#include <array>
#include <memory>

#include "kernels/cuda/blocks/element_rows_cuda.h"
#include "kernels/cuda/gemm/gemm_group_cuda.h"
#include "kernels/cuda/gemm/gemm_wide_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/cuda_matrix.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::cuda_gemm_group_test {
namespace {

struct Size {
  int k, n;
  Activation activation;
};

// A product and what it must be, of rows of float and of the same in F16.
class Member {
 public:
  Member(WeightType type, const Size& size, int rows, uint32_t seed)
      : size_(size),
        rows_(rows),
        lda_((size.k + 7) / 8 * 8 + 8),
        ld_out_((size.n + 1) / 2 * 2 + 2),
        matrix_(type, size.k, size.n, seed),
        a_(RandomFloats(size_t(rows) * size_t(lda_), seed + 2, -2, 2)),
        half_(HalvesOf(a_.Copy())),
        out_(size_t(rows) * size_t(ld_out_)),
        out_half_(out_.size()) {}

  template <class In>
  CudaGroupProduct<In> Product(bool to_half) const {
    CudaGroupProduct<In> p;
    p.w = matrix_.device();
    if constexpr (sizeof(In) == 4) {
      p.a = a_.data();
    } else {
      p.a = half_.data();
    }
    p.out = to_half ? nullptr : out_.data();
    p.out_half = to_half ? out_half_.data() : nullptr;
    p.rows = rows_;
    p.lda = lda_;
    p.ld_out = ld_out_;
    p.activation = size_.activation;
    return p;
  }

  // Alone, and its activation as a launch of its own.
  std::vector<float> Expected() const {
    const DeviceArray<float> alone(out_.size());
    CudaGemmArgs args;
    args.w = matrix_.device();
    args.a = a_.data();
    args.out = alone.data();
    args.rows = rows_;
    args.lda = lda_;
    args.ld_out = ld_out_;
    EXPECT_EQ(GemmCuda({}, args), cudaSuccess);
    ActivationArgs activate;
    activate.kind = size_.activation;
    activate.x = activate.y = alone.data();
    activate.x_stride = activate.y_stride = size_t(ld_out_);
    activate.rows = rows_;
    activate.n = size_.n;
    EXPECT_EQ(ActivationCuda({}, activate), cudaSuccess);
    return alone.Copy();
  }
  std::vector<float> Out() const { return out_.Copy(); }
  ::testing::AssertionResult HalvesAreExpected() const {
    return Rounded(out_half_.Copy(), Expected(),
                   [&](size_t i) { return int(i) % ld_out_ < size_.n; });
  }

 private:
  Size size_;
  int rows_, lda_, ld_out_;
  DeviceMatrix matrix_;
  DeviceArray<float> a_;
  DeviceArray<uint16_t> half_;
  DeviceArray<float> out_;
  DeviceArray<uint16_t> out_half_;
};

// The weights of every other product of a group, and of those between.
using Types = std::array<WeightType, 2>;

// Eight products of very different sizes, with all activations that a group has.
std::vector<std::unique_ptr<Member>> Members(const Types& types, int rows, size_t count) {
  const Size sizes[kMostGroupProducts] = {
      {40, 130, Activation::kIdentity},    {7, 3, Activation::kTanh},
      {300, 1, Activation::kSigmoid},      {64, 64, Activation::kSquaredRelu},
      {1, 33, Activation::kIdentity},      {129, 40, Activation::kTanh},
      {33, 257, Activation::kSquaredRelu}, {32, 8, Activation::kSigmoid}};
  std::vector<std::unique_ptr<Member>> members;
  for (size_t i = 0; i < count; ++i) {
    members.push_back(std::make_unique<Member>(types[i % 2], sizes[i], rows, uint32_t(10 * i)));
  }
  return members;
}

template <class In>
CudaProductGroup<In> GroupOf(const std::vector<std::unique_ptr<Member>>& members, bool to_half) {
  CudaProductGroup<In> group;
  group.count = int(members.size());
  for (int i = 0; i < group.count; ++i) {
    // Of those that write F16 one writes float, as a product without a successor would.
    group.of[i] = members[size_t(i)]->template Product<In>(to_half && i != 2);
  }
  return group;
}

template <class In>
void ExpectGroup(const CudaLaunch& launch, const Types& types, int rows, size_t count) {
  for (const bool to_half : {false, true}) {
    if (to_half && sizeof(In) == 4) continue;
    const auto members = Members(types, rows, count);
    const auto group = GroupOf<In>(members, to_half);
    ASSERT_EQ(CheckGemmGroupCuda(group), nullptr);
    ASSERT_EQ(GemmGroupCuda(launch, group), cudaSuccess);
    for (size_t i = 0; i < count; ++i) {
      const Member& member = *members[i];
      if (to_half && i != 2) {
        EXPECT_TRUE(member.HalvesAreExpected()) << "product " << i << " in F16";
      } else {
        EXPECT_TRUE(SameBits(member.Out(), member.Expected())) << "product " << i;
      }
    }
  }
}

constexpr WeightType kF32 = WeightType::kF32, kF16 = WeightType::kF16, kInt8 = WeightType::kInt8;

TEST(CudaGemmGroupTest, EveryShapeHasTheBitsOfItsProductsAlone) {
  ASSERT_EQ(PrepareGemmCuda(), cudaSuccess);
  const TileGuard guard;
  for (const Types& types :
       {Types{kF32, kF32}, Types{kF16, kF16}, Types{kInt8, kInt8}, Types{kInt8, kF16}}) {
    const int tiles = types[0] == kF32 ? kCudaGemmTiles - 1 : kCudaGemmTiles;
    for (int tile = -1; tile < tiles; ++tile) {
      SCOPED_TRACE(tile);
      SetCudaGemmTileForTest(tile);
      for (const int rows : {1, 19, 70}) ExpectGroup<float>({}, types, rows, kMostGroupProducts);
      ExpectGroup<float>({}, types, 3, 1);
    }
    ForEachOrder([&](const CudaLaunch& launch) { ExpectGroup<float>(launch, types, 5, 7); });
  }
}

TEST(CudaGemmGroupTest, EveryShapeOfManyRowsHasTheBitsOfItsProductsAlone) {
  ASSERT_EQ(PrepareWideGemmCuda(), cudaSuccess);
  const TileGuard guard;
  for (const Types& types : {Types{kF16, kF16}, Types{kInt8, kInt8}, Types{kInt8, kF16}}) {
    for (int tile = -1; tile < kCudaWideGemmTiles; ++tile) {
      SCOPED_TRACE(tile);
      SetCudaWideGemmTileForTest(tile);
      for (const int rows : {5, 130}) ExpectGroup<uint16_t>({}, types, rows, kMostGroupProducts);
      ExpectGroup<uint16_t>({}, types, 20, 1);
    }
    ForEachOrder([&](const CudaLaunch& launch) { ExpectGroup<uint16_t>(launch, types, 66, 5); });
  }
}

TEST(CudaGemmGroupTest, CheckNamesWhatIsWrong) {
  const auto members = Members({kF16, kF16}, 2, 2);
  CudaProductGroup<float> group = GroupOf<float>(members, false);
  EXPECT_EQ(CheckGemmGroupCuda(group), nullptr);
  group.of[1].rows = 3;
  EXPECT_STREQ(CheckGemmGroupCuda(group), "all products of a group have the same rows");
  EXPECT_EQ(GemmGroupCuda({}, group), cudaErrorInvalidValue);
  group.of[1].rows = 2;
  group.of[1].w.type = kF32;
  EXPECT_STREQ(CheckGemmGroupCuda(group), "all weights of a group are float32, or none");
  group.of[1].w.type = kInt8;
  EXPECT_EQ(CheckGemmGroupCuda(group), nullptr);
  group.of[1].w.type = kF16;
  group.of[1].activation = Activation::kSilu;
  EXPECT_STREQ(CheckGemmGroupCuda(group), "no product of a group has this activation");
  group.of[1].activation = Activation::kTanh;
  group.of[1].lda = 1;
  EXPECT_STREQ(CheckGemmGroupCuda(group), "lda >= k and ld_out >= n");
  group.count = 1;
  EXPECT_EQ(CheckGemmGroupCuda(group), nullptr);
  group.count = 9;
  EXPECT_STREQ(CheckGemmGroupCuda(group), "a group has 0 to 8 products");
  group.count = 0;
  EXPECT_EQ(GemmGroupCuda({}, group), cudaSuccess) << "nothing is launched";
  CudaProductGroup<uint16_t> wide = GroupOf<uint16_t>(members, true);
  EXPECT_EQ(CheckGemmGroupCuda(wide), nullptr);
  wide.of[0].out = reinterpret_cast<float*>(wide.of[0].out_half);
  EXPECT_STREQ(CheckGemmGroupCuda(wide), "one of out and out_half is set");
}

}  // namespace
}  // namespace rivulet::kernels::cuda_gemm_group_test
