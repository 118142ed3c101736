// Decodes greedily with ExecuTorch's Module and a package of `graft export`; graft is inside it, as a delegate.
//
//   run_decoder FILE.pte COUNT ID... [--source ID...]
//
// Prints COUNT token ids that follow the ids given. With --source: of a model with an encoder, which reads these ids
// first. The methods "encode" and "forward" are one program, so that one finds what the other left in the cache.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/backend/options.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using executorch::aten::ScalarType;
using executorch::extension::from_blob;
using executorch::extension::Module;

int main(int argc, char** argv) {
  std::vector<std::int64_t> ids, source;
  std::vector<std::int64_t>* into = &ids;
  for (int i = 3; i < argc; ++i) {
    if (std::strcmp(argv[i], "--source") == 0) {
      into = &source;
    } else {
      into->push_back(std::atoll(argv[i]));
    }
  }
  if (ids.empty()) {
    std::fprintf(stderr, "usage: run_decoder FILE.pte COUNT ID... [--source ID...]\n");
    return 2;
  }
  executorch::runtime::runtime_init();
  Module module(argv[1], Module::LoadMode::Mmap);

  // What the package says, or graft by itself, these replace; executorch::runtime::set_option does it for all loads.
  executorch::runtime::BackendOptions<2> options;
  options.set_option("threads", 2);
  options.set_option("kv_type", "f32");
  executorch::runtime::LoadBackendOptionsMap by_backend;
  const auto failed = [](const char* what, executorch::runtime::Error error) {
    std::fprintf(stderr, "run_decoder: %s failed with ExecuTorch's error 0x%x\n", what, static_cast<unsigned>(error));
    return 1;
  };
  using executorch::runtime::Error;
  if (const Error error = by_backend.set_options("GraftBackend", options.view()); error != Error::Ok)
    return failed("set_options", error);
  for (const char* method : {"encode", "forward"}) {
    if (std::strcmp(method, "encode") == 0 && source.empty()) continue;
    if (const Error error = module.load_method(method, nullptr, nullptr, &by_backend); error != Error::Ok)
      return failed("load_method", error);
  }

  if (!source.empty()) {
    std::vector<std::int64_t> mask(source.size(), 1);
    const int length = static_cast<int>(source.size());
    const auto encoded = module.execute("encode", {from_blob(source.data(), {1, length}, ScalarType::Long),
                                                   from_blob(mask.data(), {1, length}, ScalarType::Long)});
    if (!encoded.ok()) return failed("encode", encoded.error());
  }
  std::int64_t position = 0;
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    const int length = static_cast<int>(ids.size());
    const auto outputs = module.execute(
        "forward", {from_blob(ids.data(), {1, length}, ScalarType::Long), from_blob(&position, {1}, ScalarType::Long)});
    if (!outputs.ok()) return failed("forward", outputs.error());
    const auto& logits = outputs->at(0).toTensor();
    const float* begin = logits.const_data_ptr<float>();
    position += length;
    ids = {std::max_element(begin, begin + logits.numel()) - begin};
    std::printf("%s%lld", i ? " " : "", static_cast<long long>(ids[0]));
  }
  std::printf("\n");
  return 0;
}
