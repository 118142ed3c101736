#include "device/catch_aborts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "ggml.h"

namespace graft {
namespace {

// Fails one of ggml's assertions: ten elements are no three.
void fail_in_ggml() {
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> context(
      ggml_init({4 * ggml_tensor_overhead(), nullptr, true}), &ggml_free);
  ggml_reshape_1d(context.get(), ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 10), 3);
}

TEST(CatchAborts, AnAssertionOfGgmlIsAnException) {
  for (int i = 0; i < 2; ++i) {
    const CatchAborts catches;
    try {
      const CatchAborts again;
      fail_in_ggml();
      FAIL() << "ggml went on";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("GGML_ASSERT"));
    }
    EXPECT_THROW(fail_in_ggml(), std::runtime_error);
  }
}

}  // namespace
}  // namespace graft
