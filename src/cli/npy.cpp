#include "cli/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/text.h"

namespace graft::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "graft runs on little-endian machines");

constexpr std::align_val_t kAlignment{64};
constexpr std::string_view kMagic = "\x93NUMPY";

struct Header {
  std::string descr;
  bool fortran = false;
  std::vector<std::int64_t> shape;
};

// The header is the text of a Python dict with three keys: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  Header parse() {
    std::optional<std::string> descr;
    std::optional<bool> fortran;
    std::optional<std::vector<std::int64_t>> shape;
    expect('{');
    while (!take('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !descr) {
        descr = this->descr();
      } else if (key == "fortran_order" && !fortran) {
        fortran = boolean();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        bad(str("key '", printable(key), "' is unknown or there twice"));
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) bad("text after the closing brace");
    if (!descr || !fortran || !shape) bad("must have the keys 'descr', 'fortran_order' and 'shape'");
    return {*descr, *fortran, *shape};
  }

 private:
  [[noreturn]] void bad(const std::string& problem) const { fail(what_, ": the .npy header is malformed: ", problem); }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) bad(str("expected '", c, "' at byte ", at_));
  }
  std::string string() {
    skip_space();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) bad(str("expected a string at byte ", at_));
    const char quote = text_[at_++];
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) bad("a string does not end");
    std::string out(text_.substr(at_, end - at_));
    at_ = end + 1;
    return out;
  }
  std::string descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[') fail(what_, ": structured dtypes (records) are not supported");
    return string();
  }
  bool boolean() {
    skip_space();
    for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return value;
    }
    bad(str("expected True or False at byte ", at_));
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!take(')')) {
      skip_space();
      std::int64_t size = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0) bad(str("expected a size in 'shape' at byte ", at_));
      at_ = static_cast<std::size_t>(end - text_.data());
      take('L');  // files of Python 2
      sizes.push_back(size);
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return sizes;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  const std::string& what_;
};

struct NumpyType {
  std::string_view code;  // kind and bytes
  DType dtype;
};
// The first row of a dtype is the one that is written.
constexpr NumpyType kTypes[] = {{"f4", DType::f32}, {"f2", DType::f16},  {"f8", DType::f64}, {"i1", DType::i8},
                                {"u1", DType::u8},  {"i2", DType::i16},  {"i4", DType::i32}, {"i8", DType::i64},
                                {"b1", DType::b8},  {"u2", DType::bf16}, {"V2", DType::bf16}};

DType dtype_of(const std::string& descr, const std::string& what) {
  const std::string_view code = std::string_view(descr).substr(descr.empty() ? 0 : 1);
  if (!descr.empty() && std::string_view("<>=|").find(descr[0]) != std::string_view::npos)
    for (const NumpyType& type : kTypes)
      if (type.code == code) return type.dtype;
  fail(what, ": dtype '", printable(descr),
       "' is not supported; graft has float16/32/64, int8/16/32/64, uint8, bool and, "
       "for bfloat16, uint16");
}

// Sizes checked so that neither element nor byte counts overflow; empty arrays must not hide huge sizes either.
Shape shape_of(const std::vector<std::int64_t>& sizes, const std::string& what) {
  if (sizes.size() > static_cast<std::size_t>(kMaxRank))
    fail(what, ": a tensor has at most ", kMaxRank, " dimensions, the array has ", sizes.size());
  std::int64_t count = 8;  // bytes of the largest element
  for (const std::int64_t size : sizes)
    if (__builtin_mul_overflow(count, std::max<std::int64_t>(size, 1), &count))
      fail(what, ": the array's size does not fit 64 bits");
  return Shape(sizes);
}

void swap_bytes(std::byte* data, std::size_t element, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += element) std::reverse(data + at, data + at + element);
}

// Row-major from column-major: walks the output in order, the input by its strides.
void from_fortran(const std::byte* from, std::byte* to, const Shape& shape, std::size_t element) {
  const int rank = shape.rank();
  std::array<std::int64_t, kMaxRank> index{};
  std::array<std::int64_t, kMaxRank> stride{};
  std::int64_t step = 1;
  for (int d = 0; d < rank; ++d) {
    stride[static_cast<std::size_t>(d)] = step;
    step *= shape[d];
  }
  std::int64_t source = 0;
  for (std::int64_t n = shape.numel(); n > 0; --n, to += element) {
    std::memcpy(to, from + static_cast<std::size_t>(source) * element, element);
    for (int d = rank - 1; d >= 0; --d) {
      const auto i = static_cast<std::size_t>(d);
      source += stride[i];
      if (++index[i] < shape[d]) break;
      source -= stride[i] * shape[d];
      index[i] = 0;
    }
  }
}

[[noreturn]] void system_failure(const std::string& doing, const std::string& path, int error) {
  const std::string message = str("cannot ", doing, " '", path, "': ", std::strerror(error));
  if (error == ENOENT) throw NotFound(message);
  throw SystemError(message);
}

class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  int close() {
    const int result = ::close(fd_);
    fd_ = -1;
    return result;
  }

 private:
  int fd_;
};

// Reads `size` bytes, or fewer at the end; returns the number read.
std::size_t read_some(const File& file, std::byte* to, std::size_t size, const std::string& path) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(file.fd(), to + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) system_failure("read", path, errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

void write_all(const File& file, const void* from, std::size_t size, const std::string& path) {
  const char* at = static_cast<const char*>(from);
  while (size > 0) {
    const ssize_t n = ::write(file.fd(), at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) system_failure("write", path, errno);
    at += n;
    size -= static_cast<std::size_t>(n);
  }
}

}  // namespace

