#include <cmath>

#include "batch/tensor_text.h"
#include "batch/text_task.h"

namespace graft::batch {
namespace {

std::string number(double value, const std::string& name) {
  auto rounded = static_cast<float>(value);
  return tensor_text({&rounded, DType::f32, Shape{}}, 0, 0, name);
}

// The most likely class of each text, of logits [B, classes], and the probabilities of all.
class ClassifyTask : public TextTask {
 public:
  explicit ClassifyTask(const TaskContext& context) : TextTask(context), labels_(context.options.labels) {}
  std::vector<std::string> results() const override { return {"label", "score", "scores"}; }

 protected:
  std::vector<RowResult> run(std::span<const Item> items) override {
    const TensorView logits = output(items);
    const Shape& shape = logits.shape;
    // Of the model, not of a row.
    if (shape.rank() != 2 || shape[1] < 2)
      throw Unsupported(str("classify needs logits [B, classes] of two classes or more, found ", shape.str(),
                            "; the task 'method' writes any output"));
    const std::int64_t classes = shape[1];
    if (!labels_.empty() && std::ssize(labels_) != classes)
      throw Unsupported(str("the model has ", classes, " classes, --labels names ", labels_.size()));
    std::vector<RowResult> results;
    for (std::size_t i = 0; i < items.size(); ++i)
      results.push_back(one({static_cast<const float*>(logits.data) + i * static_cast<std::size_t>(classes),
                             static_cast<std::size_t>(classes)}));
    return results;
  }

 private:
  RowResult one(std::span<const float> logits) const {
    const auto best = std::ranges::max_element(logits);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - static_cast<double>(*best));
    std::vector<float> scores;
    for (const float logit : logits)
      scores.push_back(static_cast<float>(std::exp(static_cast<double>(logit) - static_cast<double>(*best)) / sum));
    const auto index = static_cast<std::size_t>(best - logits.begin());
    const Json label = labels_.empty() ? Json(index) : Json(labels_[index]);
    return {{serve::dump(label), number(scores[index], "score"),
             tensor_text({scores.data(), DType::f32, Shape{std::ssize(scores)}}, 0, 0, "scores")},
            {}};
  }

  std::vector<std::string> labels_;
};

}  // namespace

std::unique_ptr<Task> classify_task(const TaskContext& context) { return std::make_unique<ClassifyTask>(context); }

}  // namespace graft::batch
