// SPDX-License-Identifier: Apache-2.0
#include "client/cli/input/score_input.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/input/line_reader.h"
#include "client/cli/output/text.h"
#include "model/base/error.h"
#include "model/base/utf8.h"

namespace rivulet {
namespace {

using MaybeItem = std::optional<ScoreItem>;

class JsonLines : public ScoreInput {
 public:
  explicit JsonLines(const std::string& path) : path_(path), lines_(path) {}
  bool is_open() const { return lines_.is_open(); }

  absl::StatusOr<MaybeItem> Next() override {
    RIVULET_ASSIGN_OR_RETURN(const std::optional<absl::string_view> line, lines_.Next());
    if (!line.has_value()) return MaybeItem();
    ScoreItem item;
    item.where = absl::StrCat(path_, ":", ++number_);
    absl::StatusOr<ScoreContent> content = ParseScoreLine(*line, &item.id);
    if (content.ok()) {
      item.content = *std::move(content);
    } else {
      item.status = content.status();
    }
    return MaybeItem(std::move(item));
  }
  bool ready() override { return lines_.ready(); }

 private:
  const std::string path_;
  LineReader lines_;
  int64_t number_ = 0;
};

// Images in the format of the MNIST files: big-endian magic (two zero bytes, type 8 = unsigned
// byte, number of dimensions), the dimensions, then the values.
class IdxImages : public ScoreInput {
 public:
  explicit IdxImages(const std::string& path)
      : path_(path), file_(gzopen(path.c_str(), "rb"), &gzclose_r) {}
  bool is_open() const { return file_ != nullptr; }

  absl::Status ReadHeader(const v1::ImageContent& image, std::optional<int64_t> limit) {
    unsigned char magic[4];
    if (!Read(magic, 4) || magic[0] != 0 || magic[1] != 0 || magic[2] != 8 || magic[3] < 3 ||
        magic[3] > 4) {
      return Bad("not an IDX file of images (bytes in 3 or 4 dimensions)");
    }
    uint32_t dims[4] = {0, 0, 0, 1};
    for (int i = 0; i < magic[3]; ++i) {
      unsigned char bytes[4];
      if (!Read(bytes, 4)) return Bad("ends within its header");
      dims[i] = uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 |
                uint32_t{bytes[3]};
    }
    if (dims[1] != static_cast<uint32_t>(image.height()) ||
        dims[2] != static_cast<uint32_t>(image.width()) ||
        dims[3] != static_cast<uint32_t>(image.channels())) {
      return Bad(absl::StrCat("images of ", dims[1], " x ", dims[2], " x ", dims[3],
                              "; the model's are ", image.height(), " x ", image.width(), " x ",
                              image.channels()));
    }
    total_ = dims[0];
    if (limit.has_value() && *limit > total_) {
      return absl::InvalidArgumentError(
          absl::StrCat("--limit: ", *limit, "; ", path_, " holds ", total_, " images"));
    }
    total_ = limit.value_or(total_);
    bytes_.resize(size_t{dims[1]} * dims[2] * dims[3]);
    return absl::OkStatus();
  }

  absl::StatusOr<MaybeItem> Next() override {
    if (number_ == total_) return MaybeItem();
    const std::string where = absl::StrCat(path_, ":", ++number_);
    if (!Read(bytes_.data(), bytes_.size())) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": the file ends within this image"));
    }
    return MaybeItem(ScoreItem{std::vector<int32_t>(bytes_.begin(), bytes_.end()), where});
  }
  std::optional<int64_t> total() const override { return total_; }

 private:
  bool Read(unsigned char* to, size_t bytes) { return gzfread(to, 1, bytes, file_.get()) == bytes; }
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
  }

  const std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
  int64_t total_ = 0;
  int64_t number_ = 0;
  std::vector<unsigned char> bytes_;
};

class WholeText : public ScoreInput {
 public:
  WholeText(std::vector<ScoreItem> items, int64_t num_scored, int64_t text_bytes)
      : items_(std::move(items)), num_scored_(num_scored), text_bytes_(text_bytes) {}
  absl::StatusOr<MaybeItem> Next() override {
    if (next_ == items_.size()) return MaybeItem();
    return MaybeItem(std::move(items_[next_++]));
  }
  std::optional<int64_t> total() const override { return num_scored_; }
  bool is_text() const override { return true; }
  int64_t text_bytes() const override { return text_bytes_; }

 private:
  std::vector<ScoreItem> items_;
  const int64_t num_scored_, text_bytes_;
  size_t next_ = 0;
};

absl::Status CannotOpen(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
}

// The tokens of a text: ids; or, if each code point is a token, the offset of each.
struct Tokens {
  std::string text;
  std::vector<size_t> offsets;              // where each token begins, and the text's size
  std::optional<std::vector<int32_t>> ids;  // absent: each code point is a token

  int64_t size() const { return static_cast<int64_t>(offsets.size() - 1); }
  void Truncate(int64_t count) {
    offsets.resize(static_cast<size_t>(count) + 1);
    text.resize(offsets.back());
  }
  ScoreContent Part(int64_t begin, int64_t end) const {
    if (ids.has_value()) return std::vector<int32_t>(ids->begin() + begin, ids->begin() + end);
    const size_t from = offsets[static_cast<size_t>(begin)];
    return text.substr(from, offsets[static_cast<size_t>(end)] - from);
  }
};

