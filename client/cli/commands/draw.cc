// SPDX-License-Identifier: Apache-2.0
// `rivulet generate --count N --out FILE.png`: images as samples (many_samples.h).
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/many_samples.h"
#include "client/cli/image/half_blocks.h"
#include "client/cli/image/png_grid.h"
#include "client/cli/output/output_file.h"
#include "client/cli/output/progress.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"

namespace rivulet {
namespace {

absl::StatusOr<ImageShape> Shape(const v1::GetModelReply& model) {
  const v1::ImageContent& image = model.content().image();
  if (!model.content().has_image()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out: model ", model.summary().name(),
                     " does not make images; --count N without --out prints N samples"));
  }
  const v1::ModelArchitecture& architecture = model.architecture();
  ImageShape shape{image.height(), image.width(), image.channels(), architecture.vocab_size()};
  if (architecture.has_mixture_of_logistics()) {
    shape.num_levels = architecture.mixture_of_logistics().num_levels();
  } else if (architecture.has_bos_token_id() &&
             architecture.bos_token_id() == architecture.vocab_size() - 1) {
    --shape.num_levels;  // the bos is no level
  }
  RIVULET_RETURN_IF_ERROR(CheckPngShape(shape));
  return shape;
}

// The prompt's values, with which every image begins.
std::vector<int32_t> PromptValues(const v1::GenerateRequest& request) {
  std::vector<int32_t> values(request.tokens().ids().begin(), request.tokens().ids().end());
  for (const char c : request.image_values()) values.push_back(static_cast<unsigned char>(c));
  return values;
}

// The images, with the values drawn so far. Thread: any.
class Canvas {
 public:
  Canvas(const ImageShape& shape, int count, const std::vector<int32_t>& prompt)
      : shape_(shape),
        prompt_values_(static_cast<int64_t>(prompt.size())),
        progress_(shape.values() * count, shape.channels == 1 ? "pixels" : "values") {
    std::vector<int32_t> blank = prompt;
    blank.resize(static_cast<size_t>(shape.values()), 0);
    images_.assign(static_cast<size_t>(count), blank);
    done_ = prompt_values_ * count;
  }

  absl::Status Add(int first_image, const v1::GenerateReply& part) {
    const int64_t begin = prompt_values_ + part.first_position();
    if (part.first_position() < 0 || begin > shape_.values() - part.tokens_size()) {
      return absl::InternalError(absl::StrCat("the server sent values ", begin, " to ",
                                              begin + part.tokens_size(), " of an image of ",
                                              shape_.values()));
    }
    absl::MutexLock lock(&mutex_);
    std::vector<int32_t>& image = images_[static_cast<size_t>(first_image + part.sample_index())];
    std::copy(part.tokens().begin(), part.tokens().end(), image.begin() + begin);
    done_ += part.tokens_size();
    if (progress_.due()) progress_.Update(done_, HalfBlocks(images_, shape_, progress_.columns()));
    return absl::OkStatus();
  }

  std::vector<std::vector<int32_t>> Take() {
    absl::MutexLock lock(&mutex_);
    return std::move(images_);
  }

 private:
  const ImageShape shape_;
  const int64_t prompt_values_;
  absl::Mutex mutex_;
  std::vector<std::vector<int32_t>> images_ ABSL_GUARDED_BY(mutex_);
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  Progress progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::string> RunDraw(const GenerateOptions& options, const Target& target,
                                    const v1::GetModelReply& model, v1::GenerateRequest request) {
  RIVULET_ASSIGN_OR_RETURN(const ImageShape shape, Shape(model));
  RIVULET_RETURN_IF_ERROR(CheckWritable(options.out));
  const int count = options.count.value_or(1);
  RIVULET_RETURN_IF_ERROR(CheckPngGrid(shape, count, options.columns));
  const std::vector<int32_t> prompt = PromptValues(request);
  if (static_cast<int64_t>(prompt.size()) > shape.values()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: ", prompt.size(), " values are more than the ", shape.values(), " of an image"));
  }
  const absl::Time start = absl::Now();
  std::vector<std::vector<int32_t>> images;
  {
    Canvas canvas(shape, count, prompt);
    const auto add = [&](int first, const v1::GenerateReply& part) {
      return canvas.Add(first, part);
    };
    RIVULET_RETURN_IF_ERROR(
        GenerateMany(target.client(), model, count, GenerateCall(options), &request, add));
    images = canvas.Take();
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  RIVULET_RETURN_IF_ERROR(WritePngGrid(images, shape, options.columns, options.out));
  return absl::StrFormat("%d images in %.2f s, %s values/s, seed %u: %s", count, seconds,
                         Compact(static_cast<double>(count * shape.values()) / seconds),
                         request.sampling().seed(), options.out);
}

}  // namespace rivulet
