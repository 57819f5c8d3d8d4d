// SPDX-License-Identifier: Apache-2.0
#include "model/text/text_tokenizer.h"

#include "absl/strings/str_cat.h"
#include "model/base/error.h"
#include "model/base/utf8.h"

namespace rivulet {

absl::Status CheckText(absl::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return InvalidField(
        "TEXT_TOO_LONG", "text",
        absl::StrCat("the text has ", text.size(), " bytes; allowed: at most ", kMaxTextBytes));
  }
  const size_t valid = ValidUtf8Bytes(text);
  if (valid == text.size()) return absl::OkStatus();
  return InvalidField("INVALID_UTF8", "text",
                      absl::StrCat("the text is not valid UTF-8 at byte ", valid));
}

}  // namespace rivulet
