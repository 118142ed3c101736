# libgraft. Its objects are compiled once and linked into the shared library and into the tests, which need
# symbols that the library hides.
set(graft_sources "")
foreach(stage base ir weight package kernel lowering op pass plan exec device load session flow text audio image stage llm)
  file(GLOB_RECURSE found CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/${stage}/*.cpp")
  list(APPEND graft_sources ${found})
endforeach()
list(FILTER graft_sources EXCLUDE REGEX "_test\\.cpp$")
# Vector sources are compiled once per target of src/kernel/simd/targets.def.
include(GraftTargets)
set(graft_kernel_sources ${graft_sources})
list(FILTER graft_kernel_sources INCLUDE REGEX "${graft_vector_sources}")
list(FILTER graft_sources EXCLUDE REGEX "${graft_vector_sources}")

# Include folders and definitions of every object of the library.
add_library(graft_includes INTERFACE)
target_include_directories(graft_includes INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}/include" "${CMAKE_CURRENT_SOURCE_DIR}/src")
target_include_directories(graft_includes SYSTEM INTERFACE "${GRAFT_GENERATED}" "${GRAFT_FLATBUFFERS_INCLUDE}"
                           "${GRAFT_ONIG_INCLUDE}" "${GRAFT_UTF8PROC_INCLUDE}")
target_link_libraries(graft_includes INTERFACE ggml::ggml Threads::Threads nlohmann_json::nlohmann_json
                                               "${GRAFT_ONIG_LIBRARY}" "${GRAFT_UTF8PROC_LIBRARY}" "${GRAFT_ZLIB_LIBRARY}")

# For the command line too, which sees only what the library exports.
list(FILTER graft_sources EXCLUDE REGEX "/base/json\\.cpp$")
add_library(graft_json OBJECT src/base/json.cpp)
graft_target(graft_json)
target_link_libraries(graft_json PRIVATE graft_includes)

add_library(graft_objects OBJECT ${graft_sources})
graft_target(graft_objects)
target_link_libraries(graft_objects PUBLIC graft_includes)
target_precompile_headers(graft_objects PRIVATE ${graft_std_headers})
# Sums of samples of a damaged file overflow in these decoders: they wrap around.
set_source_files_properties(src/audio/miniaudio.cpp src/image/stb_image.cpp PROPERTIES
                            COMPILE_OPTIONS "-w;-fwrapv" SKIP_PRECOMPILE_HEADERS ON)
set_source_files_properties(src/audio/miniaudio.cpp src/audio/decode.cpp PROPERTIES
                            INCLUDE_DIRECTORIES "${GRAFT_MINIAUDIO_INCLUDE}")
set_source_files_properties(src/image/stb_image.cpp src/image/decode.cpp PROPERTIES
                            INCLUDE_DIRECTORIES "${GRAFT_STB_INCLUDE}")
add_dependencies(graft_objects graft_schema)

# Of the sources, for reports; looked up again when HEAD moves.
set(graft_commit "")
find_package(Git QUIET)
if(Git_FOUND AND EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/.git")
  execute_process(COMMAND "${GIT_EXECUTABLE}" rev-parse --short=10 HEAD WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
                  OUTPUT_VARIABLE graft_commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/.git/logs/HEAD")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/.git/logs/HEAD")
  endif()
endif()
# Only for the sources that name them: another version or commit compiles nothing else.
set(graft_versions "GRAFT_VERSION=\"${PROJECT_VERSION}\"" "GRAFT_GGML_VERSION=\"${GRAFT_GGML_RELEASE}\""
                   "GRAFT_GGML_COMMIT=\"${GRAFT_GGML_COMMIT}\"")
set_source_files_properties(src/device/device.cpp src/ir/parse.cpp src/ir/parse_test.cpp src/plan/stored_plan.cpp
                            PROPERTIES COMPILE_DEFINITIONS "${graft_versions}")
set_source_files_properties(src/load/build_info.cpp PROPERTIES
                            COMPILE_DEFINITIONS "${graft_versions};GRAFT_COMMIT=\"${graft_commit}\"")

if(GRAFT_ALL_CPUS)
  set_source_files_properties(src/base/ggml_cpu.cpp PROPERTIES COMPILE_DEFINITIONS GRAFT_GGML_MODULES)
endif()

# Vector sources: once per target, each time in a namespace named by GRAFT_ISA.
if(GRAFT_FUZZ)  # fuzz builds compile the baseline only
  set(graft_targets baseline)
endif()
if("avx2" IN_LIST graft_targets)
  target_compile_definitions(graft_includes INTERFACE GRAFT_HAVE_X86_ISA)
endif()
# A residual is added as PyTorch adds it: rounded between the product and the sum.
set_source_files_properties(src/kernel/conv/quantized_conv_baseline.cpp src/kernel/conv/quantized_conv_vnni.cpp
                            PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
set(graft_all_objects $<TARGET_OBJECTS:graft_objects> $<TARGET_OBJECTS:graft_json>)
foreach(isa IN LISTS graft_targets)
  graft_target_sources(sources ${isa} ${graft_kernel_sources})
  add_library(graft_isa_${isa} OBJECT ${sources})
  graft_target(graft_isa_${isa})
  target_compile_options(graft_isa_${isa} PRIVATE $<$<CONFIG:Release>:-O3> -fno-math-errno -fno-trapping-math
                                                  ${graft_target_flags_${isa}})
  if("-march=x86-64-v4" IN_LIST graft_target_flags_${isa} AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # The AVX-512 intrinsics of these compilers warn about themselves (GCC bug 105593).
    target_compile_options(graft_isa_${isa} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
  endif()
  target_compile_definitions(graft_isa_${isa} PRIVATE GRAFT_ISA=${isa})
  target_link_libraries(graft_isa_${isa} PRIVATE graft_includes)
  list(APPEND graft_all_objects $<TARGET_OBJECTS:graft_isa_${isa}>)
endforeach()

add_library(graft SHARED ${graft_all_objects})
add_library(graft::graft ALIAS graft)
graft_target(graft)
set_target_properties(graft PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME graft)
target_compile_features(graft PUBLIC cxx_std_20)
target_include_directories(graft PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                                        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(graft PRIVATE $<BUILD_INTERFACE:ggml::ggml> $<BUILD_INTERFACE:Threads::Threads>
                                    $<BUILD_INTERFACE:${GRAFT_ONIG_LIBRARY}> $<BUILD_INTERFACE:${GRAFT_UTF8PROC_LIBRARY}>
                                    $<BUILD_INTERFACE:${GRAFT_ZLIB_LIBRARY}>)
target_link_options(graft PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL)

# ggml lies beside libgraft, in a C++ install and in the Python package.
set_target_properties(graft PROPERTIES BUILD_RPATH "${GRAFT_GGML_LIB_DIR}" INSTALL_RPATH "$ORIGIN")
