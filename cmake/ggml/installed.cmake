# For the build of llama-cpp-python: its llama.cpp takes an installed ggml for its own (tools/setup/llama_cpp.sh).
find_package(ggml CONFIG REQUIRED)
add_library(ggml INTERFACE)
target_link_libraries(ggml INTERFACE ggml::ggml)