absl::StatusOr<Tokens> TokensOf(std::string text, const v1::TextContent& content,
                                TokenizeText tokenize) {
  Tokens tokens;
  tokens.text = std::move(text);
  if (!content.alphabet().empty()) {
    tokens.offsets = CodePointOffsets(tokens.text);
    return tokens;
  }
  RIVULET_ASSIGN_OR_RETURN(const v1::TokenizeReply reply, tokenize(tokens.text));
  tokens.ids.emplace(reply.ids().begin(), reply.ids().end() - reply.added_behind());
  tokens.offsets.push_back(0);
  for (size_t i = 0; i < tokens.ids->size(); ++i) {
    tokens.offsets.push_back(static_cast<size_t>(reply.ends(static_cast<int>(i))));
  }
  tokens.offsets.back() = tokens.text.size();
  return tokens;
}

// Items of whole windows, about kItemTokens each. Neighbouring windows share `shared` tokens: that
// which is not scored.
std::vector<ScoreItem> Cut(const Tokens& tokens, int64_t window, int64_t shared,
                           const std::string& path) {
  constexpr int64_t kItemTokens =
      1024;  // many calls run at once, and progress is shown at the end of each
  const int64_t step = std::max<int64_t>(1, kItemTokens / window) * window;
  std::vector<ScoreItem> items;
  for (int64_t begin = 0; items.empty() || begin < tokens.size() - shared; begin += step) {
    const int64_t end = std::min(begin + step + shared, tokens.size());
    items.push_back({tokens.Part(begin, end), path, /*continues=*/true});
  }
  items.back().continues = false;
  return items;
}

// A directory opens like a file.
absl::Status CheckNoDirectory(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory; expected a file"));
}

absl::StatusOr<std::string> ReadText(const std::string& path, std::optional<double> tail) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return CannotOpen(path);
  std::ostringstream stream;
  stream << file.rdbuf();
  if (file.bad() || stream.fail()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read or is empty"));
  }
  std::string text = stream.str();
  if (const size_t bad = ValidUtf8Bytes(text); bad != text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not UTF-8 at byte ", bad));
  }
  if (tail.has_value()) {
    // Splits like char-rnn and nanoGPT: of n code points the first int((1 - tail) * n) are for
    // training.
    const std::vector<size_t> offsets = CodePointOffsets(text);
    const double code_points = static_cast<double>(offsets.size() - 1);
    text.erase(0, offsets[static_cast<size_t>((1 - *tail) * code_points)]);
  }
  return text;
}

absl::StatusOr<std::unique_ptr<ScoreInput>> OpenText(const ScoreOptions& options,
                                                     const v1::GetModelReply& model,
                                                     TokenizeText tokenize) {
  if (!model.content().has_text()) {
    return absl::InvalidArgumentError(
        "--text: this model has no tokenizer; a line of --input takes \"tokens\"");
  }
  RIVULET_ASSIGN_OR_RETURN(std::string text, ReadText(options.text, options.tail));
  RIVULET_ASSIGN_OR_RETURN(Tokens tokens,
                           TokensOf(std::move(text), model.content().text(), tokenize));
  // Without a bos the first token is not scored.
  const int64_t unscored = model.architecture().has_bos_token_id() ? 0 : 1;
  int64_t num_scored = std::max<int64_t>(0, tokens.size() - unscored);
  if (options.limit.has_value()) {
    if (*options.limit > num_scored) {
      return absl::InvalidArgumentError(absl::StrCat("--limit: ", *options.limit, "; ",
                                                     options.text, " holds ", num_scored,
                                                     " tokens to score"));
    }
    num_scored = *options.limit;
    tokens.Truncate(num_scored + unscored);
  }
  std::vector<ScoreItem> items;
  if (options.window.has_value() && options.outputs.empty()) {
    items = Cut(tokens, *options.window, unscored, options.text);
  } else {
    items.push_back({tokens.Part(0, tokens.size()), options.text});
  }
  const size_t bytes = num_scored > 0 ? tokens.text.size() - tokens.offsets[size_t(unscored)] : 0;
  return std::make_unique<WholeText>(std::move(items), num_scored, static_cast<int64_t>(bytes));
}

absl::StatusOr<std::unique_ptr<ScoreInput>> OpenIdx(const ScoreOptions& options,
                                                    const v1::ModelContent& content) {
  if (!content.has_image()) {
    return absl::InvalidArgumentError("--idx: the model's content is not images");
  }
  auto input = std::make_unique<IdxImages>(options.idx);
  if (!input->is_open()) return CannotOpen(options.idx);
  RIVULET_RETURN_IF_ERROR(input->ReadHeader(content.image(), options.limit));
  return input;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ScoreInput>> OpenScoreInput(const ScoreOptions& options,
                                                           const v1::GetModelReply& model,
                                                           TokenizeText tokenize) {
  for (const std::string& path : {options.text, options.idx}) {
    RIVULET_RETURN_IF_ERROR(CheckNoDirectory(path));
  }
  if (!options.text.empty()) return OpenText(options, model, tokenize);
  if (!options.idx.empty()) return OpenIdx(options, model.content());
  auto input = std::make_unique<JsonLines>(options.input);
  if (!input->is_open()) return CannotOpen(options.input);
  return input;
}

}  // namespace rivulet
