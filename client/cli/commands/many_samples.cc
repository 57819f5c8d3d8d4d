// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/many_samples.h"

#include <algorithm>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace rivulet {
namespace {

constexpr int kRequestsAtOnce = 4;
constexpr int kMostSamples = 64;  // of a request

// Sends the requests of one call of GenerateMany from up to kRequestsAtOnce threads.
class ManySamples {
 public:
  ManySamples(const Client& client, v1::GenerateRequest request, int count, int size,
              CallOptions options, SamplePart add)
      : client_(client),
        request_(std::move(request)),
        count_(count),
        size_(size),
        options_(std::move(options)),
        add_(add) {
    options_.stop = stop_.get_token();
  }

  absl::Status Run() {
    const int requests = (count_ + size_ - 1) / size_;
    std::vector<std::thread> threads;
    for (int i = 1; i < std::min(requests, kRequestsAtOnce); ++i) {
      threads.emplace_back([this] { Work(); });
    }
    Work();
    for (std::thread& thread : threads) thread.join();
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  void Work() {
    while (true) {
      int index = 0;
      {
        absl::MutexLock lock(&mutex_);
        if (!status_.ok() || next_ * size_ >= count_) return;
        index = next_++;
      }
      if (absl::Status status = Send(index); !status.ok()) {
        absl::MutexLock lock(&mutex_);
        // This error cancels the other requests.
        if (status_.ok()) status_ = status;
        stop_.request_stop();
        return;
      }
    }
  }

  absl::Status Send(int index) {
    const int first = index * size_;
    const int samples = std::min(size_, count_ - first);
    v1::GenerateRequest request = request_;
    request.set_num_samples(samples);
    request.mutable_sampling()->set_seed(request_.sampling().seed() + static_cast<uint64_t>(index));
    absl::Status added;
    const absl::Status status = client_.Generate(
        request,
        [&](const v1::GenerateReply& part) {
          added = part.sample_index() >= 0 && part.sample_index() < samples
                      ? add_(first, part)
                      : absl::InternalError(absl::StrCat("the server sent sample ",
                                                         part.sample_index(), " of ", samples));
          return added.ok();
        },
        options_);
    return added.ok() ? status : added;
  }

  const Client& client_;
  const v1::GenerateRequest request_;
  const int count_;
  const int size_;  // samples of a request
  std::stop_source stop_;
  CallOptions options_;
  const SamplePart add_;
  absl::Mutex mutex_;
  int next_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status GenerateMany(const Client& client, const v1::GetModelReply& model, int count,
                          CallOptions options, v1::GenerateRequest* request, SamplePart add) {
  if (!request->sampling().has_seed()) {
    std::random_device random;
    request->mutable_sampling()->set_seed(random());
  }
  const int size = std::clamp(model.limits().max_num_samples(), 1, kMostSamples);
  return ManySamples(client, *request, count, size, std::move(options), add).Run();
}

}  // namespace rivulet
