#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/npz.h"
#include "feed.h"
#include "graft/audio.h"
#include "graft/error.h"
#include "graft/graft.h"
#include "graft/image.h"
#include "graft/tokenizer.h"
#include "mutate.h"
#include "seeds.h"
#include "text/pipeline.h"
#include "weight/gguf.h"
#include "weight/packed_file.h"
#include "weight/weights.h"

namespace graft::fuzz {
namespace {

constexpr std::int64_t kTexts = 1 << 14;  // ids, steps and bytes of templates

TextLimits small_limits() {
  TextLimits limits;
  limits.max_vocabulary = kTexts;
  limits.max_template_steps = 4 * kTexts;
  limits.max_template_bytes = 4 * kTexts;
  return limits;
}

// Readers that are given memory may rely on its alignment, as on that of a mapping.
std::shared_ptr<const MappedFile> in_memory(std::span<const std::byte> bytes) {
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  auto lines = std::make_shared<std::vector<Line>>(bytes.size() / sizeof(Line) + 1);
  auto* data = lines->front().bytes;
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  return MappedFile::of_memory({data, bytes.size()}, "fuzzed", lines);
}

// A file in memory, for readers of paths.
const std::string& on_disk(std::span<const std::byte> bytes) {
  static const std::string path = [] {
    const bool shared = std::filesystem::exists("/dev/shm");
    return (shared ? std::string("/dev/shm") : std::filesystem::temp_directory_path().string()) + "/graft-fuzz-" +
           std::to_string(::getpid());
  }();
  static const struct Removed {
    ~Removed() { std::filesystem::remove(path); }
  } removed;
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return path;
}

// Its value is needed, so what it is made of is read.
void look_at(unsigned value) { asm volatile("" : : "r"(value)); }

// Errors of graft's are what is expected.
template <typename Work>
bool done(const Work& work) {
  try {
    work();
    return true;
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    return false;
  }
}

// The bytes of all tensors, as their weights would find them.
bool find_all(WeightFile file) {
  std::vector<ir::Weight> wanted;
  unsigned sum = 0;
  for (const auto& [name, tensor] : file.tensors) {
    ir::Weight weight;
    weight.key = weight.fqn = name;
    weight.dtype = DType::f32;
    weight.shape = tensor.shape.value_or(Shape{});
    weight.byte_size = tensor.bytes.size();
    wanted.push_back(std::move(weight));
    for (const std::byte b : tensor.bytes) sum += std::to_integer<unsigned>(b);
  }
  look_at(sum);
  WeightStore store({in_memory({}), {}});
  bool all = true;
  WeightStore of_file(std::move(file));
  for (const ir::Weight& weight : wanted) {
    all &= done([&] { of_file.find(weight); });
    done([&] { store.find(weight); });
  }
  return all && !wanted.empty();
}

void use(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<std::int64_t> ids = tokenizer.encode(text);
  tokenizer.decode(ids);
  Detokenizer stream(std::shared_ptr<const Tokenizer>(&tokenizer, [](const Tokenizer*) {}));
  for (const std::int64_t id : ids) stream.add(id);
  stream.finish();
  for (std::int64_t id = -1; id <= tokenizer.size() && id < 300; ++id) {
    done([&] { tokenizer.find(tokenizer.piece(id)); });
    done([&] { tokenizer.decode(std::vector<std::int64_t>{id}); });
  }
  tokenizer.identity();
}

constexpr const char* kMessages =
    R"({"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]})";

}  // namespace

Fate feed_tokenizer(std::span<const std::byte> input) {
  std::vector<std::string> parts = sections(input);
  parts.resize(3);
  Fate fate;
  std::shared_ptr<const Tokenizer> tokenizer;
  fate.verified = done([&] { tokenizer = Tokenizer::from_json(parts[0], parts[1], small_limits()); });
  if (!fate.verified) return fate;
  fate.planned = done([&] { use(*tokenizer, parts[2] + " a b ab\u00e9 <x> \u2581a\n"); });
  fate.ran = done([&] { tokenizer->apply_chat_template(kMessages); }) || tokenizer->chat_template().empty();
  return fate;
}

Fate feed_template(std::span<const std::byte> input) {
  static const std::shared_ptr<const Tokenizer> tokenizer =
      Tokenizer::from_json(R"({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}})",
                           R"({"bos_token": "a"})", small_limits());
  std::vector<std::string> parts = sections(input);
  parts.resize(2);
  Fate fate;
  try {
    tokenizer->apply_chat_template(parts[1].empty() ? kMessages : parts[1], parts[0]);
    fate.verified = fate.planned = fate.ran = true;
  } catch (const InternalError&) {
    throw;
  } catch (const InvalidProgram&) {  // cannot be parsed
  } catch (const Error&) {
    fate.verified = true;
  }
  return fate;
}

