// SPDX-License-Identifier: Apache-2.0
// How host memory reaches the device and comes back while the device lags behind: on the emulator,
// whose streams do their work as late as they may.
#include "model/cuda/cuda_queue.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/support/cuda_emulator/cuda_emulator.h"

namespace rivulet {
namespace {

namespace emulator = ::rivulet::cuda_emulator;

class CudaQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    emulator::Reset();
    Start(absl::Seconds(60));
  }
  void TearDown() override {
    queue_ = CudaQueue();
    emulator::Reset();
  }
  void Start(absl::Duration patience) {
    auto device = CudaDevice::Open(0);
    ASSERT_TRUE(device.ok()) << device.status();
    auto queue = CudaQueue::Create(*device, 64, 5 * sizeof(float), patience);
    ASSERT_TRUE(queue.ok()) << queue.status();
    queue_ = *std::move(queue);
  }

  CudaQueue queue_;
};

TEST_F(CudaQueueTest, WhatIsCopiedInArrivesThoughTheCallersMemoryChangesAtOnce) {
  auto device = CudaMemory::OnDevice(1000 * sizeof(int));
  ASSERT_TRUE(device.ok());
  int* const there = static_cast<int*>(device->data());
  // Far more than staging holds, in pieces of every size.
  std::vector<int> mine;
  int at = 0;
  for (int size = 1; at + size <= 1000; size = size % 37 + 1) {
    mine.resize(size_t(size));
    std::iota(mine.begin(), mine.end(), at);
    ASSERT_TRUE(queue_.CopyIn(there + at, mine.data(), size_t(size) * sizeof(int)).ok());
    std::fill(mine.begin(), mine.end(), -1);
    at += size;
  }
  ASSERT_TRUE(queue_.AwaitAll().ok());
  std::vector<int> back(size_t(at), 0);
  ASSERT_EQ(cudaMemcpy(back.data(), there, size_t(at) * sizeof(int), cudaMemcpyDeviceToHost),
            cudaSuccess);
  for (int i = 0; i < at; ++i) ASSERT_EQ(back[size_t(i)], i);
}

TEST_F(CudaQueueTest, StagedRoomStaysUntilTheDeviceHasReadIt) {
  auto device = CudaMemory::OnDevice(100 * sizeof(int));
  ASSERT_TRUE(device.ok());
  int* const there = static_cast<int*>(device->data());
  for (int i = 0; i < 100; ++i) {
    auto room = queue_.Stage(sizeof(int));
    ASSERT_TRUE(room.ok());
    std::memcpy(*room, &i, sizeof i);
    ASSERT_EQ(cudaMemcpyAsync(there + i, *room, sizeof i, cudaMemcpyHostToDevice, queue_.stream()),
              cudaSuccess);
  }
  ASSERT_TRUE(queue_.AwaitAll().ok());
  std::vector<int> back(100);
  ASSERT_EQ(cudaMemcpy(back.data(), there, 400, cudaMemcpyDeviceToHost), cudaSuccess);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(back[size_t(i)], i);
  EXPECT_EQ(queue_.Stage(65).status().code(), absl::StatusCode::kInternal);
}

TEST_F(CudaQueueTest, RowsThatAreCopiedOutReachTheirDestinationsWhateverTheReadbackHolds) {
  constexpr int kRows = 7, kPitch = 4, kWidth = 2;
  auto device = CudaMemory::OnDevice(kRows * kPitch * sizeof(float));
  ASSERT_TRUE(device.ok());
  std::vector<float> values(kRows * kPitch);
  std::iota(values.begin(), values.end(), 0.0f);
  ASSERT_TRUE(queue_.CopyIn(device->data(), values.data(), values.size() * sizeof(float)).ok());
  std::vector<std::vector<float>> out(kRows, std::vector<float>(kWidth, -1));
  std::vector<float*> destinations;
  for (auto& row : out) destinations.push_back(row.data());
  ASSERT_TRUE(
      queue_.CopyOut(static_cast<float*>(device->data()), kPitch, kWidth, destinations).ok());
  EXPECT_TRUE(queue_.copies_wait());
  ASSERT_TRUE(queue_.Flush().ok());
  EXPECT_FALSE(queue_.copies_wait());
  for (int i = 0; i < kRows; ++i) {
    EXPECT_EQ(out[size_t(i)], (std::vector<float>{float(4 * i), float(4 * i + 1)})) << i;
  }
  EXPECT_EQ(
      queue_.CopyOut(static_cast<float*>(device->data()), 6, 6, {destinations.data(), 1}).code(),
      absl::StatusCode::kInternal)
      << "a row wider than the readback";
}

TEST_F(CudaQueueTest, ErrorsOfQueuedWorkComeOutOfAwait) {
  auto device = CudaMemory::OnDevice(4);
  ASSERT_TRUE(device.ok());
  const int value = 1;
  ASSERT_TRUE(queue_.CopyIn(device->data(), &value, 4).ok());
  emulator::FailCallOf("cudaStreamQuery", 1, cudaErrorIllegalAddress);
  const absl::Status status = queue_.AwaitAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(IsCudaHang(status));
  EXPECT_TRUE(IsCudaHang(CudaHangStatus("x", absl::Seconds(1))));
}

}  // namespace
}  // namespace rivulet
