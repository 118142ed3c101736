# `cmake --install`: filled in below by component. Nothing of ggml's headers is installed.
