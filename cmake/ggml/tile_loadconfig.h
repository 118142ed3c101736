// Included ahead of ggml's sources that use AMX: see ggml_tile_configuration in GgmlFromSource.cmake.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>

#define _tile_loadconfig(config)                             \
  (__extension__({                                           \
    asm volatile("" : : "r"(config) : "memory");             \
    (_tile_loadconfig)(config);                              \
  }))
#endif
