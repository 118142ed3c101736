#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flat_tensor_generated.h"

// Test only: files in a temporary folder, and the common parts of .ptd and .pte writers, in the format that
// ExecuTorch's Python code writes.
namespace graft::test {

using Blob = std::vector<std::byte>;

inline Blob bytes_of(std::size_t count, std::uint8_t first = 0) {
  Blob out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::byte>(first + i);
  return out;
}

// A folder that is deleted with its files.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "graft_test_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string write(const std::string& name, std::span<const std::byte> bytes) const {
    const std::string path = (path_ / name).string();
    std::filesystem::remove(path);  // some file systems flush a file that is truncated and rewritten
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Segment {
  std::uint64_t offset = 0;
  Blob bytes;
};

inline void put(Blob& out, std::size_t at, std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[at + i] = static_cast<std::byte>(value >> (8 * i));
}

// Puts `header` between the identifier and the rest of a flatbuffer.
inline Blob with_header(std::span<const std::uint8_t> flatbuffer, std::size_t header_bytes) {
  Blob out(flatbuffer.size() + header_bytes);
  std::memcpy(out.data(), flatbuffer.data(), 8);
  std::memcpy(out.data() + 8 + header_bytes, flatbuffer.data() + 8, flatbuffer.size() - 8);
  std::uint32_t root;
  std::memcpy(&root, flatbuffer.data(), 4);
  put(out, 0, root + header_bytes, 4);
  return out;
}

inline Blob joined(std::pair<Blob, std::vector<Segment>> parts) {
  Blob out = std::move(parts.first);
  const std::size_t base = out.size();
  for (const Segment& segment : parts.second) {
    out.resize(base + segment.offset);
    out.insert(out.end(), segment.bytes.begin(), segment.bytes.end());
  }
  return out;
}

inline Blob make_ptd(const std::vector<std::pair<std::string, Blob>>& named, std::uint32_t version = 0) {
  namespace ft = flat_tensor_flatbuffer;
  flatbuffers::FlatBufferBuilder b;
  std::vector<Segment> segments;
  std::uint64_t end = 0;
  std::vector<flatbuffers::Offset<ft::NamedData>> names;
  std::vector<flatbuffers::Offset<ft::DataSegment>> tables;
  for (const auto& [key, bytes] : named) {
    names.push_back(ft::CreateNamedDataDirect(b, key.c_str(), static_cast<std::uint32_t>(segments.size())));
    segments.push_back({(end + 127) / 128 * 128, bytes});
    end = segments.back().offset + bytes.size();
    tables.push_back(ft::CreateDataSegment(b, segments.back().offset, bytes.size()));
  }
  ft::FinishFlatTensorBuffer(b, ft::CreateFlatTensorDirect(b, version, &tables, &names));
  Blob out = with_header({b.GetBufferPointer(), b.GetSize()}, 48);
  const std::size_t base = (out.size() + 127) / 128 * 128;
  out.resize(base);
  std::memcpy(out.data() + 8, "FH01", 4);
  put(out, 12, 40, 4);
  put(out, 16, 48, 8);
  put(out, 24, b.GetSize(), 8);
  put(out, 32, base, 8);
  put(out, 40, end, 8);
  return joined({out, segments});
}

}  // namespace graft::test
