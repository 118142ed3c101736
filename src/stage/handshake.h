#pragma once

#include <string_view>

#include "stage/channel.h"

// Both sides prove that they know the secret, each by a digest over two fresh nonces that the other has not seen
// before: who listens in learns nothing that can be used again. What follows is neither signed nor encrypted.
namespace graft::stage {

inline constexpr double kHandshakeSeconds = 5;

// On the side of the stage. Local connections share memory after it. Throws Refused for a driver that does not know the
// secret, which is told so.
GRAFT_API void welcome(Channel& channel, std::string_view secret, const Wait& wait);
// On the side of the driver. Throws Refused for a stage that does not know the secret.
GRAFT_API void introduce(Channel& channel, std::string_view secret, const Wait& wait);

}  // namespace graft::stage
