#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "graft/error.h"
#include "plan/stored_plan.h"
#include "random.h"

namespace graft::fuzz {
namespace {

constexpr std::size_t kDigest = 32;

// Reads numbers and texts of a file from its front.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  bool failed() const { return failed_; }
  std::span<const std::byte> left() const { return left_; }

  std::span<const std::byte> take(std::uint64_t count) {
    if (count > left_.size()) {
      failed_ = true;
      return {};
    }
    const auto out = left_.first(count);
    left_ = left_.subspan(count);
    return out;
  }
  template <typename T>
  T number() {
    T out{};
    if (const auto bytes = take(sizeof(T)); !bytes.empty()) std::memcpy(&out, bytes.data(), sizeof(T));
    return out;
  }
  std::string text() {
    const auto bytes = take(number<std::uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> left_;
  bool failed_ = false;
};

class Writer {
 public:
  template <typename T>
  void number(T value) {
    raw({reinterpret_cast<const std::byte*>(&value), sizeof(value)});
  }
  void text(const std::string& s) {
    number<std::uint64_t>(s.size());
    raw(std::as_bytes(std::span(s)));
  }
  void raw(std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }
  Blob out;
};

// A number that lies at a multiple of its size.
void change_word(std::span<std::byte> bytes, Random& random) {
  const std::size_t size = random.one_in(2) ? 8 : 4;
  if (bytes.size() < size) return;
  const auto at = bytes.subspan(random.below(bytes.size() / size) * size, size);
  std::int64_t value = 0;
  std::memcpy(&value, at.data(), size);
  random.change(value);
  std::memcpy(at.data(), &value, size);
}

// --- GGUF ---

enum GgufType : std::uint32_t { kBool = 7, kString = 8, kArray = 9, kTypes = 13 };
constexpr std::array<std::size_t, kTypes> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct Pair {
  std::string key;
  std::uint32_t type = 0, element = 0;  // element: of an array
  std::vector<std::string> strings;
  std::vector<Blob> numbers;  // one, or those of an array

  bool of_strings() const { return (type == kArray ? element : type) == kString; }
};
struct Tensor {
  std::string name;
  std::vector<std::uint64_t> sizes;
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
};

class Gguf {
 public:
  bool read(std::span<const std::byte> file) {
    Reader in(file);
    magic_ = in.number<std::uint32_t>();
    version_ = in.number<std::uint32_t>();
    const auto tensors = in.number<std::uint64_t>(), pairs = in.number<std::uint64_t>();
    for (std::uint64_t i = 0; i < pairs && !in.failed(); ++i) pairs_.push_back(pair(in));
    for (std::uint64_t i = 0; i < tensors && !in.failed(); ++i) {
      Tensor& t = tensors_.emplace_back();
      t.name = in.text();
      const auto rank = in.number<std::uint32_t>();
      for (std::uint32_t d = 0; d < rank && !in.failed(); ++d) t.sizes.push_back(in.number<std::uint64_t>());
      t.type = in.number<std::uint32_t>();
      t.offset = in.number<std::uint64_t>();
    }
    data_.assign(in.left().begin(), in.left().end());
    return !in.failed();
  }

  void change(Random& random) {
    switch (random.below(12)) {
      case 0:
        if (random.one_in(2))
          random.change(version_);
        else
          random.change(more_pairs_);
        return;
      case 1:
        random.change(more_tensors_);
        return;
      case 2:
        random.rearrange(pairs_);
        return;
      case 3:
      case 4:
        if (!tensors_.empty()) tensor(random.of(tensors_), random);
        return;
      case 5:
        random.rearrange(tensors_);
        return;
      case 6:
        data_ = mutate_bytes(data_, random);
        return;
      default:
        if (!pairs_.empty()) change_pair(random.of(pairs_), random);
    }
  }

  Blob written() const {
    Writer out;
    out.number(magic_);
    out.number(version_);
    out.number(tensors_.size() + more_tensors_);
    out.number(pairs_.size() + more_pairs_);
    for (const Pair& p : pairs_) {
      out.text(p.key);
      out.number(p.type);
      if (p.type == kArray) {
        out.number(p.element);
        out.number(static_cast<std::uint64_t>(p.strings.size() + p.numbers.size()));
      }
      for (const std::string& s : p.strings) out.text(s);
      for (const Blob& n : p.numbers) out.raw(n);
    }
    for (const Tensor& t : tensors_) {
      out.text(t.name);
      out.number(static_cast<std::uint32_t>(t.sizes.size()));
      for (const std::uint64_t size : t.sizes) out.number(size);
      out.number(t.type);
      out.number(t.offset);
    }
    out.raw(data_);
    return std::move(out.out);
  }

 private:
  static Pair pair(Reader& in) {
    Pair out;
    out.key = in.text();
    out.type = in.number<std::uint32_t>();
    std::uint64_t count = 1;
    if (out.type == kArray) {
      out.element = in.number<std::uint32_t>();
      count = in.number<std::uint64_t>();
    }
    const std::uint32_t type = out.type == kArray ? out.element : out.type;
    for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
      if (type == kString) {
        out.strings.push_back(in.text());
      } else {
        const auto bytes = in.take(type < kTypes && kTypeBytes[type] > 0 ? kTypeBytes[type] : UINT64_MAX);
        out.numbers.emplace_back(bytes.begin(), bytes.end());
      }
    }
    return out;
  }

  void change_pair(Pair& p, Random& random) {
    switch (random.below(8)) {
      case 0:
        random.text(p.key);
        return;
      case 1:
        random.change(p.type);
        return;
      case 2:
        random.change(p.element);
        return;
      case 3:  // the value of another key
        if (const Pair& other = random.of(pairs_); &other != &p) {
          p.strings = other.strings;
          p.numbers = other.numbers;
          p.type = other.type;
          p.element = other.element;
        }
        return;
      case 4:
        if (p.of_strings())
          random.rearrange(p.strings);
        else
          random.rearrange(p.numbers);
        return;
      default:
        if (!p.strings.empty()) {
          std::string& s = random.of(p.strings);
          if (random.one_in(4))
            s = random.of(p.strings);
          else
            random.text(s);
        } else if (!p.numbers.empty()) {
          Blob& bytes = random.of(p.numbers);
          std::int64_t value = 0;
          std::memcpy(&value, bytes.data(), bytes.size());
          random.change(value);
          std::memcpy(bytes.data(), &value, bytes.size());
        }
    }
  }

  static void tensor(Tensor& t, Random& random) {
    switch (random.below(5)) {
      case 0:
        random.text(t.name);
        return;
      case 1:
        t.type = static_cast<std::uint32_t>(random.below(45));
        return;
      case 2:
        random.change(t.offset);
        return;
      case 3:
        random.rearrange(t.sizes);
        return;
      default:
        if (!t.sizes.empty()) random.change(random.of(t.sizes));
    }
  }

  std::uint32_t magic_ = 0, version_ = 0;
  std::uint64_t more_pairs_ = 0, more_tensors_ = 0;  // than there are
  std::vector<Pair> pairs_;
  std::vector<Tensor> tensors_;
  Blob data_;
};

// --- zip ---

std::uint32_t crc32(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~0U;
  for (const std::byte b : bytes) {
    crc ^= std::to_integer<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;

// The stored entries in front of an archive's directory.
std::vector<std::pair<std::string, Blob>> entries_of(std::span<const std::byte> file) {
  std::vector<std::pair<std::string, Blob>> out;
  for (Reader in(file); in.number<std::uint32_t>() == kLocal && out.size() < 64;) {
    in.take(4);
    const auto method = in.number<std::uint16_t>();
    in.take(8);
    const auto bytes = in.number<std::uint32_t>();
    in.take(4);
    const auto name_bytes = in.number<std::uint16_t>(), extra = in.number<std::uint16_t>();
    const auto name = in.take(name_bytes);
    in.take(extra);
    const auto content = in.take(bytes);
    if (in.failed() || method != 0) return {};
    out.emplace_back(std::string(reinterpret_cast<const char*>(name.data()), name.size()),
                     Blob(content.begin(), content.end()));
  }
  return out;
}

void change_npy(Blob& npy, Random& random) {
  // Magic, version, length of the header, header, data.
  constexpr std::size_t kHead = 10;
  std::uint16_t length = 0;
  if (npy.size() >= kHead) std::memcpy(&length, npy.data() + 8, sizeof(length));
  if (npy.size() < kHead + length || random.one_in(8)) {
    npy = mutate_bytes(npy, random);
    return;
  }
  std::string header(reinterpret_cast<const char*>(npy.data()) + kHead, length);
  constexpr std::array kWords = {"'<f4'",
                                 "'>f8'",
                                 "'|b1'",
                                 "'<f2'",
                                 "'|V2'",
                                 "'<u2'",
                                 "'<c8'",
                                 "'|O'",
                                 "True",
                                 "False",
                                 "(",
                                 ")",
                                 "(2, 3)",
                                 "(2**62,)",
                                 "4611686018427387904",
                                 "-1",
                                 "0",
                                 ",",
                                 "{",
                                 "}",
                                 "'descr'",
                                 "'shape'",
                                 "'fortran_order'",
                                 "()",
                                 "\\x00"};
  switch (random.below(4)) {
    case 0:
      random.text(header);
      break;
    case 1: {
      const std::size_t at = random.below(header.size() + 1);
      header.insert(at, kWords[random.below(kWords.size())]);
      break;
    }
    case 2: {
      const std::size_t at = header.find_first_of("'(", random.below(header.size() + 1));
      if (at != std::string::npos) {
        const std::size_t end = header.find_first_of("')", at + 1);
        header.replace(at, end == std::string::npos ? end : end + 1 - at, kWords[random.below(kWords.size())]);
      }
      break;
    }
    default:
      if (const std::size_t at = header.find_first_of("0123456789"); at != std::string::npos)
        header.replace(at, 1, std::to_string(random.integer(header[at] - '0')));
  }
  const Blob data(npy.begin() + kHead + length, npy.end());
  npy.resize(kHead);
  length =
      static_cast<std::uint16_t>(random.one_in(10) ? random.integer(length) : static_cast<std::int64_t>(header.size()));
  std::memcpy(npy.data() + 8, &length, sizeof(length));
  const auto text = std::as_bytes(std::span(header));
  npy.insert(npy.end(), text.begin(), text.end());
  npy.insert(npy.end(), data.begin(), data.end());
}

void sign(Blob& file) {
  const auto digest = sha256(std::span(file).first(file.size() - kDigest));
  std::memcpy(file.data() + file.size() - kDigest, digest.data(), kDigest);
}

}  // namespace

Blob mutate_gguf(std::span<const std::byte> file, std::uint64_t seed) {
  Random random(seed);
  Gguf parsed;
  if (random.one_in(20) || !parsed.read(file)) return mutate_bytes(file, random);
  for (std::size_t n = 1 + random.below(3); n > 0; --n) parsed.change(random);
  return parsed.written();
}

Blob mutate_safetensors(std::span<const std::byte> file, std::uint64_t seed) {
  using Json = nlohmann::ordered_json;
  Random random(seed);
  Reader in(file);
  const std::string head = in.text();
  Json json = in.failed() || random.one_in(20) ? Json() : Json::parse(head, nullptr, false);
  if (!json.is_object() || json.empty()) return mutate_bytes(file, random);
  Blob data(in.left().begin(), in.left().end());
  auto at = json.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random.below(json.size())));
  Json& entry = at.value();
  if (!entry.is_object()) entry = Json::object();
  constexpr std::array kTypes = {"F32", "F16", "BF16", "F64", "I8", "U8", "I64", "BOOL", "F8_E4M3", "", "f32"};
  switch (random.below(9)) {
    case 0:
      entry["dtype"] = kTypes[random.below(kTypes.size())];
      break;
    case 1:
    case 2:
    case 3:
      if (Json& list = entry[random.one_in(2) ? "shape" : "data_offsets"]; list.is_array() && !list.empty()) {
        Json& number = list[random.below(list.size())];
        const std::int64_t changed = random.integer(number.is_number_integer() ? number.get<std::int64_t>() : 0);
        number = random.one_in(10)  ? Json(random.real(2))
                 : random.one_in(4) ? Json(static_cast<std::uint64_t>(changed))
                                    : Json(changed);
      }
      break;
    case 4:
      if (Json& list = entry["shape"]; list.is_array())
        if (auto& items = list.get_ref<Json::array_t&>(); !random.rearrange(items)) items.push_back(random.integer(1));
      break;
    case 5: {
      const std::string name = at.key();
      std::string other = name;
      random.text(other);
      Json value = entry;
      json[other] = std::move(value);
      break;
    }
    case 6:
      json.erase(at.key());
      break;
    case 7:
      data = mutate_bytes(data, random);
      break;
    default:
      json["__metadata__"] = random.one_in(2) ? Json{{"format", "pt"}} : Json(random.integer(0));
  }
  Writer out;
  out.text(
      json.dump(-1, ' ', false, random.one_in(2) ? Json::error_handler_t::ignore : Json::error_handler_t::replace));
  out.raw(data);
  if (random.one_in(12)) {
    std::uint64_t length = 0;
    std::memcpy(&length, out.out.data(), sizeof(length));
    random.change(length);
    std::memcpy(out.out.data(), &length, sizeof(length));
  }
  return std::move(out.out);
}

Blob mutate_ptd(std::span<const std::byte> file, std::uint64_t seed) {
  Random random(seed);
  if (random.one_in(3)) return mutate_bytes(file, random);
  Blob out(file.begin(), file.end());
  // Offsets, sizes and tables are numbers of four and eight bytes, in front.
  for (std::size_t n = 1 + random.below(2); n > 0; --n)
    change_word(std::span(out).first(std::min<std::size_t>(out.size(), 512)), random);
  return out;
}

Blob make_npz(const std::vector<std::pair<std::string, Blob>>& entries) {
  Writer out, directory;
  for (const auto& [name, content] : entries) {
    const auto at = static_cast<std::uint32_t>(out.out.size());
    const auto bytes = static_cast<std::uint32_t>(content.size());
    const auto length = static_cast<std::uint16_t>(name.size());
    const std::uint32_t crc = crc32(content);
    const auto head = [&](Writer& to) {  // common to both places
      to.number<std::uint16_t>(20);
      to.number<std::uint16_t>(0);
      to.number<std::uint16_t>(0);
      to.number<std::uint32_t>(0x21 << 16);
      to.number(crc);
      to.number(bytes);
      to.number(bytes);
      to.number(length);
      to.number<std::uint16_t>(0);
    };
    out.number(kLocal);
    head(out);
    out.raw(std::as_bytes(std::span(name)));
    out.raw(content);
    directory.number(kCentral);
    directory.number<std::uint16_t>(20);
    head(directory);
    directory.number<std::uint16_t>(0);
    directory.number<std::uint16_t>(0);
    directory.number<std::uint16_t>(0);
    directory.number<std::uint32_t>(0);
    directory.number(at);
    directory.raw(std::as_bytes(std::span(name)));
  }
  const auto at = static_cast<std::uint32_t>(out.out.size());
  out.raw(directory.out);
  const auto count = static_cast<std::uint16_t>(entries.size());
  out.number(kEnd);
  out.number<std::uint32_t>(0);
  out.number(count);
  out.number(count);
  out.number(static_cast<std::uint32_t>(directory.out.size()));
  out.number(at);
  out.number<std::uint16_t>(0);
  return std::move(out.out);
}

Blob mutate_npz(std::span<const std::byte> file, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::pair<std::string, Blob>> entries = entries_of(file);
  if (entries.empty() || random.one_in(10)) return mutate_bytes(file, random);
  const std::size_t which = random.below(10);
  if (which == 0)
    random.rearrange(entries);
  else if (which == 1)
    random.text(random.of(entries).first);
  else
    change_npy(random.of(entries).second, random);
  Blob out = make_npz(entries);
  if (random.one_in(10)) change_word(out, random);
  return out;
}

Blob mutate_audio(std::span<const std::byte> file, std::uint64_t seed) {
  constexpr std::size_t kHead = 60;
  Random random(seed);
  if (file.size() < kHead || random.one_in(3)) return mutate_bytes(file, random);
  Blob head(file.begin(), file.begin() + kHead);
  for (std::size_t n = 1 + random.below(3); n > 0; --n) change_word(head, random);
  head.insert(head.end(), file.begin() + kHead, file.end());
  return head;
}

Blob mutate_signed(std::span<const std::byte> file, std::uint64_t seed) {
  Random random(seed);
  if (file.size() < kDigest || random.one_in(20)) return mutate_bytes(file, random);
  Blob content(file.begin(), file.end() - kDigest);
  if (random.one_in(4))
    content = mutate_bytes(content, random);
  else
    for (std::size_t n = 1 + random.below(3); n > 0; --n) change_word(content, random);
  content.resize(content.size() + kDigest);
  sign(content);
  return content;
}

Blob mutate_plan(std::span<const std::byte> file, std::uint64_t seed) {
  Random random(seed);
  const PlanOrigin origin = plan_origin("cpu");
  std::optional<StoredPlan> plan;
  try {
    plan = decode_stored_plan(file, origin, "a plan");
  } catch (const Error&) {
  }
  if (!plan || plan->lifetimes.empty() || random.one_in(5)) return mutate_signed(file, random.next());
  for (std::size_t n = random.one_in(2) ? 1 : 1 + random.below(3); n > 0; --n) {
    const std::size_t at = random.below(plan->lifetimes.size());
    switch (random.below(12)) {
      case 0:
        random.change(plan->lifetimes[at].bytes);
        break;
      case 1:
        random.change(random.one_in(2) ? plan->lifetimes[at].first : plan->lifetimes[at].last);
        break;
      case 2:
        random.change(random.one_in(2) ? plan->arena_bytes : random.of(plan->offsets));
        break;
      case 3:
        if (!plan->sizes.empty()) random.change(random.of(plan->sizes));
        break;
      case 4:
        random.one_in(2) ? random.rearrange(plan->offsets) : random.rearrange(plan->lifetimes);
        break;
      case 5:
        random.one_in(4) ? random.text(plan->method) : random.change(plan->threads);
        break;
      default: {  // aligned, and beside other buffers or on them
        std::int64_t& offset = plan->offsets[at % plan->offsets.size()];
        offset = static_cast<std::int64_t>(static_cast<std::uint64_t>(offset) + 64 * random.below(9) - 256);
      }
    }
    if (plan->lifetimes.empty() || plan->offsets.empty()) break;
  }
  return encode(*plan, origin);
}

Blob mutate_packed(std::span<const std::byte> file, std::uint64_t seed) {
  Random random(seed);
  constexpr std::size_t kHeadBytes = 16;  // where the length of the head is, its signature at the end included
  std::uint64_t head = 0;
  if (file.size() >= kHeadBytes + 8) std::memcpy(&head, file.data() + kHeadBytes, sizeof(head));
  if (head < kHeadBytes + 8 + kDigest || head > file.size() || random.one_in(20)) return mutate_bytes(file, random);
  Blob signed_head = [&] {
    Blob content(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(head));
    for (std::size_t n = 1 + random.below(3); n > 0; --n)
      change_word(std::span(content).first(content.size() - kDigest), random);
    sign(content);
    return content;
  }();
  signed_head.insert(signed_head.end(), file.begin() + static_cast<std::ptrdiff_t>(head), file.end());
  return signed_head;
}

}  // namespace graft::fuzz
