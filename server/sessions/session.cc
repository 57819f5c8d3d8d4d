// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "model/base/random_word.h"

namespace rivulet {
namespace {

// Last checkpoints that stay even if close together: enough to go back to before the last calls.
constexpr size_t kRecentCheckpoints = 4;

std::optional<uint64_t> ParseHex(absl::string_view digits) {
  uint64_t value = 0;
  for (const char c : digits) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return std::nullopt;
    value = value * 16 + static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

}  // namespace

SessionId SessionId::Random() {
  SessionId id;
  while (id == SessionId()) id = {RandomWord(), RandomWord()};
  return id;
}

std::optional<SessionId> SessionId::Parse(absl::string_view text) {
  if (text.size() != 32) return std::nullopt;
  const auto high = ParseHex(text.substr(0, 16)), low = ParseHex(text.substr(16));
  if (!high || !low || (*high == 0 && *low == 0)) return std::nullopt;
  return SessionId{*high, *low};
}

std::string SessionId::ToString() const { return absl::StrFormat("%016x%016x", high, low); }

uint64_t TokenHistory::HashAt(int64_t position) const {
  if (position == size()) return hash_;
  return HashTokens(kEmptySequenceHash, tokens().first(static_cast<size_t>(position)));
}

void TokenHistory::Append(int32_t token, bool generated) {
  tokens_.push_back(token);
  generated_.push_back(generated);
  hash_ = HashToken(hash_, token);
}

void TokenHistory::Truncate(int64_t size) {
  if (size == this->size()) return;
  tokens_.resize(static_cast<size_t>(size));
  generated_.resize(static_cast<size_t>(size));
  unchanged_ = std::min(unchanged_, size);
  hash_ = HashTokens(kEmptySequenceHash, tokens_);
}

KeptCheckpoint Session::From(int64_t most) const {
  for (auto checkpoint = checkpoints_.rbegin(); checkpoint != checkpoints_.rend(); ++checkpoint) {
    if (checkpoint->fed <= most && !checkpoint->state->forgotten()) return *checkpoint;
  }
  return {};
}

bool Session::Keeps(int64_t fed) const {
  return std::any_of(checkpoints_.begin(), checkpoints_.end(), [fed](const KeptCheckpoint& kept) {
    return kept.fed == fed && !kept.state->forgotten();
  });
}

bool Session::NeededByMark(int64_t fed) const {
  // To continue from a mark feeds its last token again, so the state before that token serves it.
  return std::any_of(marks_.begin(), marks_.end(), [&](const auto& mark) {
    return fed == bos_ + mark.second - 1 || fed == bos_ + mark.second;
  });
}

void Session::Keep(KeptCheckpoint checkpoint) {
  if (checkpoint.fed == 0) return;
  std::erase_if(checkpoints_, [](const KeptCheckpoint& kept) { return kept.state->forgotten(); });
  const auto place =
      std::lower_bound(checkpoints_.begin(), checkpoints_.end(), checkpoint.fed,
                       [](const KeptCheckpoint& kept, int64_t fed) { return kept.fed < fed; });
  if (place != checkpoints_.end() && place->fed == checkpoint.fed) return;
  checkpoints_.insert(place, std::move(checkpoint));
  Thin();
}

void Session::Thin() {
  const int64_t newest = checkpoints_.back().fed;
  size_t recent = 0;
  for (auto i = checkpoints_.size(); i-- > 0;) {
    if (NeededByMark(checkpoints_[i].fed) || ++recent <= kRecentCheckpoints) continue;
    const int64_t before = i > 0 ? checkpoints_[i - 1].fed : 0;
    const int64_t after = checkpoints_[i + 1].fed;  // exists: the newest is recent
    if (after - before > std::max(checkpoint_tokens_, (newest - after) / 2)) continue;
    checkpoints_.erase(checkpoints_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Session::Rewind(int64_t position) {
  abandoned_from.reset();
  history.Truncate(position);
  std::erase_if(marks_, [position](const auto& mark) { return mark.second > position; });
  std::erase_if(checkpoints_, [this](const KeptCheckpoint& kept) { return kept.fed > total(); });
}

void Session::CopyFrom(const Session& other) {
  history = other.history;
  marks_ = other.marks_;
  checkpoints_ = other.checkpoints_;
}

void Session::BecomeCopyOf(TokenHistory other, std::map<std::string, int64_t> marks) {
  const auto mine = history.tokens(), theirs = other.tokens();
  const auto common = std::mismatch(mine.begin(), mine.end(), theirs.begin(), theirs.end()).first;
  Rewind(common - mine.begin());
  history = std::move(other);
  marks_ = std::move(marks);
}

void Session::Restore(TokenHistory restored, std::map<std::string, int64_t> marks) {
  history = std::move(restored);
  marks_ = std::move(marks);
  checkpoints_.clear();
}

SessionInfo Session::Info(absl::Time now) const {
  SessionInfo info;
  info.id = id;
  info.position = position();
  info.hash = history.hash();
  info.seed = seed;
  info.marks = marks_;
  info.idle_timeout = idle_timeout;
  info.busy = active != nullptr;
  info.idle = info.busy ? absl::ZeroDuration() : now - last_used;
  SharedBytes in_memory, on_disk;
  for (const KeptCheckpoint& kept : checkpoints_) {
    if (kept.state->in_memory()) in_memory.Add(*kept.state);
    if (kept.state->on_disk()) on_disk.Add(*kept.state);
  }
  info.state_bytes = in_memory.bytes();
  info.state_disk_bytes = on_disk.bytes();
  return info;
}

}  // namespace rivulet
