// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/cuda/blocks/group_rows_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/row_cases.h"

namespace rivulet::kernels::cuda_group_rows_test {
namespace {

constexpr int kRows = 5, kPadding = 4;

using Shape = RowGroups;

template <class Args>
Args Rows(const Shape& shape) {
  Args args;
  args.rows = kRows;
  args.groups = shape.groups;
  args.size = shape.size;
  args.x_stride = args.y_stride = size_t(shape.groups * shape.size + kPadding);
  args.eps = 1e-3f;
  return args;
}

// `norm(launch, half)` with `args`: in place, elsewhere and in F16.
template <class Args, class Norm>
void ExpectNorm(const RowsCase<Args>& c, Args& args, const std::vector<float>& expected,
                const Norm& norm) {
  const DeviceArray<float> in(c.x);
  ForEachOrder([&](const CudaLaunch& launch) {
    const DeviceArray<float> in_place(c.x), out(c.x);
    args.x = args.y = in_place.data();
    ASSERT_EQ(norm(launch, {}), cudaSuccess);
    const std::vector<float> got = in_place.Copy();
    ASSERT_TRUE(Near(got, expected, 1e-5));
    args.x = in.data();
    args.y = out.data();
    ASSERT_EQ(norm(launch, {}), cudaSuccess);
    ASSERT_TRUE(SameBits(out.Copy(), got));
    const DeviceArray<uint16_t> half(c.x.size());
    ASSERT_EQ(norm(launch, {half.data(), c.stride}), cudaSuccess);
    ASSERT_TRUE(Rounded(half.Copy(), got, [&](size_t i) { return !c.InPadding(i); }));
  });
}

TEST(CudaGroupRowsTest, RmsNormsMatchTheReferenceWithEveryGate) {
  ForEachRmsNorm([](const GroupsCase<RmsNormArgs>& c) {
    SCOPED_TRACE(c.used);
    const std::vector<float> gate = RandomFloats(c.x.size(), 2, -4, 4);
    const DeviceArray<float> gates(gate), weights(c.weight);
    for (const int with_gate : {0, 1, 2}) {  // none, behind the norm, before it
      std::vector<float> expected = c.x;
      ActivationArgs activation;
      activation.kind = c.args.weight_stride > 0 ? Activation::kSilu : Activation::kSigmoid;
      activation.rows = c.kRows;
      activation.n = c.used;
      activation.x_stride = activation.times_stride = activation.y_stride = c.stride;
      activation.x = gate.data();
      activation.times = activation.y = expected.data();
      RmsNormArgs args = c.args;
      args.x = args.y = expected.data();
      if (with_gate == 2) ActivationRef(activation);
      RmsNormRef(args);
      if (with_gate == 1) ActivationRef(activation);
      CudaGate how;
      if (with_gate > 0) how = {activation.kind, gates.data(), c.stride, with_gate == 2};
      if (args.weight != nullptr) args.weight = weights.data();
      ExpectNorm(c, args, expected, [&](const CudaLaunch& launch, const CudaHalfRows& half) {
        return RmsNormCuda(launch, args, how, nullptr, half);
      });
    }
  });
}

TEST(CudaGroupRowsTest, GroupNormsMatchTheReference) {
  ForEachGroupNorm([](const GroupNormCase& c) {
    SCOPED_TRACE(c.used);
    const DeviceArray<float> weights(c.weight), biases(c.bias);
    GroupNormArgs args = c.args;
    if (args.weight != nullptr) args.weight = weights.data();
    if (args.bias != nullptr) args.bias = biases.data();
    ExpectNorm(c, args, c.InPlace(GroupNormRef),
               [&](const CudaLaunch& launch, const CudaHalfRows& half) {
                 return GroupNormCuda(launch, args, nullptr, half);
               });
  });
}

// A group that begins beside a float4 has a warp, elsewhere it has a block: the same bits.
TEST(CudaGroupRowsTest, ALongGroupHasTheBitsOfAWarp) {
  const auto check = [](auto args, const CudaGate& gate, const auto& norm) {
    const Shape shape = {2, 264};
    const auto used = shape.groups * shape.size;
    args = Rows<decltype(args)>(shape);
    const std::vector<float> x = RandomFloats(kRows * args.x_stride, 1, -3, 5);
    std::vector<float> beside = x;
    beside.insert(beside.begin(), 7.0f);
    const DeviceArray<float> in(x), in_beside(beside), y(x.size()), y_beside(x.size());
    args.x = in.data();
    args.y = y.data();
    ASSERT_EQ(norm(args, gate), cudaSuccess);
    args.x = in_beside.data() + 1;
    args.y = y_beside.data();
    ASSERT_EQ(norm(args, gate), cudaSuccess);
    const std::vector<float> got = y.Copy(), expected = y_beside.Copy();
    for (size_t r = 0; r < kRows; ++r) {
      ASSERT_EQ(std::memcmp(got.data() + r * args.y_stride, expected.data() + r * args.y_stride,
                            size_t(used) * sizeof(float)),
                0)
          << r;
    }
  };
  const std::vector<float> factors = RandomFloats(kRows * 532, 2, -4, 4);
  const DeviceArray<float> gates(factors);
  for (const bool first : {false, true}) {
    check(RmsNormArgs(), {Activation::kSilu, gates.data(), 532, first},
          [](const auto& args, const CudaGate& gate) { return RmsNormCuda({}, args, gate); });
  }
  check(RmsNormArgs(), {},
        [](const auto& args, const CudaGate& gate) { return RmsNormCuda({}, args, gate); });
  check(GroupNormArgs(), {},
        [](const auto& args, const CudaGate&) { return GroupNormCuda({}, args); });
}

// A row alone, in another place, gathered: the same bits.
TEST(CudaGroupRowsTest, ARowHasTheSameBitsInAnyCompanyAndGathered) {
  for (const Shape& shape : {Shape{3, 40}, Shape{1, 300}}) {
    const RmsNormArgs shaped = Rows<RmsNormArgs>(shape);
    const std::vector<float> x = RandomFloats(kRows * shaped.x_stride, 1);
    const DeviceArray<float> in(x);
    const std::vector<int32_t> places = {3, 0, 4};
    const DeviceArray<int32_t> gather(places);
    const auto row = [&](const std::vector<float>& all, int r) {
      const float* const at = all.data() + size_t(r) * shaped.x_stride;
      return std::vector<float>(at, at + shape.groups * shape.size);
    };
    const auto check = [&](auto args, const auto& norm) {
      const DeviceArray<float> all(x.size()), some(3 * shaped.x_stride), one(shaped.x_stride);
      args.x = in.data();
      args.y = all.data();
      ASSERT_EQ(norm(args, nullptr), cudaSuccess);
      args.rows = 3;
      args.y = some.data();
      ASSERT_EQ(norm(args, gather.data()), cudaSuccess);
      for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(SameBits(row(some.Copy(), i), row(all.Copy(), places[size_t(i)]))) << i;
      args.rows = 1;
      args.x = in.data() + 2 * args.x_stride;
      args.y = one.data();
      ASSERT_EQ(norm(args, nullptr), cudaSuccess);
      EXPECT_TRUE(SameBits(row(one.Copy(), 0), row(all.Copy(), 2)));
      args.x = args.y;
      EXPECT_EQ(norm(args, gather.data()), cudaErrorInvalidValue) << "gathered in place";
      args.size = 0;
      EXPECT_EQ(norm(args, nullptr), cudaErrorInvalidValue);
    };
    check(shaped, [](const RmsNormArgs& args, const int32_t* from) {
      return RmsNormCuda({}, args, {}, from);
    });
    check(Rows<GroupNormArgs>(shape), [](const GroupNormArgs& args, const int32_t* from) {
      return GroupNormCuda({}, args, from);
    });
  }
}

}  // namespace
}  // namespace rivulet::kernels::cuda_group_rows_test
