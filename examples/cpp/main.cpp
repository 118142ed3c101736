// Runs the first method of a .pte on inputs of zeros and prints the outputs: run_model MODEL.pte
#include <graft/graft.h>

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <vector>

int main(int argc, char** argv) try {
  const auto program = graft::Program::load(argc > 1 ? argv[1] : "model.pte");
  const graft::MethodInfo& method = program->method(program->method_names().front());
  std::vector<std::vector<std::byte>> buffers;  // the caller owns the inputs' memory
  std::vector<graft::Value> inputs;
  for (const graft::ValueInfo& info : method.inputs) {
    graft::Shape shape;  // the smallest that the program allows, but not empty
    for (const graft::DimInfo& dim : info.dims) shape.push_back(std::max<std::int64_t>(dim.min, 1));
    buffers.emplace_back(graft::TensorDesc(info.dtype, shape).byte_count());
    inputs.push_back(graft::Value::of(graft::TensorView{buffers.back().data(), info.dtype, shape}));
  }
  graft::Session session(program);
  for (const graft::Value& output : session.run(method.name, inputs)) {
    std::cout << graft::TensorDesc(output.tensor.dtype, output.tensor.shape).str();
    if (output.tensor.dtype == graft::DType::f32 && output.tensor.shape.numel() > 0) {
      std::cout << " " << *static_cast<const float*>(output.tensor.data) << " ...";
    }
    std::cout << "\n";
  }
} catch (const graft::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
