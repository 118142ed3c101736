# Dependencies of src/audio, src/image and of models of speech: miniaudio and stb_image, whose sources come in that of llama.cpp as ggml's does,
# and zlib, as the static archive where there is one.
find_library(GRAFT_ZLIB_LIBRARY NAMES libz.a z REQUIRED)
find_path(GRAFT_MINIAUDIO_INCLUDE miniaudio.h
          HINTS "${GRAFT_GGML_ROOT}/include" "${GRAFT_GGML_SOURCE}/../vendor/miniaudio")
if(NOT GRAFT_MINIAUDIO_INCLUDE)
  message(FATAL_ERROR "No miniaudio.h in ${GRAFT_GGML_ROOT}/include: `tools/setup/ggml.sh VENV` puts it into\n"
                      "VENV/ggml; else give -DGRAFT_MINIAUDIO_INCLUDE=<folder with miniaudio.h>.")
endif()
find_path(GRAFT_STB_INCLUDE stb_image.h HINTS "${GRAFT_GGML_ROOT}/include" "${GRAFT_GGML_SOURCE}/../vendor/stb")
if(NOT GRAFT_STB_INCLUDE)
  message(FATAL_ERROR "No stb_image.h in ${GRAFT_GGML_ROOT}/include: `tools/setup/ggml.sh VENV` puts it into\n"
                      "VENV/ggml; else give -DGRAFT_STB_INCLUDE=<folder with stb_image.h>.")
endif()
