// Runs a text encoder's package with ExecuTorch's Module; graft is inside it, as a delegate.
//
//   run_module FILE.pte LENGTH...
//
// Prints, for each length, the first vector that the method "forward" gives for that many token ids and a mask of ones:
// "7: 0.01 -0.2 ...". A call that fails prints its error on stderr, and the next length still runs.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/platform/runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

using executorch::extension::from_blob;
using executorch::extension::Module;

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: run_module FILE.pte LENGTH...\n");
    return 2;
  }
  executorch::runtime::runtime_init();
  Module module(argv[1], Module::LoadMode::Mmap);

  int failed = 0;
  for (int i = 2; i < argc; ++i) {
    const int length = std::atoi(argv[i]);
    std::vector<std::int64_t> ids;
    for (int t = 0; t < length; ++t) ids.push_back(1000 + 37 * t);
    std::vector<std::int64_t> mask(ids.size(), 1);

    const auto outputs =
        module.execute("forward", {from_blob(ids.data(), {1, length}, executorch::aten::ScalarType::Long),
                                   from_blob(mask.data(), {1, length}, executorch::aten::ScalarType::Long)});
    if (!outputs.ok()) {
      std::fprintf(stderr, "run_module: length %d failed with ExecuTorch's error 0x%x\n", length,
                   static_cast<unsigned>(outputs.error()));
      failed = 1;
      continue;
    }
    const auto& vector = outputs->at(0).toTensor();
    std::printf("%d:", length);
    for (int d = 0; d < vector.size(vector.dim() - 1); ++d) std::printf(" %.9g", vector.const_data_ptr<float>()[d]);
    std::printf("\n");
  }
  return failed;
}
