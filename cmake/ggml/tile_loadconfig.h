// Included ahead of ggml's sources that use AMX: see ggml_tile_configuration in GgmlFromSource.cmake.
#pragma once

#include <immintrin.h>

#define _tile_loadconfig(config)                             \
  (__extension__({                                           \
    asm volatile("" : : "r"(config) : "memory");             \
    (_tile_loadconfig)(config);                              \
  }))
