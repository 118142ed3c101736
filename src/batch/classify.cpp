#include <cmath>

#include "batch/encoder_task.h"
#include "batch/tensor_text.h"
#include "serve/json_fields.h"

namespace graft::batch {
namespace {

std::string number(double value, const std::string& name) {
  auto rounded = static_cast<float>(value);
  return tensor_text({&rounded, DType::f32, Shape{}}, 0, 0, name);
}

// The most likely class, of logits [B, classes], and the probabilities of all.
class Classes : public OutputReader {
 public:
  explicit Classes(std::vector<std::string> labels) : labels_(std::move(labels)) {}
  std::vector<std::string> names() const override { return {"label", "score", "scores"}; }
  RowResult read(const TensorView& logits, std::int64_t place, std::int64_t,
                 const std::vector<std::string>& labels) const override {
    const Shape& shape = logits.shape;
    // Of the model, not of a row.
    if (shape.rank() != 2 || shape[1] < 2)
      throw Unsupported(str("classify needs logits [B, classes] of two classes or more, found ", shape.str(),
                            "; the task 'method' writes any output"));
    const std::int64_t classes = shape[1];
    const std::vector<std::string>& names = labels_.empty() ? labels : labels_;
    if (!names.empty() && std::ssize(names) != classes)
      throw Unsupported(str("the model has ", classes, " classes, ", labels_.empty() ? "its package" : "--labels",
                            " names ", names.size()));
    return one({static_cast<const float*>(logits.data) + place * classes, static_cast<std::size_t>(classes)}, names);
  }

 private:
  static RowResult one(std::span<const float> logits, const std::vector<std::string>& names) {
    const auto best = std::ranges::max_element(logits);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - static_cast<double>(*best));
    std::vector<float> scores;
    for (const float logit : logits)
      scores.push_back(static_cast<float>(std::exp(static_cast<double>(logit) - static_cast<double>(*best)) / sum));
    const auto index = static_cast<std::size_t>(best - logits.begin());
    const Json label = names.empty() ? Json(index) : Json(names[index]);
    return {{serve::dump(label), number(scores[index], "score"),
             tensor_text({scores.data(), DType::f32, Shape{std::ssize(scores)}}, 0, 0, "scores")},
            {}};
  }

  const std::vector<std::string> labels_;
};

}  // namespace

std::unique_ptr<Task> classify_task(const TaskContext& context) {
  return encoder_task(context, std::make_unique<Classes>(context.options.labels));
}

}  // namespace graft::batch
