#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "feed.h"
#include "graft/error.h"
#include "random.h"
#include "seeds.h"
#include "stage/step.h"

// Messages between a driver and its stages: a header, numbers and the bytes of tensors.
namespace graft::fuzz {
namespace {

using stage::Header;
using stage::Kind;

Blob message(Kind kind, std::span<const std::byte> meta, std::uint64_t payload) {
  Blob out(Header::kBytes);
  Header{kind, static_cast<std::uint32_t>(meta.size()), payload}.write(std::span(out).first<Header::kBytes>());
  out.insert(out.end(), meta.begin(), meta.end());
  out.resize(out.size() + payload, std::byte{1});
  return out;
}

// Views of all bytes of a payload.
void look_at(std::span<const TensorDesc> tensors, std::span<std::byte> payload) {
  unsigned sum = 0;
  for (const Value& value : stage::in_payload(tensors, payload)) {
    const std::uint64_t bytes = TensorDesc(value.tensor.dtype, value.tensor.shape).byte_count();
    for (std::uint64_t i = 0; i < bytes; ++i)
      sum += std::to_integer<unsigned>(static_cast<std::byte*>(value.tensor.data)[i]);
  }
  asm volatile("" : : "r"(sum));  // so that they are read
}

}  // namespace

std::vector<Blob> messages() {
  const std::vector<std::int64_t> sequences{2, 0}, ids{1, 2, 3, 4, 5, 6}, positions{0, 1, 2, 3, 4, 5};
  const std::vector<TensorDesc> tensors{TensorDesc(DType::f32, Shape{2, 3, 4}), TensorDesc(DType::b8, Shape{2})};
  const stage::Step step{3, 1, sequences, ids, positions, positions, tensors};
  const stage::Result result{{0, 2}, tensors};
  const std::vector<std::int64_t> of_step = step.numbers(), of_result = result.numbers();
  const std::uint64_t bytes = stage::payload_bytes(tensors);
  stage::Opening opening{1, 2, "0123", {}};
  opening.kv.rows = 2;
  opening.kv.length = 64;
  return {message(Kind::open, opening.bytes(), 0), message(Kind::prepare, std::as_bytes(std::span(of_step)), bytes),
          message(Kind::run, std::as_bytes(std::span(of_step)), bytes),
          message(Kind::done, std::as_bytes(std::span(of_result)), bytes),
          message(Kind::failed, stage::failure_of(Unavailable("gone")), 0)};
}

Fate feed_message(std::span<const std::byte> bytes) {
  Fate fate;
  try {
    const Loading watched(bytes.size());
    if (bytes.size() < Header::kBytes) return fate;
    const Header header = Header::read(bytes.first<Header::kBytes>(), stage::kProven);
    const std::span<const std::byte> rest = bytes.subspan(Header::kBytes);
    if (header.meta > rest.size() || header.payload != rest.size() - header.meta) return fate;  // the channel waits
    fate.verified = true;
    const Blob meta(rest.begin(), rest.begin() + header.meta);  // aligned, as the channel has it
    Blob payload(rest.begin() + header.meta, rest.end());
    switch (header.kind) {
      case Kind::open:
        stage::Opening::of(meta);
        fate.planned = true;
        break;
      case Kind::prepare:
      case Kind::run: {
        const stage::Step step = stage::Step::of(meta);
        fate.planned = true;
        std::vector<std::int64_t> kept;
        stage::inputs_of(step, kept, {});
        look_at(step.tensors, payload);
        break;
      }
      case Kind::done: {
        const stage::Result result = stage::Result::of(meta);
        fate.planned = true;
        look_at(result.tensors, payload);
        break;
      }
      case Kind::failed:
        try {
          stage::throw_failure(meta, "stage 1");
        } catch (const stage::Refused&) {
          throw;
        } catch (const Error&) {  // also a message that says InternalError
          fate.planned = true;
        }
        break;
      default:
        return fate;
    }
    fate.ran = true;
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
  }
  return fate;
}

Blob mutate_message(std::span<const std::byte> bytes, std::uint64_t seed) {
  Random random(seed);
  if (bytes.size() < Header::kBytes || random.one_in(8)) return mutate_bytes(bytes, random);
  Header header;
  try {
    header = Header::read(bytes.first<Header::kBytes>(), stage::kProven);
  } catch (const Error&) {
    return mutate_bytes(bytes, random);
  }
  const std::span<const std::byte> rest = bytes.subspan(Header::kBytes);
  const std::size_t meta_bytes = std::min<std::size_t>(header.meta, rest.size());
  Blob meta(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(meta_bytes));
  std::uint64_t payload = rest.size() - meta_bytes;
  if (header.kind == Kind::open || header.kind == Kind::failed) {
    meta = mutate_bytes(meta, random);
  } else {
    std::vector<std::int64_t> numbers(meta.size() / sizeof(std::int64_t));
    std::memcpy(numbers.data(), meta.data(), numbers.size() * sizeof(std::int64_t));
    for (std::size_t n = 1 + random.below(3); n > 0; --n) {
      if (numbers.empty() || random.one_in(6)) {
        random.rearrange(numbers);
      } else {
        random.change(random.of(numbers));
      }
    }
    const auto changed = std::as_bytes(std::span(numbers));
    meta.assign(changed.begin(), changed.end());
  }
  if (random.one_in(8)) header.kind = static_cast<Kind>(random.below(12));
  if (random.one_in(4)) payload = random.below(256);
  Blob out = message(header.kind, meta, payload);
  if (random.one_in(16)) out[random.below(Header::kBytes)] = static_cast<std::byte>(random.below(256));
  return out;
}

}  // namespace graft::fuzz
