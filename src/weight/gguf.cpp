#include <gguf.h>

#include <exception>
#include <memory>

#include "base/check.h"
#include "weight/weights.h"

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

// ggml's reader reads through this callback. It must not throw: an exception waits until the reader gives up.
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

}  // namespace

WeightFile read_gguf(std::shared_ptr<const MappedFile> file) {
  const std::size_t size = file->bytes().size();
  Reading reading{file.get(), nullptr};
  const std::unique_ptr<gguf_context, Free> context(
      gguf_init_from_callback(&read_part, &reading, 0, size, {/*no_alloc=*/true, /*ctx=*/nullptr}));
  if (reading.error) std::rethrow_exception(reading.error);
  GRAFT_CHECK(InvalidProgram, context, "ggml cannot read its head: the file is truncated, damaged, or has names of ",
              GGML_MAX_NAME, " bytes and more (GRAFT_LOG=error shows ggml's reason)");
  const std::size_t base = gguf_get_data_offset(context.get());
  WeightFile out{std::move(file), {}};
  for (std::int64_t i = 0; i < gguf_get_n_tensors(context.get()); ++i) {
    const std::string name = gguf_get_tensor_name(context.get(), i);
    const ggml_type type = gguf_get_tensor_type(context.get(), i);
    const std::size_t offset = gguf_get_tensor_offset(context.get(), i);
    const std::size_t bytes = gguf_get_tensor_size(context.get(), i);
    GRAFT_CHECK(InvalidProgram, base <= size && offset <= size - base && bytes <= size - base - offset, "tensor '",
                name, "' (", bytes, " bytes at ", base, " + ", offset, ") reaches beyond the ", size,
                " bytes there are: the file is truncated or damaged");
    StoredTensor tensor;
    tensor.bytes = out.file->bytes().subspan(base + offset, bytes);
    tensor.type = ggml_type_name(type);
    tensor.stored = to_stored(type);
    if (tensor.stored) tensor.shape = shape_of(gguf_get_tensor_ne(context.get(), i));
    out.tensors.emplace(name, std::move(tensor));
  }
  return out;
}

}  // namespace graft
