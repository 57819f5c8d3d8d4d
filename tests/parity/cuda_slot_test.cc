// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/common/slot_cuda.h"
#include "tests/support/cuda_arrays.h"
#include "tests/support/kernel_arrays.h"

namespace rivulet::kernels::cuda_slot_test {
namespace {

TEST(CudaSlotTest, ZeroesTheListedPartsAndNothingElse) {
  for (const size_t floats : {size_t{16}, size_t{4096}, size_t{10000}}) {
    constexpr int kSlots = 7;
    std::vector<float> states = RandomFloats(floats * kSlots, 1);
    const auto all = int64_t(floats);
    const std::vector<CudaSlotPart> parts = {{0, all, 5}, {8, all - 8, 1}, {4, 0, 3}, {0, 4, 6}};
    const DeviceArray<CudaSlotPart> device_parts(parts);
    ForEachOrder([&](const CudaLaunch& launch) {
      const DeviceArray<float> device(states);
      ASSERT_EQ(ZeroSlotsCuda(launch, device.data(), floats, device_parts.data(), 4, floats),
                cudaSuccess);
      std::vector<float> expected = states;
      for (const CudaSlotPart& part : parts) {
        std::fill_n(expected.begin() + part.slot * all + part.first, part.floats, 0.0f);
      }
      ASSERT_TRUE(SameBits(device.Copy(), expected));
    });
  }
}

TEST(CudaSlotTest, MoreSlotsThanAGridIsHighAreZeroed) {
  constexpr int kCount = 4099;
  std::vector<CudaSlotPart> slots(kCount);
  for (int i = 0; i < kCount; ++i) slots[size_t(i)] = {0, 16, i};
  const DeviceArray<CudaSlotPart> device_slots(slots);
  const DeviceArray<float> states(size_t{16} * kCount);
  ASSERT_EQ(ZeroSlotsCuda({}, states.data(), 16, device_slots.data(), kCount, 16), cudaSuccess);
  ASSERT_TRUE(SameBits(states.Copy(), std::vector<float>(size_t{16} * kCount)));
}

TEST(CudaSlotTest, CopiesTheBeginningOfOneSlotToAnother) {
  constexpr size_t kFloats = 5008;
  const std::vector<float> states = RandomFloats(kFloats * 4, 2);
  ForEachOrder([&](const CudaLaunch& launch) {
    const DeviceArray<float> device(states);
    ASSERT_EQ(CopySlotCuda(launch, device.data(), kFloats, kFloats, 1, 3), cudaSuccess);
    ASSERT_EQ(CopySlotCuda(launch, device.data(), kFloats, 20, 1, 0), cudaSuccess);
    ASSERT_EQ(CopySlotCuda(launch, device.data(), kFloats, kFloats, 2, 2), cudaSuccess);
    std::vector<float> expected = states;
    std::copy_n(states.begin() + kFloats, kFloats, expected.begin() + 3 * kFloats);
    std::copy_n(states.begin() + kFloats, 20, expected.begin());
    ASSERT_TRUE(SameBits(device.Copy(), expected));
  });
}

TEST(CudaSlotTest, WrongSizesAreRefused) {
  const DeviceArray<float> states(32);
  const DeviceArray<CudaSlotPart> parts(std::vector<CudaSlotPart>{{0, 16, 0}});
  EXPECT_EQ(ZeroSlotsCuda({}, states.data(), 20, parts.data(), 1, 16), cudaErrorInvalidValue);
  EXPECT_EQ(ZeroSlotsCuda({}, states.data(), 16, parts.data(), 1, 20), cudaErrorInvalidValue);
  EXPECT_EQ(CopySlotCuda({}, states.data(), 16, 16, -1, 0), cudaErrorInvalidValue);
  EXPECT_EQ(CopySlotCuda({}, states.data(), 16, 20, 0, 1), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace rivulet::kernels::cuda_slot_test
