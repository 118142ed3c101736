#include "stage/handshake.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "stage/secret.h"
#include "stage/step.h"

namespace graft::stage {
namespace {

constexpr std::string_view kDriver = "graft stage: driver", kStage = "graft stage: stage";

std::span<const std::byte> bytes_of(const auto& values) { return std::as_bytes(std::span(values)); }

// The digests of a handshake: the same nonces with other names for each side.
Digest digest_of(std::string_view secret, std::string_view side, const Digest& of_stage, const Digest& of_driver) {
  return hmac_sha256(secret, {bytes_of(side), bytes_of(of_stage), bytes_of(of_driver)});
}

template <std::size_t count>
std::array<Digest, count> digests_in(const Channel::Message& message, Kind kind, const std::string& peer) {
  if (message.kind == Kind::failed) throw_failure(message.meta, str("'", peer, "'"));
  GRAFT_CHECK(Refused, message.kind == kind && message.meta.size() == count * sizeof(Digest), "'", peer,
              "' does not keep to the handshake");
  std::array<Digest, count> out{};
  std::ranges::copy(message.meta, std::as_writable_bytes(std::span(out)).begin());
  return out;
}

}  // namespace

void welcome(Channel& channel, std::string_view secret, const Wait& wait) {
  const Digest of_stage = random_bytes();
  channel.send(Kind::challenge, bytes_of(of_stage), 0, wait);
  const auto [of_driver, proof] =
      digests_in<2>(channel.receive(kBeforeProof, wait), Kind::proof, channel.socket().peer());
  GRAFT_CHECK(Refused, equal(proof, digest_of(secret, kDriver, of_stage, of_driver)), "the secret is another one");
  const Digest own = digest_of(secret, kStage, of_stage, of_driver);
  if (channel.socket().local())
    channel.share(Kind::welcome, bytes_of(own), wait);
  else
    channel.send(Kind::welcome, bytes_of(own), 0, wait);
}

void introduce(Channel& channel, std::string_view secret, const Wait& wait) {
  const std::string& peer = channel.socket().peer();
  const auto [of_stage] = digests_in<1>(channel.receive(kBeforeProof, wait), Kind::challenge, peer);
  const Digest of_driver = random_bytes();
  const std::array<Digest, 2> proof{of_driver, digest_of(secret, kDriver, of_stage, of_driver)};
  channel.send(Kind::proof, bytes_of(proof), 0, wait);
  const auto message =
      channel.socket().local() ? channel.receive_shared(kBeforeProof, wait) : channel.receive(kBeforeProof, wait);
  const auto [found] = digests_in<1>(message, Kind::welcome, peer);
  GRAFT_CHECK(Refused, equal(found, digest_of(secret, kStage, of_stage, of_driver)), "'", peer,
              "' does not know the secret");
}

}  // namespace graft::stage
