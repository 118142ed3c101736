#include "serve/keys.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>

#include "base/check.h"
#include "base/sha256.h"
#include "serve/http/target.h"

namespace graft::serve {
namespace {

bool equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different |= static_cast<unsigned char>(a[i] ^ b[i]);
  return different == 0;
}

std::string_view key_of(const Request& request) {
  constexpr std::string_view bearer = "bearer ";
  const std::string_view given = request.header("authorization");
  if (given.size() > bearer.size() && http_lower(std::string(given.substr(0, bearer.size()))) == bearer)
    return given.substr(bearer.size());
  return request.header("x-api-key");
}

}  // namespace

ApiKeys ApiKeys::load(const std::string& path) {
  std::ifstream file(path);
  GRAFT_CHECK(NotFound, file, "cannot read the file of API keys '", path, "'");
  std::vector<std::string> keys;
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line.front() != '#') keys.push_back(line);
  }
  GRAFT_CHECK(InvalidArgument, !keys.empty(), "the file of API keys '", path, "' has none");
  return of(std::move(keys));
}

ApiKeys ApiKeys::of(std::vector<std::string> keys) {
  for (const std::string& key : keys)
    GRAFT_CHECK(InvalidArgument, std::ranges::all_of(key, [](char c) { return c > ' ' && c < 0x7f; }),
                "an API key may have printable ASCII characters without spaces only");
  ApiKeys out;
  out.keys_ = std::move(keys);
  for (const std::string& key : out.keys_) {
    const std::string salted = "graft prefix cache " + key;
    const auto digest = sha256(std::as_bytes(std::span(salted)));
    std::uint64_t salt;
    std::memcpy(&salt, digest.data(), sizeof(salt));
    out.salts_.push_back(salt | 1);
  }
  return out;
}

bool ApiKeys::allows(const Request& request) const {
  if (!needed()) return true;
  const std::string_view given = key_of(request);
  bool found = false;
  for (const std::string& key : keys_) found |= equal(key, given);
  return found;
}

std::uint64_t ApiKeys::salt(const Request& request) const {
  const std::string_view given = key_of(request);
  std::uint64_t salt = 0;
  for (std::size_t i = 0; i < keys_.size(); ++i)
    if (equal(keys_[i], given)) salt = salts_[i];
  return salt;
}

}  // namespace graft::serve
