#include "batch/row.h"

namespace graft::batch {

const Json& value_of(const Row& row, const std::string& column) {
  const auto found = row.fields.find(column);
  if (found == row.fields.end() || found->is_null()) bad_row("there is no column '", column, "'");
  return *found;
}

Json json_of(const Row& row, const std::string& column) {
  const Json& value = value_of(row, column);
  if (!row.csv) return value;
  try {
    return serve::parse_json(value.get_ref<const std::string&>());
  } catch (const Error&) {
    bad_row("column '", column, "' is no JSON");
  }
}

const std::string& text_of(const Row& row, const std::string& column) {
  const Json& value = value_of(row, column);
  if (!value.is_string()) bad_row("column '", column, "' must be a string, found ", serve::kind_of(value));
  return value.get_ref<const std::string&>();
}

}  // namespace graft::batch
