// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/cuda/blocks/group_rows_cuda.h"
#include "kernels/half.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

constexpr int kRows = 5, kPadding = 4;

struct Shape {
  int groups, size;
};
// Those of 264 values and more have a block each, unless they are no multiple of 4.
constexpr Shape kShapes[] = {{1, 1}, {1, 33}, {3, 8}, {2, 64}, {1, 302}, {2, 264}, {1, 1100}};

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

void ExpectNear(const std::vector<float>& got, const std::vector<float>& expected,
                const Shape& shape) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 1e-5) << shape.groups << " x " << shape.size << " at " << i;
  }
}

// `half` is `rows` rounded, and nothing in the padding.
void ExpectRounded(const std::vector<uint16_t>& half, const std::vector<float>& rows,
                   const Shape& shape) {
  ASSERT_EQ(half.size(), rows.size());
  const int used = shape.groups * shape.size;
  for (size_t i = 0; i < half.size(); ++i) {
    const bool written = int(i) % (used + kPadding) < used;
    ASSERT_EQ(half[i], written ? F32ToF16(rows[i]) : 0xFFFF) << "at " << i;
  }
}

TEST(CudaGroupRowsTest, RmsNormsMatchTheReferenceWithEveryGate) {
  for (const Shape& shape : kShapes) {
    RmsNormArgs args = Rows<RmsNormArgs>(shape);
    const size_t used = size_t(shape.groups * shape.size), all = kRows * args.x_stride;
    const std::vector<float> x = RandomFloats(all, 1, -3, 5), gate = RandomFloats(all, 2, -4, 4),
                             weight = RandomFloats(used, 3, 0.5f, 1.5f);
    const DeviceArray<float> gates(gate), weights(weight);
    for (const bool own_weights : {true, false}) {
      for (const int with_gate : {0, 1, 2}) {  // none, behind the norm, before it
        ActivationArgs activation;
        activation.kind = own_weights ? Activation::kSilu : Activation::kSigmoid;
        activation.rows = kRows;
        activation.n = int(used);
        activation.x_stride = activation.times_stride = activation.y_stride = args.x_stride;
        activation.x = gate.data();
        std::vector<float> expected = x;
        activation.times = activation.y = expected.data();
        args.weight_stride = own_weights ? size_t(shape.size) : 0;
        args.weight = weight.data();
        args.x = args.y = expected.data();
        if (with_gate == 2) ActivationRef(activation);
        RmsNormRef(args);
        if (with_gate == 1) ActivationRef(activation);
        ForEachOrder([&](const CudaLaunch& launch) {
          const DeviceArray<float> in(x), in_place(x), out(x);
          CudaGate how;
          if (with_gate > 0) how = {activation.kind, gates.data(), args.x_stride, with_gate == 2};
          args.weight = weights.data();
          args.x = args.y = in_place.data();
          ASSERT_EQ(RmsNormCuda(launch, args, how), cudaSuccess);
          ExpectNear(in_place.Copy(), expected, shape);
          args.x = in.data();
          args.y = out.data();
          ASSERT_EQ(RmsNormCuda(launch, args, how), cudaSuccess);
          ASSERT_TRUE(SameBits(out.Copy(), in_place.Copy()));
          const DeviceArray<uint16_t> half(all);
          ASSERT_EQ(RmsNormCuda(launch, args, how, nullptr, {half.data(), args.x_stride}),
                    cudaSuccess);
          ExpectRounded(half.Copy(), in_place.Copy(), shape);
        });
      }
    }
  }
}

TEST(CudaGroupRowsTest, GroupNormsMatchTheReference) {
  for (const Shape& shape : kShapes) {
    GroupNormArgs args = Rows<GroupNormArgs>(shape);
    const size_t used = size_t(shape.groups * shape.size), all = kRows * args.x_stride;
    const std::vector<float> x = RandomFloats(all, 1, -3, 5), bias = RandomFloats(used, 2),
                             weight = RandomFloats(used, 3, 0.5f, 1.5f);
    std::vector<float> expected = x;
    args.x = args.y = expected.data();
    args.weight = weight.data();
    args.bias = bias.data();
    GroupNormRef(args);
    const DeviceArray<float> weights(weight), biases(bias);
    ForEachOrder([&](const CudaLaunch& launch) {
      const DeviceArray<float> in_place(x);
      args.x = args.y = in_place.data();
      args.weight = weights.data();
      args.bias = biases.data();
      ASSERT_EQ(GroupNormCuda(launch, args), cudaSuccess);
      ExpectNear(in_place.Copy(), expected, shape);
      const DeviceArray<float> again(x);
      const DeviceArray<uint16_t> half(all);
      args.x = args.y = again.data();
      ASSERT_EQ(GroupNormCuda(launch, args, nullptr, {half.data(), args.x_stride}), cudaSuccess);
      ExpectRounded(half.Copy(), in_place.Copy(), shape);
    });
  }
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
}  // namespace rivulet::kernels
