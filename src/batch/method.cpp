#include "batch/method.h"

#include <cstring>

#include "batch/grouped.h"
#include "batch/tensor_text.h"
#include "serve/v2/infer.h"
#include "serve/v2/tensors.h"

namespace graft::batch {
namespace {

using Sizes = std::vector<std::int64_t>;

struct Inputs {
  std::vector<Sizes> sizes;                    // of each input, without the dimension of rows
  std::vector<std::vector<std::byte>> memory;  // of each input
};

// The sizes of nested lists.
Sizes sizes_of(const Json& value, const std::string& column) {
  Sizes sizes;
  if (!value.is_array()) return sizes;
  sizes.push_back(std::ssize(value));
  for (std::size_t i = 0; i < value.size(); ++i) {
    const Sizes inner = sizes_of(value[i], column);
    if (i == 0)
      sizes.insert(sizes.end(), inner.begin(), inner.end());
    else if (!std::ranges::equal(inner, std::span(sizes).subspan(1)))
      bad_row("column '", column, "' has lists of different sizes at the same depth");
  }
  return sizes;
}

class MethodTask : public GroupedTask<Inputs> {
 public:
  explicit MethodTask(const TaskContext& context)
      : GroupedTask(context.on_rows),
        program_(Program::load(context.options.model.path, context.options.load)),
        method_(method_of(*program_, context.options)),
        session_(program_, session_options(context.options)) {
    has_states_ = !session_.states().empty();
    for (std::size_t i = 0; i < method_.inputs.size(); ++i) {
      const ValueInfo& input = method_.inputs[i];
      const std::string name = serve::v2_input_name(method_, i);
      check_type(input, "input", name);
      columns_.push_back(input.kind == Value::Kind::none ? "" : context.column(name));
    }
    for (std::size_t i = 0; i < method_.outputs.size(); ++i) {
      check_type(method_.outputs[i], "output", serve::v2_output_name(method_, i));
      if (method_.outputs[i].kind != Value::Kind::none) outputs_.push_back(i);
    }
    rows_ = dimension_of_rows();
    most_rows_ = rows_ ? std::min(context.options.batch_rows, rows_->max) : 1;
  }

  std::vector<std::string> needs() const override {
    std::vector<std::string> needs;
    for (const std::string& column : columns_)
      if (!column.empty()) needs.push_back(column);
    return needs;
  }
  std::vector<std::string> results() const override {
    std::vector<std::string> names;
    for (const std::size_t i : outputs_) names.push_back(serve::v2_output_name(method_, i));
    return names;
  }

 protected:
  Inputs prepare(const Row& row) override {
    Inputs inputs;
    inputs.sizes.resize(columns_.size());
    inputs.memory.resize(columns_.size());
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string& column = columns_[i];
      if (column.empty()) continue;
      const ValueInfo& input = method_.inputs[i];
      Json value = json_of(row, column);
      const std::size_t depth = input.kind == Value::Kind::tensor ? input.dims.size() - (rows_ ? 1 : 0) : 0;
      inputs.sizes[i] = sizes_of(value, column);
      if (inputs.sizes[i].size() != depth)
        bad_row("column '", column, "' must be ", depth == 0 ? "a number" : str("lists ", depth, " deep"), ", found ",
                inputs.sizes[i].empty() ? serve::kind_of(value) : str("lists ", inputs.sizes[i].size(), " deep"));
      std::int64_t count = 1;
      for (const std::int64_t size : inputs.sizes[i]) count *= size;
      if (depth == 0) value = Json::array({std::move(value)});
      inputs.memory[i] = serve::bytes_of(value, dtype_of(input), count, column);
    }
    return inputs;
  }

  bool before(const Inputs& a, const Inputs& b) const override {
    if (a.sizes != b.sizes) return a.sizes < b.sizes;
    for (std::size_t i = 0; i < columns_.size(); ++i)  // numbers are of the whole call
      if (method_.inputs[i].kind != Value::Kind::tensor && a.memory[i] != b.memory[i]) return a.memory[i] < b.memory[i];
    return false;
  }

  std::int64_t most_rows() const override { return most_rows_; }

  std::vector<RowResult> run(std::span<const Item> items) override {
    const std::size_t rows = rows_ ? std::max(items.size(), static_cast<std::size_t>(rows_->min)) : 1;
    std::vector<std::vector<std::byte>> memory(columns_.size());
    std::vector<Value> inputs(columns_.size());
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].empty()) continue;
      for (std::size_t row = 0; row < rows; ++row) {
        // A program that takes no fewer gets the last one again.
        const auto& part = items[std::min(row, items.size() - 1)].row.memory[i];
        memory[i].insert(memory[i].end(), part.begin(), part.end());
      }
      inputs[i] = value(method_.inputs[i], items[0].row.sizes[i], memory[i], rows);
    }
    if (has_states_) session_.reset();
    const std::vector<Value> found = session_.run(method_.name, inputs);
    std::vector<RowResult> results(items.size());
    for (const std::size_t i : outputs_) {
      const std::string name = serve::v2_output_name(method_, i);
      if (rows_ && found[i].tensor.shape[0] != static_cast<std::int64_t>(rows))
        throw Unsupported(str("output '", name, "' has ", found[i].tensor.shape[0], " rows for ", rows));
      for (std::size_t row = 0; row < items.size(); ++row)
        results[row].values.push_back(text(found[i], static_cast<std::int64_t>(row), name));
    }
    return results;
  }

 private:
  static void check_type(const ValueInfo& info, const char* what, const std::string& name) {
    const bool good = info.kind == Value::Kind::tensor ? has_text(info.dtype) : info.kind != Value::Kind::text;
    GRAFT_CHECK(Unsupported, good, what, " '", name, "' is ", serve::v2_name(info), ", which JSON cannot carry");
  }

  static DType dtype_of(const ValueInfo& input) {
    switch (input.kind) {
      case Value::Kind::integer:
        return DType::i64;
      case Value::Kind::real:
        return DType::f64;
      case Value::Kind::boolean:
        return DType::b8;
      default:
        return input.dtype;
    }
  }

  // The first dimension of all tensors, where it is the same one: a row of the file is a row of each of them.
  std::optional<DimInfo> dimension_of_rows() const {
    std::optional<DimInfo> rows;
    const auto same = [&](const ValueInfo& info, bool must_be_tensor) {
      if (info.kind != Value::Kind::tensor) return !must_be_tensor;
      if (info.dims.empty()) return false;
      const DimInfo& dim = info.dims[0];
      if (!rows) rows = dim;
      const bool one = dim.min == 1 && dim.max == 1;
      return one ? rows->min == 1 && rows->max == 1
                 : dim.min < dim.max && dim.expr == rows->expr && dim.max == rows->max;
    };
    for (const ValueInfo& input : method_.inputs)
      if (!same(input, false)) return std::nullopt;
    for (const std::size_t i : outputs_)
      if (!rows || !same(method_.outputs[i], true)) return std::nullopt;
    return rows;
  }

  static Value value(const ValueInfo& input, const Sizes& sizes, std::vector<std::byte>& memory, std::size_t rows) {
    switch (input.kind) {
      case Value::Kind::integer: {
        std::int64_t number = 0;
        std::memcpy(&number, memory.data(), sizeof number);
        return Value::of(number);
      }
      case Value::Kind::real: {
        double number = 0;
        std::memcpy(&number, memory.data(), sizeof number);
        return Value::of(number);
      }
      case Value::Kind::boolean:
        return Value::of(memory[0] != std::byte{0});
      default: {
        Sizes whole = sizes;
        if (whole.size() < input.dims.size()) whole.insert(whole.begin(), static_cast<std::int64_t>(rows));
        return Value::of(TensorView{memory.data(), input.dtype, Shape(std::span<const std::int64_t>(whole))});
      }
    }
  }

  std::string text(const Value& value, std::int64_t row, const std::string& name) const {
    switch (value.kind) {
      case Value::Kind::tensor:
        return tensor_text(value.tensor, rows_ ? 1 : 0, row, name);
      case Value::Kind::integer:
        return std::to_string(value.i);
      case Value::Kind::real: {
        double number = value.f;
        return tensor_text({&number, DType::f64, Shape{}}, 0, 0, name);
      }
      case Value::Kind::boolean:
        return value.i != 0 ? "true" : "false";
      default:
        return "null";
    }
  }

  std::shared_ptr<const Program> program_;
  const MethodInfo& method_;
  Session session_;
  bool has_states_ = false;
  std::vector<std::string> columns_;  // of each input; empty: it has no value
  std::vector<std::size_t> outputs_;  // those with a value
  std::optional<DimInfo> rows_;
  std::int64_t most_rows_ = 1;
};

}  // namespace

std::unique_ptr<Task> method_task(const TaskContext& context) { return std::make_unique<MethodTask>(context); }

}  // namespace graft::batch
