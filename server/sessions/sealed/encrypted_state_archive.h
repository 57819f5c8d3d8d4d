// SPDX-License-Identifier: Apache-2.0
// A StateArchive that keeps everything in another StateArchive, encrypted (sealer.h). The inner
// archive learns only sizes and expiries.
//
// A state is stored under Sealer::Name of its name, and sealed by its name as the secret. The name
// is a hash of all tokens that the state follows from: only who has these tokens can compute it. As
// with the chunks of an EncryptedSessionStore, a rotation of keys does not make states unreadable.
#pragma once

#include <memory>

#include "server/sessions/replicated/state_archive.h"
#include "server/sessions/sealed/sealer.h"

namespace rivulet {

// Errors of Get beside the errors of `archive`: DATA_LOSS and FAILED_PRECONDITION, as Sealer::Open.
std::unique_ptr<StateArchive> MakeEncryptedStateArchive(std::shared_ptr<StateArchive> archive,
                                                        std::shared_ptr<const Sealer> sealer);

}  // namespace rivulet
