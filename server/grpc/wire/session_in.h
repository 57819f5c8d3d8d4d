// SPDX-License-Identifier: Apache-2.0
// Which session a message names.
#pragma once

#include "absl/strings/string_view.h"

namespace rivulet {

// The id of the session that `message`, a request or a reply of any method, is about, as it stands
// there; "" where the message has none. Valid as long as the message is as it is.
template <typename Message>
absl::string_view SessionIn(const Message& message) {
  if constexpr (requires { message.session_id(); }) {
    return message.session_id();
  } else if constexpr (requires { message.session().session_id(); }) {
    return message.session().session_id();
  } else {
    return "";
  }
}

}  // namespace rivulet
