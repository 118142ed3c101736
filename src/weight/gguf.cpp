#include "weight/gguf.h"

#include <gguf.h>

#include <exception>
#include <memory>
#include <set>
#include <string_view>

#include "base/check.h"

namespace graft {
namespace {

std::optional<DType> to_dtype(ggml_type type) {
  switch (type) {
    case GGML_TYPE_F32:
      return DType::f32;
    case GGML_TYPE_F16:
      return DType::f16;
    case GGML_TYPE_BF16:
      return DType::bf16;
    case GGML_TYPE_F64:
      return DType::f64;
    case GGML_TYPE_I8:
      return DType::i8;
    case GGML_TYPE_I16:
      return DType::i16;
    case GGML_TYPE_I32:
      return DType::i32;
    case GGML_TYPE_I64:
      return DType::i64;
    default:
      return std::nullopt;
  }
}

std::optional<Stored> to_stored(ggml_type type) {
  if (const std::optional<DType> dtype = to_dtype(type)) return Stored::as(*dtype);
  if (const std::optional<BlockType> block = find_block_type(ggml_type_name(type))) return Stored::as_blocks(*block);
  return std::nullopt;
}

struct Reading {
  const MappedFile* file;
  std::exception_ptr error;
};

// ggml's reader calls this. It must not throw: an exception is kept until the reader gives up.
std::size_t read_part(void* user, void* out, std::uint64_t offset, std::size_t count) {
  auto& reading = *static_cast<Reading*>(user);
  try {
    if (offset > reading.file->bytes().size() || count > reading.file->bytes().size() - offset) return 0;
    reading.file->read_into(offset, {static_cast<std::byte*>(out), count});
    return count;
  } catch (...) {
    reading.error = std::current_exception();
    return 0;
  }
}

struct Free {
  void operator()(gguf_context* context) const { gguf_free(context); }
};

// ggml's sizes are innermost first, and always four.
Shape shape_of(const std::int64_t* sizes) {
  Shape out;
  for (int d = GGML_MAX_DIMS - 1; d >= 0; --d) out.push_back(sizes[d]);
  return out;
}

using Head = std::unique_ptr<gguf_context, Free>;

// ggml reads keys with zero bytes and shows what stands before them; gguf_set_kv ends the process for empty ones, and
// drops all but the last of equal ones.
void check_keys(const gguf_context* head) {
  std::set<std::string_view> keys;
  for (std::int64_t i = 0; i < gguf_get_n_kv(head); ++i) {
    const std::string_view key = gguf_get_key(head, i);
    GRAFT_CHECK(InvalidProgram, !key.empty(), "key ", i, " is empty or begins with a zero byte");
    GRAFT_CHECK(InvalidProgram, keys.insert(key).second, "two keys are '", key, "' up to a zero byte");
  }
}

Head read_head(const MappedFile& file) {
  Reading reading{&file, nullptr};
  Head head(
      gguf_init_from_callback(&read_part, &reading, 0, file.bytes().size(), {/*no_alloc=*/true, /*ctx=*/nullptr}));
  if (reading.error) std::rethrow_exception(reading.error);
  GRAFT_CHECK(InvalidProgram, head, "ggml cannot read its head: the file is truncated, damaged, or has names of ",
              GGML_MAX_NAME, " bytes and more (GRAFT_LOG=error shows ggml's reason)");
  check_keys(head.get());
  return head;
}

WeightFile tensors_of(const gguf_context* head, std::shared_ptr<const MappedFile> file) {
  const std::size_t size = file->bytes().size(), base = gguf_get_data_offset(head);
  WeightFile out{std::move(file), {}};
  for (std::int64_t i = 0; i < gguf_get_n_tensors(head); ++i) {
    const std::string name = gguf_get_tensor_name(head, i);
    const ggml_type type = gguf_get_tensor_type(head, i);
    const std::size_t offset = gguf_get_tensor_offset(head, i);
    const std::size_t bytes = gguf_get_tensor_size(head, i);
    GRAFT_CHECK(InvalidProgram, base <= size && offset <= size - base && bytes <= size - base - offset, "tensor '",
                name, "' (", bytes, " bytes at ", base, " + ", offset, ") reaches beyond the ", size,
                " bytes there are: the file is truncated or damaged");
    StoredTensor tensor;
    tensor.bytes = out.file->bytes().subspan(base + offset, bytes);
    tensor.type = ggml_type_name(type);
    tensor.stored = to_stored(type);
    if (tensor.stored) tensor.shape = shape_of(gguf_get_tensor_ne(head, i));
    out.tensors.emplace(name, std::move(tensor));
  }
  return out;
}

// Numbers of one of ggml's types, widened.
template <typename To, typename From>
std::vector<To> widened(const void* data, std::size_t count) {
  const auto* from = static_cast<const From*>(data);
  return count == 0 ? std::vector<To>() : std::vector<To>(from, from + count);
}

std::variant<std::vector<std::int64_t>, std::vector<std::uint64_t>, std::vector<double>> numbers_of(gguf_type type,
                                                                                                    const void* data,
                                                                                                    std::size_t count) {
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_BOOL:
      return widened<std::int64_t, std::uint8_t>(data, count);
    case GGUF_TYPE_INT8:
      return widened<std::int64_t, std::int8_t>(data, count);
    case GGUF_TYPE_UINT16:
      return widened<std::int64_t, std::uint16_t>(data, count);
    case GGUF_TYPE_INT16:
      return widened<std::int64_t, std::int16_t>(data, count);
    case GGUF_TYPE_UINT32:
      return widened<std::int64_t, std::uint32_t>(data, count);
    case GGUF_TYPE_INT32:
      return widened<std::int64_t, std::int32_t>(data, count);
    case GGUF_TYPE_INT64:
      return widened<std::int64_t, std::int64_t>(data, count);
    case GGUF_TYPE_UINT64:
      return widened<std::uint64_t, std::uint64_t>(data, count);
    case GGUF_TYPE_FLOAT32:
      return widened<double, float>(data, count);
    case GGUF_TYPE_FLOAT64:
      return widened<double, double>(data, count);
    default:
      throw InvalidProgram(str("a key has values of type ", static_cast<int>(type), ", which graft does not know"));
  }
}

GgufValue value_of(const gguf_context* head, std::int64_t i) {
  const gguf_type type = gguf_get_kv_type(head, i);
  if (type == GGUF_TYPE_STRING) return std::string(gguf_get_val_str(head, i));
  if (type == GGUF_TYPE_BOOL) return gguf_get_val_bool(head, i);
  if (type != GGUF_TYPE_ARRAY)
    return std::visit([](const auto& one) -> GgufValue { return one.front(); },
                      numbers_of(type, gguf_get_val_data(head, i), 1));
  const gguf_type element = gguf_get_arr_type(head, i);
  const std::size_t count = gguf_get_arr_n(head, i);
  if (element == GGUF_TYPE_STRING) return GgufStrings{count};
  return std::visit([](auto&& all) -> GgufValue { return std::move(all); },
                    numbers_of(element, count == 0 ? nullptr : gguf_get_arr_data(head, i), count));
}

std::string without_tensors(const gguf_context* head) {
  const Head alone(gguf_init_empty());
  gguf_set_kv(alone.get(), head);
  std::string out(gguf_get_meta_size(alone.get()), '\0');
  gguf_get_meta_data(alone.get(), out.data());
  return out;
}

}  // namespace

WeightFile read_gguf(std::shared_ptr<const MappedFile> file) {
  const Head head = read_head(*file);
  return tensors_of(head.get(), std::move(file));
}

GgufFile open_gguf(const std::string& path) { return gguf_of(MappedFile::open(path)); }

GgufFile gguf_of(std::shared_ptr<const MappedFile> file) {
  const Head head = read_head(*file);
  GgufFile out;
  for (std::int64_t i = 0; i < gguf_get_n_kv(head.get()); ++i)
    out.pairs.emplace_back(gguf_get_key(head.get(), i), value_of(head.get(), i));
  out.vocabulary = without_tensors(head.get());
  out.weights = tensors_of(head.get(), std::move(file));
  return out;
}

}  // namespace graft