Fate feed_gguf(std::span<const std::byte> file) {
  Fate fate;
  done([&] {
    WeightFile weights = read_gguf(in_memory(file));
    fate.verified = true;
    fate.planned = find_all(std::move(weights));
  });
  done([&] { open_gguf(on_disk(file)); });
  done([&] {
    const auto tokenizer = text::read_gguf_tokenizer(file, small_limits());
    fate.planned = true;
    use(*tokenizer, "a b ab\u00e9 <x> \u2581a\n");
    if (!tokenizer->chat_template().empty()) tokenizer->apply_chat_template(kMessages);
    fate.ran = true;
  });
  return fate;
}

Fate feed_safetensors(std::span<const std::byte> file) {
  Fate fate;
  done([&] {
    const Loading watched(file.size());
    WeightFile weights = read_safetensors(in_memory(file));
    fate.verified = fate.planned = true;
    fate.ran = find_all(std::move(weights));
  });
  return fate;
}

Fate feed_ptd(std::span<const std::byte> file) {
  Fate fate;
  done([&] {
    const Loading watched(file.size());
    WeightFile weights = read_ptd(in_memory(file));
    fate.verified = fate.planned = true;
    fate.ran = find_all(std::move(weights));
  });
  return fate;
}

Fate feed_npz(std::span<const std::byte> file) {
  Fate fate;
  done([&] {
    const std::vector<cli::NamedArray> arrays = cli::read_npz(on_disk(file));
    fate.verified = fate.planned = true;
    for (const cli::NamedArray& one : arrays) {
      const TensorView& t = one.array.tensor;
      const std::size_t count = TensorDesc(t.dtype, t.shape).byte_count();
      if (count > 0) look_at(std::to_integer<unsigned>(static_cast<const std::byte*>(t.data)[count - 1]));
    }
    fate.ran = true;
  });
  return fate;
}

Fate feed_audio(std::span<const std::byte> file) {
  constexpr std::size_t kShort = 4096;
  Fate fate;
  done([&] {
    const Audio audio = decode_audio(file);
    fate.verified = fate.planned = true;
    for (const float sample : audio.samples) look_at(std::bit_cast<unsigned>(sample));
    if (audio.samples.size() <= kShort && audio.sampling_rate <= 4 * 16000)
      resample(audio.samples, audio.sampling_rate, 16000);
    fate.ran = true;
  });
  return fate;
}

Fate feed_image(std::span<const std::byte> file) {
  constexpr std::int64_t kSmall = 1 << 16;
  Fate fate;
  done([&] {
    const Image image = decode_image(file);
    fate.verified = fate.planned = true;
    for (const std::uint8_t byte : image.pixels) look_at(byte);
    if (image.height * image.width <= kSmall) {
      ImageProcessing processing;
      processing.shortest_edge = 9;
      processing.crop = {8, 10};
      processing.resample = static_cast<Resample>(file.size() % 6);
      look_at(std::bit_cast<unsigned>(ImageProcessor(processing).pixels(image).back()));
    }
    fate.ran = true;
  });
  return fate;
}

Fate feed_packed(std::span<const std::byte> file) {
  Fate fate;
  done([&] {
    const Loading watched(file.size());
    const auto packed = PackedFile::open(on_disk(file), std::string(kPackedOrigin), /*verify=*/false);
    fate.verified = fate.planned = true;
    for (const auto& [digest, size] : packed_seed_entries())
      if (const auto memory = packed->find(digest, size)) {
        for (std::size_t i = 0; i < size; ++i) look_at(std::to_integer<unsigned>(memory->data()[i]));
        fate.ran = true;
      }
  });
  done([&] { PackedFile::open(on_disk(file), std::string(kPackedOrigin), /*verify=*/true); });
  return fate;
}

Fate feed_plan(std::span<const std::byte> file) {
  Fate fate;
  done([&] {
    const Loading watched(file.size());
    plan_with(file, fate.verified, fate.ran);
    fate.planned = fate.verified;  // one of another build is set aside
  });
  return fate;
}

Fate feed_states(std::span<const std::byte> file) {
  Fate fate;
  const std::string& path = on_disk(file);
  for (Session* session : sessions_with_states())
    done([&] {
      {
        const Loading watched(file.size());
        session->restore(path);
      }
      fate.verified = fate.planned = true;
      use_states(*session);
      fate.ran = true;
    });
  return fate;
}

}  // namespace graft::fuzz
