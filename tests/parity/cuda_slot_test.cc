// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/common/slot_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels {
namespace {

using rivulet::testing::DeviceArray;
using rivulet::testing::ForEachOrder;
using rivulet::testing::RandomFloats;
using rivulet::testing::SameBits;

TEST(CudaSlotTest, ZeroesTheListedSlotsAndNoOther) {
  for (const size_t floats : {size_t{16}, size_t{4096}, size_t{10000}}) {
    constexpr int kSlots = 7;
    std::vector<float> states = RandomFloats(floats * kSlots, 1);
    const DeviceArray<int32_t> slots(std::vector<int32_t>{5, 1, 6});
    ForEachOrder([&](const CudaLaunch& launch) {
      const DeviceArray<float> device(states);
      ASSERT_EQ(ZeroSlotsCuda(launch, device.data(), floats, slots.data(), 3), cudaSuccess);
      std::vector<float> expected = states;
      for (const size_t slot : {size_t{5}, size_t{1}, size_t{6}}) {
        std::fill_n(expected.begin() + ptrdiff_t(slot * floats), floats, 0.0f);
      }
      ASSERT_TRUE(SameBits(device.Copy(), expected));
    });
  }
}

TEST(CudaSlotTest, MoreSlotsThanAGridIsHighAreZeroed) {
  constexpr int kCount = 4099;
  std::vector<int32_t> slots(kCount);
  for (int i = 0; i < kCount; ++i) slots[size_t(i)] = i;
  const DeviceArray<int32_t> device_slots(slots);
  const DeviceArray<float> states(size_t{16} * kCount);
  ASSERT_EQ(ZeroSlotsCuda({}, states.data(), 16, device_slots.data(), kCount), cudaSuccess);
  ASSERT_TRUE(SameBits(states.Copy(), std::vector<float>(size_t{16} * kCount)));
}

TEST(CudaSlotTest, CopiesOneSlotToAnother) {
  constexpr size_t kFloats = 5008;
  const std::vector<float> states = RandomFloats(kFloats * 4, 2);
  ForEachOrder([&](const CudaLaunch& launch) {
    const DeviceArray<float> device(states);
    ASSERT_EQ(CopySlotCuda(launch, device.data(), kFloats, 1, 3), cudaSuccess);
    ASSERT_EQ(CopySlotCuda(launch, device.data(), kFloats, 2, 2), cudaSuccess);
    std::vector<float> expected = states;
    std::copy_n(states.begin() + kFloats, kFloats, expected.begin() + 3 * kFloats);
    ASSERT_TRUE(SameBits(device.Copy(), expected));
  });
}

TEST(CudaSlotTest, WrongSizesAreRefused) {
  const DeviceArray<float> states(32);
  const DeviceArray<int32_t> slots(std::vector<int32_t>{0});
  EXPECT_EQ(ZeroSlotsCuda({}, states.data(), 20, slots.data(), 1), cudaErrorInvalidValue);
  EXPECT_EQ(CopySlotCuda({}, states.data(), 16, -1, 0), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels
