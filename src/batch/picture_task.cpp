#include "batch/encoder_task.h"
#include "batch/grouped.h"
#include "graft/image.h"

namespace graft::batch {
namespace {

// Files of pictures, in calls of as many as the model takes. A file is read when its call is made.
class PictureTask : public GroupedTask<std::string> {
 public:
  PictureTask(const TaskContext& context, std::unique_ptr<const OutputReader> reader)
      : GroupedTask(context.on_rows),
        context_(context),
        reader_(std::move(reader)),
        column_(context.only_column("path")),
        processor_(ImageProcessor::load(context.options.model.path)),
        session_(Program::load(context.options.model.path, context.options.load), session_options(context.options)),
        method_(method_of(session_.program(), context.options)) {
    GRAFT_CHECK(InvalidArgument, !context.options.truncate, "pictures have no --truncate");
    GRAFT_CHECK(InvalidArgument, context.options.model.tokenizer.empty(), "a model of pictures has no --tokenizer");
    check_method();
    most_rows_ = std::min(context.options.batch_rows, method_.inputs[0].dims[0].max);
  }
  std::vector<std::string> needs() const override { return {column_}; }
  std::vector<std::string> results() const override { return reader_->names(); }

 protected:
  std::string prepare(const Row& row) override { return context_.file_of(text_of(row, column_)); }
  bool before(const std::string&, const std::string&) const override { return false; }
  std::int64_t most_rows() const override { return most_rows_; }

  std::vector<RowResult> run(std::span<const Item> items) override {
    std::vector<RowResult> results(items.size());
    std::vector<std::size_t> good;
    std::vector<float> pixels;
    for (std::size_t i = 0; i < items.size(); ++i)
      if (add(items[i].row, pixels, results[i].error)) good.push_back(i);
    if (good.empty()) return results;
    const DimInfo& rows = method_.inputs[0].dims[0];
    const auto row = pixels.size() / good.size();
    std::size_t count = good.size();
    // A program that takes no fewer gets the last picture again.
    for (; std::cmp_less(count, rows.min); ++count)
      pixels.insert(pixels.end(), pixels.end() - static_cast<std::ptrdiff_t>(row), pixels.end());
    Shape shape{static_cast<std::int64_t>(count)};
    for (std::size_t d = 1; d < 4; ++d) shape.push_back(method_.inputs[0].dims[d].max);
    outputs_ = session_.run(method_.name, std::vector{Value::of(TensorView{pixels.data(), DType::f32, shape})});
    const TensorView& output = outputs_[0].tensor;
    GRAFT_CHECK(Unsupported, output.shape.rank() >= 2 && output.shape[0] == shape[0],
                "expected an output [B, ...] of method '", method_.name, "', found ", output.shape.str());
    for (std::size_t i = 0; i < good.size(); ++i)
      results[good[i]] = reader_->read(output, static_cast<std::int64_t>(i), output.shape[1], processor_.labels());
    return results;
  }

 private:
  void check_method() const {
    const auto& inputs = method_.inputs;
    const auto& outputs = method_.outputs;
    bool takes = inputs.size() == 1 && inputs[0].kind == Value::Kind::tensor && inputs[0].dtype == DType::f32 &&
                 inputs[0].dims.size() == 4;
    for (std::size_t d = 1; takes && d < 4; ++d) takes = inputs[0].dims[d].min == inputs[0].dims[d].max;
    GRAFT_CHECK(InvalidArgument, takes, "method '", method_.name,
                "' is no encoder of pictures: expected one input of f32 [B, 3, H, W] with H and W fixed");
    GRAFT_CHECK(InvalidArgument,
                !outputs.empty() && outputs[0].kind == Value::Kind::tensor && outputs[0].dtype == DType::f32,
                "method '", method_.name, "' is no encoder of pictures: its first output is not a tensor of f32");
  }

  // Appends the picture's pixels. False, with an error, for a file that is the row's fault.
  bool add(const std::string& path, std::vector<float>& pixels, std::string& error) const {
    try {
      const Image image = load_image(path);
      const auto [height, width] = processor_.size_of(image);
      const auto& dims = method_.inputs[0].dims;
      GRAFT_CHECK(InvalidArgument, dims[1].max == 3 && dims[2].max == height && dims[3].max == width,
                  "the processor gives [3, ", height, ", ", width, "], the model takes [", dims[1].max, ", ",
                  dims[2].max, ", ", dims[3].max, "]");
      const std::vector<float> found = processor_.pixels(image);
      pixels.insert(pixels.end(), found.begin(), found.end());
      return true;
    } catch (const InvalidArgument& wrong) {
      error = wrong.what();
    } catch (const NotFound& wrong) {
      error = wrong.what();
    }
    return false;
  }

  const TaskContext& context_;
  const std::unique_ptr<const OutputReader> reader_;
  const std::string column_;
  const ImageProcessor processor_;
  Session session_;
  const MethodInfo& method_;
  std::int64_t most_rows_ = 1;
  std::vector<Value> outputs_;
};

}  // namespace

std::unique_ptr<Task> picture_task(const TaskContext& context, std::unique_ptr<const OutputReader> reader) {
  return std::make_unique<PictureTask>(context, std::move(reader));
}

std::unique_ptr<Task> encoder_task(const TaskContext& context, std::unique_ptr<const OutputReader> reader) {
  return ImageProcessor::is_in(context.options.model.path) ? picture_task(context, std::move(reader))
                                                           : text_task(context, std::move(reader));
}

}  // namespace graft::batch
