#include "lowering/tasks.h"

#include <gtest/gtest.h>

#include "kernel/elementwise/elementwise.h"

namespace graft {
namespace {

Launch launch_of(std::initializer_list<TensorDesc> inputs, const TensorDesc& output) {
  const auto tensor = [](const TensorDesc& desc) {
    Tensor t;
    t.desc = desc;
    return t;
  };
  Launch launch;
  launch.kernel = &kElementwise;
  for (const TensorDesc& desc : inputs) launch.inputs.push_back(tensor(desc));
  launch.outputs = {tensor(output)};
  return launch;
}

TEST(Tasks, LaunchesThatTouchMuchMemoryHaveSeveralPerThread) {
  const TensorDesc half(DType::f32, {128, 1024});
  EXPECT_EQ(touched_bytes(launch_of({half}, half)), std::uint64_t{1} << 20);
  EXPECT_EQ(tasks_per_thread(launch_of({half}, half)), kMaxTasksPerThread);
  EXPECT_EQ(tasks_per_thread(launch_of({half}, TensorDesc(DType::f32, {128, 1023}))), 1);
  EXPECT_EQ(tasks_per_thread(launch_of({half}, TensorDesc(DType::f16, {128, 1024}))), 1);
}

TEST(Tasks, RepeatedElementsCountOnce) {
  TensorDesc repeated(DType::f32, {1024, 1024});
  repeated.strides[0] = 0;
  EXPECT_EQ(touched_bytes(launch_of({repeated}, TensorDesc(DType::f32, {16}))), 1024u * 4 + 16 * 4);
}

TEST(Tasks, LaunchesOfOneThreadAndOpsOfGgmlAreNotDivided) {
  const TensorDesc big(DType::f32, {1024, 1024});
  Launch launch = launch_of({big}, big);
  launch.serial = true;
  EXPECT_EQ(tasks_per_thread(launch), 1);
  launch = launch_of({big}, big);
  launch.kernel = nullptr;
  EXPECT_EQ(tasks_per_thread(launch), 1);
}

TEST(Tasks, MostOfALaunch) {
  EXPECT_EQ(max_tasks(1), 1);
  EXPECT_EQ(max_tasks(3), 3 * kMaxTasksPerThread);
}

}  // namespace
}  // namespace graft
