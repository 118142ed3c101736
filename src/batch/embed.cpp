#include "batch/encoder_task.h"
#include "batch/tensor_text.h"
#include "llm/text_program.h"

namespace graft::batch {
namespace {

// Vectors of length 1, as TextEncoder has them.
class Embedding : public OutputReader {
 public:
  std::vector<std::string> names() const override { return {"embedding"}; }
  RowResult read(const TensorView& output, std::int64_t place, std::int64_t tokens,
                 const std::vector<std::string>&) const override {
    const auto rank = output.shape.rank();
    GRAFT_CHECK(Unsupported, rank == 2 || rank == 3, "embed needs vectors [B, H] or hidden states [B, T, H], found ",
                output.shape.str());
    std::vector<float> vector;
    llm::append_embedding(output, place, tokens, vector);
    return {{tensor_text({vector.data(), DType::f32, Shape{std::ssize(vector)}}, 0, 0, "embedding")}, {}};
  }
};

}  // namespace

std::unique_ptr<Task> embed_task(const TaskContext& context) {
  return encoder_task(context, std::make_unique<Embedding>());
}

}  // namespace graft::batch
