#include "stage/secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/sha256.h"
#include "stage/socket.h"

namespace graft::stage {
namespace {

constexpr std::size_t kBlock = 64, kShortest = 16, kLongest = 4096;

std::span<const std::byte> bytes_of(const auto& values) { return std::as_bytes(std::span(values)); }

}  // namespace

Digest hmac_sha256(std::string_view key, std::initializer_list<std::span<const std::byte>> parts) {
  std::array<std::uint8_t, kBlock> block{};
  if (key.size() > kBlock)
    std::ranges::copy(sha256(bytes_of(key)), block.begin());
  else
    std::ranges::copy(key, block.begin());
  const auto padded = [&](std::uint8_t with) {
    std::array<std::uint8_t, kBlock> out = block;
    for (std::uint8_t& byte : out) byte ^= with;
    return out;
  };
  Sha256 inner, outer;
  inner.add(bytes_of(padded(0x36)));
  for (const auto part : parts) inner.add(part);
  outer.add(bytes_of(padded(0x5c)));
  outer.add(bytes_of(inner.digest()));
  return outer.digest();
}

bool equal(const Digest& a, const Digest& b) {
  volatile std::uint8_t different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different = static_cast<std::uint8_t>(different | (a[i] ^ b[i]));
  return different == 0;
}

Digest random_bytes() {
  Digest out{};
  const ssize_t n = uninterrupted([&] { return ::getrandom(out.data(), out.size(), 0); });
  GRAFT_CHECK(SystemError, n == std::ssize(out), "the system gives no random bytes: ", std::strerror(errno));
  return out;
}

std::string read_secret(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && errno == ENOENT) throw NotFound(str("'", path, "': there is no such file"));
  struct stat about {};
  GRAFT_CHECK(SystemError, file && ::fstat(file.get(), &about) == 0, "'", path, "': ", std::strerror(errno));
  GRAFT_CHECK(InvalidArgument, (about.st_mode & (S_IRWXG | S_IRWXO)) == 0, "'", path,
              "': a secret that its owner alone can read was expected, found mode ", (about.st_mode >> 6) & 7,
              (about.st_mode >> 3) & 7, about.st_mode & 7, " (chmod 600)");
  std::string text(kLongest + 1, '\0');
  const ssize_t n = uninterrupted([&] { return ::read(file.get(), text.data(), text.size()); });
  GRAFT_CHECK(SystemError, n >= 0, "'", path, "': ", std::strerror(errno));
  text.resize(static_cast<std::size_t>(n));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  GRAFT_CHECK(InvalidArgument, text.size() >= kShortest && text.size() <= kLongest, "'", path, "': a secret of ",
              kShortest, " to ", kLongest, " bytes was expected, found ", text.size());
  return text;
}

}  // namespace graft::stage
