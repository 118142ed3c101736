#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/json.h"
#include "weight/weights.h"

namespace graft {
namespace {

constexpr std::size_t kLengthBytes = 8;            // of the header's length, in front of it
constexpr std::uint64_t kMaxHeader = 100'000'000;  // bytes, as the reference implementation has it
constexpr std::string_view kMetadata = "__metadata__";

std::optional<DType> to_dtype(std::string_view type) {
  constexpr std::pair<std::string_view, DType> known[] = {
      {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}, {"F64", DType::f64}, {"I8", DType::i8},
      {"U8", DType::u8},   {"I16", DType::i16}, {"I32", DType::i32},   {"I64", DType::i64}, {"BOOL", DType::b8}};
  for (const auto& [name, dtype] : known)
    if (name == type) return dtype;
  return std::nullopt;
}

// Sizes and offsets are non-negative integers that fit 63 bits.
std::uint64_t number(const Json& value, const std::string& owner) {
  GRAFT_CHECK(InvalidProgram, value.is_number_unsigned() && value.get<std::uint64_t>() <= INT64_MAX, owner,
              ": expected a size or an offset, found ", value.dump(-1, ' ', true, Json::error_handler_t::replace));
  return value.get<std::uint64_t>();
}

StoredTensor tensor(const Json& entry, std::span<const std::byte> data, const std::string& owner) {
  const auto field = [&](const char* name, Json::value_t kind) -> const Json& {
    const auto found = entry.is_object() ? entry.find(name) : entry.end();
    GRAFT_CHECK(InvalidProgram, found != entry.end() && found->type() == kind, owner, ": its '", name,
                "' is missing or of another kind");
    return *found;
  };
  StoredTensor out;
  out.type = field("dtype", Json::value_t::string).get<std::string>();
  const std::optional<DType> dtype = to_dtype(out.type);
  if (dtype) out.stored = Stored::as(*dtype);
  const Json& offsets = field("data_offsets", Json::value_t::array);
  GRAFT_CHECK(InvalidProgram, offsets.size() == 2, owner, ": expected two data_offsets, found ", offsets.size());
  const std::uint64_t begin = number(offsets[0], owner);
  const std::uint64_t end = number(offsets[1], owner);
  GRAFT_CHECK(InvalidProgram, begin <= end && end <= data.size(), owner, ": bytes ", begin, " to ", end,
              " do not lie in the ", data.size(), " bytes of data there are: the file is truncated or damaged");
  out.bytes = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  const Json& sizes = field("shape", Json::value_t::array);
  if (!dtype || sizes.size() > static_cast<std::size_t>(kMaxRank)) return out;  // refused when a weight has that name
  Shape shape;
  std::uint64_t bytes = byte_size(*dtype);
  for (const Json& size : sizes) {
    const std::uint64_t value = number(size, owner);
    shape.push_back(static_cast<std::int64_t>(value));
    GRAFT_CHECK(InvalidProgram, !__builtin_mul_overflow(bytes, value, &bytes), owner, ": the size of ", shape.str(),
                " does not fit 64 bits");
  }
  GRAFT_CHECK(InvalidProgram, bytes == out.bytes.size(), owner, ": ", out.type, shape.str(), " takes ", bytes,
              " bytes, its data_offsets hold ", out.bytes.size());
  out.shape = shape;
  return out;
}

}  // namespace

// Eight bytes with the length of a JSON object, the object, the tensors' bytes.
WeightFile read_safetensors(std::shared_ptr<const MappedFile> file) {
  const std::span<const std::byte> bytes = file->bytes();
  GRAFT_CHECK(InvalidProgram, bytes.size() >= kLengthBytes, "a safetensors file has at least ", kLengthBytes,
              " bytes, found ", bytes.size());
  std::uint64_t length = 0;
  const std::vector<std::byte> prefix = file->read(0, kLengthBytes);
  std::memcpy(&length, prefix.data(), kLengthBytes);
  GRAFT_CHECK(InvalidProgram, length <= kMaxHeader && length <= bytes.size() - kLengthBytes, "its header of ", length,
              " bytes reaches beyond the ", bytes.size(), " bytes there are, or is larger than ", kMaxHeader,
              ": the file is truncated or damaged");
  const std::vector<std::byte> text = file->read(kLengthBytes, static_cast<std::size_t>(length));
  JsonRules rules;
  rules.unique_depth = 1;
  rules.refuse = [](const std::string& message) { throw InvalidProgram("its header " + message); };
  Json header;
  try {
    header = read_json<Json>({reinterpret_cast<const char*>(text.data()), text.size()}, rules);
  } catch (const Json::exception&) {
    throw InvalidProgram(str("its header of ", length, " bytes is not JSON"));
  }
  GRAFT_CHECK(InvalidProgram, header.is_object(), "its header must be a JSON object");
  WeightFile out{std::move(file), {}};
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) continue;
    out.tensors.emplace(
        name, tensor(entry, bytes.subspan(kLengthBytes + static_cast<std::size_t>(length)), "tensor '" + name + "'"));
  }
  return out;
}

}  // namespace graft