Bytes allocate(std::size_t size) {
  auto* data = static_cast<std::byte*>(::operator new(std::max<std::size_t>(size, 1), kAlignment));
  return {std::shared_ptr<std::byte>(data, [](std::byte* p) { ::operator delete(p, kAlignment); }), size};
}

Bytes read_file(const std::string& path) {
  const File file(path, O_RDONLY);
  struct stat info {};
  if (file.fd() < 0 || ::fstat(file.fd(), &info) != 0) system_failure("open", path, errno);
  if (S_ISDIR(info.st_mode)) fail<SystemError>("cannot read '", path, "': it is a folder");
  const bool regular = S_ISREG(info.st_mode) && info.st_size > 0;
  Bytes bytes = allocate(regular ? static_cast<std::size_t>(info.st_size) : std::size_t{1} << 16);
  std::size_t done = 0;
  for (;;) {
    done += read_some(file, bytes.data.get() + done, bytes.size - done, path);
    if (done < bytes.size || regular) break;
    Bytes larger = allocate(bytes.size * 2);
    std::memcpy(larger.data.get(), bytes.data.get(), done);
    bytes = std::move(larger);
  }
  bytes.size = done;
  return bytes;
}

Array parse_npy(const Bytes& bytes, const std::string& what) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data.get()), bytes.size);
  if (!text.starts_with(kMagic)) fail(what, ": not a .npy file: it does not begin with \\x93NUMPY");
  const auto byte_at = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(text[i])); };
  if (text.size() < 10) fail(what, ": the .npy file is truncated: it has ", text.size(), " bytes");
  const std::size_t version = byte_at(6);
  if (version < 1 || version > 3) fail(what, ": .npy version must be 1, 2 or 3, found ", version, ".", byte_at(7));
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t start = 8 + length_bytes;
  if (text.size() < start) fail(what, ": the .npy file is truncated: it has ", text.size(), " bytes");
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= byte_at(8 + i) << (8 * i);
  if (length > text.size() - start)
    fail(what, ": the .npy file is truncated: its header has ", length, " bytes, the file ", text.size() - start,
         " after byte ", start);
  const Header header = HeaderParser(text.substr(start, length), what).parse();

  Array out;
  out.numpy_dtype = header.descr;
  out.tensor.dtype = dtype_of(header.descr, what);
  out.tensor.shape = shape_of(header.shape, what);
  const std::size_t element = byte_size(out.tensor.dtype);
  const std::size_t needed = static_cast<std::size_t>(out.tensor.shape.numel()) * element;
  const std::size_t there = text.size() - start - length;
  if (there != needed)
    fail(what, ": the .npy data must have ", needed, " bytes for dtype '", header.descr, "' and shape ",
         out.tensor.shape.str(), ", the file has ", there);
  std::byte* data = bytes.data.get() + start + length;
  out.owner = bytes.data;
  out.tensor.data = data;
  if (out.tensor.dtype == DType::b8)
    for (std::size_t i = 0; i < needed; ++i)
      if (std::to_integer<int>(data[i]) > 1)
        fail(what, ": a bool must be the byte 0 or 1, element ", i, " is ", std::to_integer<int>(data[i]));
  const bool fortran = header.fortran && out.tensor.shape.rank() > 1;
  const bool misaligned = reinterpret_cast<std::uintptr_t>(data) % element != 0;
  if (fortran || misaligned) {
    const Bytes moved = allocate(needed);
    if (fortran) {
      from_fortran(data, moved.data.get(), out.tensor.shape, element);
    } else {
      std::memcpy(moved.data.get(), data, needed);
    }
    out.owner = moved.data;
    out.tensor.data = moved.data.get();
  }
  if (header.descr[0] == '>' && element > 1) swap_bytes(static_cast<std::byte*>(out.tensor.data), element, needed);
  return out;
}

Array read_npy(const std::string& path) { return parse_npy(read_file(path), path); }

std::string npy_header(DType dtype, const Shape& shape) {
  const auto* type =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const NumpyType& t) { return t.dtype == dtype; });
  std::string sizes;
  for (const std::int64_t size : shape.sizes()) sizes += str(size, ", ");
  if (shape.rank() > 1) sizes.resize(sizes.size() - 2);
  if (shape.rank() == 1) sizes.pop_back();
  std::string header = str("{'descr': '", byte_size(dtype) == 1 ? '|' : '<', type->code,
                           "', 'fortran_order': False, 'shape': (", sizes, "), }");
  const std::size_t total = (kMagic.size() + 4 + header.size() + 1 + 63) / 64 * 64;
  header.resize(total - kMagic.size() - 4 - 1, ' ');
  header += '\n';
  std::string out(kMagic);
  out += '\x01';
  out += '\0';
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8);
  return out + header;
}

void write_npy(const std::string& path, const TensorView& tensor) {
  File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.fd() < 0) system_failure("write", path, errno);
  const std::string header = npy_header(tensor.dtype, tensor.shape);
  write_all(file, header.data(), header.size(), path);
  write_all(file, tensor.data, TensorDesc(tensor.dtype, tensor.shape).byte_count(), path);
  if (file.close() != 0) system_failure("write", path, errno);
}

}  // namespace graft::cli
