#include "batch/manifest.h"

#include "serve/api_error.h"

namespace graft::batch {
namespace {

constexpr std::int64_t kVersion = 1;

Json file_json(const OutputFile& file) { return {{"name", file.name}, {"sha256", file.sha256}}; }

OutputFile read_file(const Json& json, const std::string& path) {
  serve::Fields fields = serve::Fields::of(json, path);
  OutputFile file{fields.need_text("name"), fields.need_text("sha256")};
  fields.end();
  if (file.name.empty() || file.name.find('/') != file.name.npos || file.name.starts_with('.'))
    serve::bad_request(path, "'", path, ".name' is '", file.name, "', which is no name of a file");
  return file;
}

std::string shown(const Json* value) { return value ? serve::dump(*value) : "nothing"; }

// "seed (7, now 8)" of each field that differs.
std::string differences(const Json& before, const Json& now) {
  std::string out;
  const auto add = [&](const std::string& name, const Json* a, const Json* b) {
    out += str(out.empty() ? "" : ", ", name, " (", shown(a), ", now ", shown(b), ")");
  };
  for (const auto& [name, value] : before.items()) {
    const auto found = now.find(name);
    if (found == now.end())
      add(name, &value, nullptr);
    else if (*found != value)
      add(name, &value, &*found);
  }
  for (const auto& [name, value] : now.items())
    if (!before.contains(name)) add(name, nullptr, &value);
  return out;
}

}  // namespace

std::string Manifest::text() const {
  Json list = Json::array();
  for (const auto& [index, shard] : shards) {
    Json one = {{"index", index}, {"rows", shard.row_count}, {"file", file_json(shard.rows)}};
    if (shard.error_count > 0) {
      one["errors"] = shard.error_count;
      one["error_file"] = file_json(shard.errors);
    }
    list.push_back(std::move(one));
  }
  const Json json = {{"graft_batch", kVersion}, {"graft", graft},           {"created", created},
                     {"input", input},          {"model", model},           {"options", options},
                     {"complete", complete},    {"shards", std::move(list)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Manifest Manifest::parse(const std::string& text, const std::string& path) {
  try {
    const auto json = read_json<Json>(text, false);
    if (!json.is_object()) serve::bad_request({}, "it is no JSON object");
    serve::Fields fields(json);
    fields.need("graft_batch");
    if (const auto version = *fields.integer("graft_batch", 0, INT64_MAX); version != kVersion)
      serve::bad_request({}, "its format is ", version, ", this graft reads ", kVersion);
    Manifest out;
    out.graft = fields.need_text("graft");
    fields.need("created");
    out.created = *fields.integer("created", INT64_MIN, INT64_MAX);
    out.input = fields.need_object("input");
    out.model = fields.need_object("model");
    out.options = fields.need_object("options");
    out.complete = fields.boolean("complete").value_or(false);
    const Json& shards = fields.need_array("shards");
    fields.end();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string where = str("shards[", i, ']');
      serve::Fields shard = serve::Fields::of(shards[i], where);
      ShardRecord record;
      shard.need("index");
      const std::int64_t index = *shard.integer("index", 0, INT64_MAX);
      shard.need("rows");
      record.row_count = static_cast<std::uint64_t>(*shard.integer("rows", 0, INT64_MAX));
      record.rows = read_file(shard.need("file"), where + ".file");
      record.error_count = static_cast<std::uint64_t>(shard.integer("errors", 0, INT64_MAX).value_or(0));
      if (record.error_count > 0) record.errors = read_file(shard.need("error_file"), where + ".error_file");
      shard.end();
      if (!out.shards.emplace(static_cast<std::uint64_t>(index), std::move(record)).second)
        serve::bad_request(where, "'", where, "' has the index ", index, ", as one before");
    }
    return out;
  } catch (const serve::ApiError& error) {
    throw InvalidProgram(str("'", path, "' is no manifest of graft batch: ", error.what()));
  }
}

void Manifest::check_same(const Manifest& run, const std::string& path) const {
  const auto check = [&](const char* what, const std::string& different) {
    GRAFT_CHECK(InvalidArgument, different.empty(), "cannot continue what '", path, "' describes: ", what, ": ",
                different);
  };
  check("the input is another one", differences(input, run.input));
  check("the model is another one", differences(model, run.model));
  check("the options are others", differences(options, run.options));
  check("it was begun by another version", graft == run.graft ? "" : str(graft, ", now ", run.graft));
}

}  // namespace graft::batch
