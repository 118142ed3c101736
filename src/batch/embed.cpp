#include "batch/tensor_text.h"
#include "batch/text_task.h"

namespace graft::batch {
namespace {

// Vectors of length 1, as TextEncoder has them.
class EmbedTask : public TextTask {
 public:
  using TextTask::TextTask;
  std::vector<std::string> results() const override { return {"embedding"}; }

 protected:
  std::vector<RowResult> run(std::span<const Item> items) override {
    const TensorView found = output(items);
    std::vector<RowResult> results;
    for (std::size_t i = 0; i < items.size(); ++i) {
      std::vector<float> vector;
      llm::append_embedding(found, static_cast<std::int64_t>(i), std::ssize(items[i].row), vector);
      results.push_back({{tensor_text({vector.data(), DType::f32, Shape{std::ssize(vector)}}, 0, 0, "embedding")}, {}});
    }
    return results;
  }
};

}  // namespace

std::unique_ptr<Task> embed_task(const TaskContext& context) { return std::make_unique<EmbedTask>(context); }

}  // namespace graft::batch
