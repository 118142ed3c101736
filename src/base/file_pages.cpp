#include "base/file_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace graft {
namespace {

// Read-only mappings of files that nobody has written to either: end by begin.
std::map<std::uintptr_t, std::uintptr_t> file_mappings() {
  std::map<std::uintptr_t, std::uintptr_t> out;
  std::ifstream maps("/proc/self/smaps");
  std::uintptr_t begin = 0, end = 0;
  bool candidate = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    if (line.starts_with("Anonymous:")) {  // pages of a private mapping that were written
      std::string name;
      std::uint64_t kib = 1;
      if (candidate && fields >> name >> kib && kib == 0) out[begin] = end;
      continue;
    }
    std::string rights, offset, device;
    std::uint64_t inode = 0;
    char dash = 0;
    if (line.empty() || std::isupper(static_cast<unsigned char>(line[0])) != 0) continue;
    candidate = static_cast<bool>(fields >> std::hex >> begin >> dash >> end >> rights >> offset >> device >>
                                  std::dec >> inode) &&
                inode != 0 && rights.starts_with("r-");
  }
  return out;
}

}  // namespace

std::size_t release_file_pages(const std::vector<std::span<const std::byte>>& ranges) {
  if (ranges.empty()) return 0;
  const std::map<std::uintptr_t, std::uintptr_t> mappings = file_mappings();
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  std::size_t released = 0;
  for (const std::span<const std::byte> range : ranges) {
    const auto first = reinterpret_cast<std::uintptr_t>(range.data());
    const std::uintptr_t begin = (first + page - 1) / page * page, end = (first + range.size()) / page * page;
    auto mapping = mappings.upper_bound(begin);
    if (begin >= end || mapping == mappings.begin()) continue;
    --mapping;
    if (mapping->second < end) continue;           // in no mapping, or in several
    void* pages = reinterpret_cast<void*>(begin);  // NOLINT
    ::munlock(pages, end - begin);                 // locked ones are not released
    if (::madvise(pages, end - begin, MADV_DONTNEED) == 0) released += end - begin;
  }
  return released;
}

}  // namespace graft
