#include "cli/npz.h"

#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>

#include "cli/text.h"

namespace graft::cli {
namespace {

constexpr std::string_view kSuffix = ".npy";
// Deflate makes at most this much of one byte.
constexpr zip_uint64_t kMaxDeflateRatio = 1032;

std::string error_text(int code) {
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  return text;
}

struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
using Archive = std::unique_ptr<zip_t, Discard>;

Archive open(const std::string& path, int flags) {
  int code = 0;
  Archive archive(zip_open(path.c_str(), flags, &code));
  if (archive) return archive;
  if (code == ZIP_ER_NOENT) fail<NotFound>("cannot open '", path, "': No such file or directory");
  if (code == ZIP_ER_OPEN || code == ZIP_ER_READ) fail<SystemError>("cannot open '", path, "': ", error_text(code));
  fail(path, ": not a .npz file (zip archive): ", error_text(code));
}

struct Close {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

Bytes read_entry(zip_t* archive, zip_uint64_t index, const zip_stat_t& info, const std::string& what) {
  constexpr zip_uint64_t wanted = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
  if ((info.valid & wanted) != wanted) fail(what, ": the archive does not say how large it is");
  if (info.comp_method != ZIP_CM_STORE && info.comp_method != ZIP_CM_DEFLATE)
    fail(what, ": must be stored or deflated, its compression method is ", info.comp_method);
  // Rejects a size that the compressed bytes cannot produce, before memory is allocated for it.
  if (info.comp_size > ZIP_UINT64_MAX / kMaxDeflateRatio - 1 || info.size > (info.comp_size + 1) * kMaxDeflateRatio)
    fail(what, ": ", info.comp_size, " compressed bytes cannot be ", info.size, " bytes");
  const std::unique_ptr<zip_file_t, Close> file(zip_fopen_index(archive, index, 0));
  if (!file) fail(what, ": ", zip_strerror(archive));
  const Bytes bytes = allocate(info.size);
  std::size_t done = 0;
  while (done < bytes.size) {
    const zip_int64_t n = zip_fread(file.get(), bytes.data.get() + done, bytes.size - done);
    if (n < 0) fail(what, ": ", zip_file_strerror(file.get()));
    if (n == 0) fail(what, ": must have ", bytes.size, " bytes, the archive has ", done);
    done += static_cast<std::size_t>(n);
  }
  std::byte extra{};
  const zip_int64_t more = zip_fread(file.get(), &extra, 1);  // at the end the checksum is compared
  if (more < 0) fail(what, ": ", zip_file_strerror(file.get()));
  if (more > 0) fail(what, ": must have ", bytes.size, " bytes, the archive has more");
  return bytes;
}

}  // namespace

std::vector<NamedArray> read_npz(const std::string& path, double max_zip_ratio) {
  const Archive archive = open(path, ZIP_RDONLY | ZIP_CHECKCONS);
  std::vector<NamedArray> out;
  std::set<std::string> seen;
  std::error_code error;
  const auto file_bytes = static_cast<double>(std::filesystem::file_size(path, error));
  const double most = std::max(static_cast<double>(kFreeBytes), error ? 0 : file_bytes * max_zip_ratio);
  double all = 0;
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<zip_uint64_t>(i);
    zip_stat_t info;
    zip_stat_init(&info);
    if (zip_stat_index(archive.get(), index, 0, &info) != 0 || !(info.valid & ZIP_STAT_NAME))
      fail(path, ": entry ", i, ": ", zip_strerror(archive.get()));
    std::string name = info.name;
    const std::string what = str(path, "[", printable(name), "]");
    if (!name.ends_with(kSuffix)) fail(what, ": a .npz file holds .npy files only");
    name.resize(name.size() - kSuffix.size());
    if (!seen.insert(name).second) fail(what, ": is there twice");
    if (info.valid & ZIP_STAT_SIZE) all += static_cast<double>(info.size);
    if (all > most)
      fail<Unsupported>(what, ": the arrays up to here take ", all, " bytes, ", all / file_bytes,
                        " times those of the file, at most ", max_zip_ratio, " are allowed (--max-zip-ratio)");
    out.push_back({name, parse_npy(read_entry(archive.get(), index, info, what), what)});
  }
  return out;
}

void write_npz(const std::string& path, std::span<const NamedTensor> tensors) {
  if (tensors.empty()) fail("no output to write to '", path, "'");  // libzip would write no file
  Archive archive = open(path, ZIP_CREATE | ZIP_TRUNCATE);
  // libzip reads the data when the archive is closed: headers must live until then.
  std::vector<std::string> headers;
  headers.reserve(tensors.size());
  for (const NamedTensor& item : tensors) {
    const TensorView& tensor = item.tensor;
    const std::string& header = headers.emplace_back(npy_header(tensor.dtype, tensor.shape));
    const zip_buffer_fragment_t fragments[] = {
        {reinterpret_cast<zip_uint8_t*>(const_cast<char*>(header.data())), header.size()},
        {static_cast<zip_uint8_t*>(tensor.data), TensorDesc(tensor.dtype, tensor.shape).byte_count()}};
    zip_error_t error;
    zip_error_init(&error);
    zip_source_t* source = zip_source_buffer_fragment_create(fragments, 2, 0, &error);
    if (!source) fail<SystemError>("cannot write '", path, "': ", zip_error_strerror(&error));
    const zip_int64_t index =
        zip_file_add(archive.get(), (item.name + std::string(kSuffix)).c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) zip_source_free(source);
    if (index < 0 || zip_set_file_compression(archive.get(), static_cast<zip_uint64_t>(index), ZIP_CM_STORE, 0) != 0)
      fail<SystemError>("cannot write '", path, "[", item.name, "]': ", zip_strerror(archive.get()));
  }
  if (zip_close(archive.get()) != 0) fail<SystemError>("cannot write '", path, "': ", zip_strerror(archive.get()));
  static_cast<void>(archive.release());  // closed: freed already
}

}  // namespace graft::cli
