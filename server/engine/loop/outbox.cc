// SPDX-License-Identifier: Apache-2.0
#include "server/engine/loop/outbox.h"

namespace rivulet {

void Outbox::PutReady(Request* request) {
  if (request->MarkReady()) batch_.ready.push_back(request);
}

bool Outbox::HandAll() {
  const bool ends = has_ends();
  if (ends) {
    // The end tells of the last tokens too: one message instead of two.
    std::erase_if(batch_.ready, [](const Outlet* outlet) {
      return static_cast<const Request*>(outlet)->life.ended();
    });
    batch_.ended.swap(ended_);
  }
  emitter_->Hand(&batch_);
  return ends;
}

}  // namespace rivulet
