# graft_tests: every src/**/*_test.cpp of the engine, linked with its objects.
enable_testing()
file(GLOB_RECURSE graft_test_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/*_test.cpp"
     "${CMAKE_CURRENT_SOURCE_DIR}/test/fuzz/*.cpp")
list(FILTER graft_test_sources EXCLUDE REGEX "/src/(python|executorch|cli|serve|batch)/|/fuzz_")
if(graft_test_sources)
  find_package(GTest CONFIG REQUIRED)
  add_executable(graft_tests ${graft_test_sources} ${graft_all_objects})
  graft_target(graft_tests)
  set_target_properties(graft_tests PROPERTIES BUILD_RPATH "${GRAFT_GGML_LIB_DIR}")
  # Tests run for seconds only: less optimization saves more compile time than it costs.
  target_compile_options(graft_tests PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(graft_tests PRIVATE graft_includes GTest::gtest GTest::gmock GTest::gtest_main)
  target_precompile_headers(graft_tests PRIVATE ${graft_std_headers} <gmock/gmock.h> <gtest/gtest.h>)
  target_compile_definitions(graft_tests PRIVATE
    GRAFT_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}" GRAFT_BUILD_DIR="${CMAKE_BINARY_DIR}")
  add_dependencies(graft_tests graft_schema)
  add_test(NAME graft_tests COMMAND graft_tests)

  # AMX kernels on an emulation of its tiles, for CPUs without AMX: a target of the tests only.
  if("amxint8" IN_LIST graft_targets)
    set(graft_target_groups_amxmodel ${graft_target_groups_amxint8} ${graft_target_groups_amxbf16})
    graft_target_sources(sources amxmodel ${graft_kernel_sources})
    add_library(graft_isa_amxmodel OBJECT ${sources})
    graft_target(graft_isa_amxmodel)
    target_compile_options(graft_isa_amxmodel PRIVATE -O2 -fno-math-errno -fno-trapping-math ${graft_target_flags_amxint8}
                                                      -Wno-uninitialized -Wno-maybe-uninitialized)
    target_compile_definitions(graft_isa_amxmodel PRIVATE GRAFT_ISA=amxmodel GRAFT_AMX_MODEL)
    target_link_libraries(graft_isa_amxmodel PRIVATE graft_includes)
    target_sources(graft_tests PRIVATE $<TARGET_OBJECTS:graft_isa_amxmodel>)
    target_compile_definitions(graft_tests PRIVATE GRAFT_HAVE_AMX_MODEL)
  endif()

  # A device of the tests that has streams (src/device/streams_test.cpp) implements ggml's internal interfaces.
  find_path(GRAFT_GGML_INTERNALS ggml-backend-impl.h NO_DEFAULT_PATH
            PATHS "${GRAFT_GGML_SOURCE}/src" "${GRAFT_GGML_ROOT}/internals")
  if(GRAFT_GGML_INTERNALS)
    set_source_files_properties(src/device/streams_test.cpp PROPERTIES
      COMPILE_DEFINITIONS GRAFT_GGML_INTERNALS COMPILE_OPTIONS "-isystem;${GRAFT_GGML_INTERNALS}")
  endif()

  # The RPC server that serves as the tests' device.
  add_executable(graft_rpc_server test/rpc_server/main.cpp)
  graft_target(graft_rpc_server)
  set_target_properties(graft_rpc_server PROPERTIES BUILD_RPATH "${GRAFT_GGML_LIB_DIR}")
  target_link_libraries(graft_rpc_server PRIVATE ggml::ggml)
  add_dependencies(graft_tests graft_rpc_server)
  target_compile_definitions(graft_tests PRIVATE GRAFT_RPC_SERVER="$<TARGET_FILE:graft_rpc_server>")
endif()

# Faults of memory, files and threads (test/faults): a library between graft and the C library, and tests with it. The
# sanitizers have an allocator of their own.
if(GTest_FOUND AND NOT GRAFT_SANITIZE AND NOT GRAFT_FUZZ)
  foreach(package speaker ctc)
    set(graft_package "${CMAKE_CURRENT_SOURCE_DIR}/test/faults/${package}.tar.xz")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${graft_package}")
    file(ARCHIVE_EXTRACT INPUT "${graft_package}" DESTINATION "${CMAKE_BINARY_DIR}")
  endforeach()
  add_library(graft_faults SHARED test/faults/faults.cpp)
  target_compile_options(graft_faults PRIVATE -fno-builtin -w)
  target_link_libraries(graft_faults PRIVATE nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS})
  file(GLOB graft_fault_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/test/faults/*_test.cpp")
  add_executable(graft_fault_tests ${graft_fault_sources} ${graft_all_objects})
  graft_target(graft_fault_tests)
  set_target_properties(graft_fault_tests PROPERTIES BUILD_RPATH "${GRAFT_GGML_LIB_DIR}")
  target_compile_options(graft_fault_tests PRIVATE $<$<CONFIG:Release>:-O1>)
  # First, so that its functions come before the C library's.
  target_link_libraries(graft_fault_tests PRIVATE graft_faults graft_includes GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(graft_fault_tests PRIVATE
    GRAFT_SOURCE_DIR="${CMAKE_CURRENT_SOURCE_DIR}" GRAFT_BUILD_DIR="${CMAKE_BINARY_DIR}")
  add_dependencies(graft_fault_tests graft_schema)
  add_test(NAME graft_fault_tests COMMAND graft_fault_tests)
endif()

# Measure planning and the cost of a cached call, and what graft adds around a device of ggml; they use the engine's
# internals, so they are linked like the tests.
foreach(measured overhead device_overhead)
  add_executable(graft_${measured} bench/${measured}.cpp ${graft_all_objects})
  graft_target(graft_${measured})
  set_target_properties(graft_${measured} PROPERTIES BUILD_RPATH "${GRAFT_GGML_LIB_DIR}")
  target_link_libraries(graft_${measured} PRIVATE graft_includes)
  add_dependencies(graft_${measured} graft_schema)
endforeach()

# Programs that use the public library: start-up of a language model, and times of launches. graft_roofline: the
# machine's peak rates.
foreach(measured first_token kernel_times overlap)
  add_executable(graft_${measured} bench/${measured}.cpp)
  graft_target(graft_${measured})
  set_target_properties(graft_${measured} PROPERTIES BUILD_RPATH "${GRAFT_GGML_LIB_DIR}")
  target_link_libraries(graft_${measured} PRIVATE graft)
endforeach()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_executable(graft_roofline bench/roofline.cpp)
  target_compile_features(graft_roofline PRIVATE cxx_std_20)
  target_compile_options(graft_roofline PRIVATE -O2)
  target_link_libraries(graft_roofline PRIVATE Threads::Threads)
endif()
