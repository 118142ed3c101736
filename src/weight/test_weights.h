#pragma once

#include <gguf.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml.h"
#include "weight/test_container.h"

// Test only: writers of small safetensors and GGUF files.
namespace graft::test {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  Blob bytes;
};

// The data begins right after the header, and tensors are contiguous; `pad` spaces end the header.
inline Blob make_safetensors(const std::vector<SafetensorsEntry>& entries, std::size_t pad = 0) {
  std::string header = "{";
  std::size_t at = 0;
  for (const SafetensorsEntry& e : entries) {
    std::string shape;
    for (std::int64_t size : e.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
    header += (header.size() > 1 ? ",\"" : "\"") + e.name + "\":{\"dtype\":\"" + e.dtype + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + e.bytes.size()) + "]}";
    at += e.bytes.size();
  }
  header += "}" + std::string(pad, ' ');
  Blob out(8 + header.size());
  put(out, 0, header.size(), 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  for (const SafetensorsEntry& e : entries) out.insert(out.end(), e.bytes.begin(), e.bytes.end());
  return out;
}

struct GgufEntry {
  std::string name;
  ggml_type type;
  std::vector<std::int64_t> sizes;  // innermost first
  Blob bytes;
};

// Written by ggml itself, through a file in `folder`.
inline Blob make_gguf(const std::vector<GgufEntry>& entries, const std::filesystem::path& folder) {
  ggml_context* tensors = ggml_init({entries.size() * ggml_tensor_overhead() + 1024, nullptr, /*no_alloc=*/true});
  gguf_context* file = gguf_init_empty();
  std::vector<Blob> data;
  for (const GgufEntry& e : entries) data.push_back(e.bytes);
  gguf_set_val_str(file, "general.name", "test");
  for (std::size_t i = 0; i < entries.size(); ++i) {
    ggml_tensor* tensor =
        ggml_new_tensor(tensors, entries[i].type, static_cast<int>(entries[i].sizes.size()), entries[i].sizes.data());
    ggml_set_name(tensor, entries[i].name.c_str());
    tensor->data = data[i].data();
    gguf_add_tensor(file, tensor);
  }
  const std::string path = (folder / "made.gguf").string();
  const bool written = gguf_write_to_file(file, path.c_str(), /*only_meta=*/false);
  gguf_free(file);
  ggml_free(tensors);
  if (!written) throw std::runtime_error("cannot write " + path);
  Blob out(std::filesystem::file_size(path));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  std::filesystem::remove(path);
  return out;
}

}  // namespace graft::test
