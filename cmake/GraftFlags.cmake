# Compiler settings of all graft targets. The main code is compiled for the plain architecture; only src/kernel/simd/isa
# is compiled for newer CPUs (GraftLibrary.cmake).
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# -O3 only where it pays: src/kernel/simd/isa.
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(GRAFT_CCACHE ccache)
  if(GRAFT_CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER "${GRAFT_CCACHE}")
    # It caches what is compiled with a precompiled header only if told not to look at its macros and times, and shall not
    # preprocess before it compiles.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;CCACHE_DEPEND=1;CCACHE_SLOPPINESS=pch_defines,time_macros;${GRAFT_CCACHE}")
  endif()
endif()

# Sanitizers go into the global flags, so that a ggml built from source gets the same ones.
if(GRAFT_SANITIZE)
  add_compile_options(-fsanitize=${GRAFT_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${GRAFT_SANITIZE})
endif()

if(GRAFT_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
    add_compile_definitions(consteval=constexpr)  # it crashes on arrays of what consteval functions return
  endif()
endif()

find_package(Threads REQUIRED)

add_library(graft_flags INTERFACE)
# Assertions name files relative to the project's root, without this machine's paths.
target_compile_options(graft_flags INTERFACE "-fmacro-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/=")
target_compile_options(graft_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor
                                             $<$<BOOL:${GRAFT_WERROR}>:-Werror>)
# Data-flow warnings depend on the compiler's version and on optimization: they are shown, but a false one must not fail
# the build with another compiler.
include(CheckCXXCompilerFlag)
foreach(warning maybe-uninitialized array-bounds stringop-overflow stringop-overread restrict dangling-reference
                dangling-pointer free-nonheap-object)
  check_cxx_compiler_flag(-Werror=${warning} GRAFT_HAS_W_${warning})
  if(GRAFT_HAS_W_${warning} AND GRAFT_WERROR)
    target_compile_options(graft_flags INTERFACE -Wno-error=${warning})
  endif()
endforeach()
if(GRAFT_SANITIZE MATCHES "undefined")
  # A finding of the undefined-behaviour sanitizer in graft's code ends the test; findings in ggml are only printed.
  target_compile_options(graft_flags INTERFACE -fno-sanitize-recover=all)
endif()

# Precompiled where many files of a target include them. Each file names what it uses all the same:
# -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without.
set(graft_std_headers <algorithm> <array> <cmath> <cstddef> <cstdint> <cstring> <functional> <limits> <map> <memory>
                      <optional> <span> <string> <string_view> <utility> <vector>)

function(graft_target name)
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden
                                           VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:graft_flags>)
endfunction()
