#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/message.h"

namespace graft::serve {

// The keys that callers identify themselves with.
class ApiKeys {
 public:
  ApiKeys() = default;  // none are needed
  // One key per line; empty lines and those that begin with # are skipped. Throws NotFound for a file that cannot be
  // read, InvalidArgument for one without keys or with a key that HTTP cannot carry.
  static ApiKeys load(const std::string& path);
  static ApiKeys of(std::vector<std::string> keys);

  bool needed() const { return !keys_.empty(); }
  // Whether the request has a key: "Authorization: Bearer KEY", or "x-api-key: KEY". Takes the same time for all wrong
  // keys of one length.
  bool allows(const Request& request) const;
  // Differs by key, so that callers share no prefix of a prompt (RequestOptions::cache_salt); 0 where no keys are
  // needed. A key's is the same after a restart, since a file may have prefixes (PrefixCacheOptions::file).
  std::uint64_t salt(const Request& request) const;

 private:
  std::vector<std::string> keys_;
  std::vector<std::uint64_t> salts_;  // by key
};

}  // namespace graft::serve
