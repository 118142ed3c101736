# The thin adapters: command line with the server and batches, Python module, ExecuTorch delegate.
# Where the Python package lies, seen from the environment's bin. A wheel of the stable ABI is for later versions, too.
set(python_lib_dirs "$ORIGIN/../lib/python${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}/site-packages/graft/lib")
if(SKBUILD_SABI_VERSION)
  foreach(minor RANGE 13 20)
    list(APPEND python_lib_dirs "$ORIGIN/../lib/python3.${minor}/site-packages/graft/lib")
  endforeach()
  list(REMOVE_DUPLICATES python_lib_dirs)
endif()

file(GLOB_RECURSE cli_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/cli/*.cpp"
     "${CMAKE_CURRENT_SOURCE_DIR}/src/serve/*.cpp" "${CMAKE_CURRENT_SOURCE_DIR}/src/batch/*.cpp")
list(FILTER cli_sources EXCLUDE REGEX "_test\\.cpp$")
if(GRAFT_CLI AND cli_sources)
  find_package(CLI11 CONFIG REQUIRED)
  find_package(nlohmann_json CONFIG REQUIRED)
  # libzip's own CMake files require programs that distributions package separately, and fail without them.
  find_path(GRAFT_ZIP_INCLUDE zip.h REQUIRED)
  find_library(GRAFT_ZIP_LIBRARY zip REQUIRED)
  find_path(GRAFT_EDIT_INCLUDE histedit.h REQUIRED)
  find_library(GRAFT_EDIT_LIBRARY edit REQUIRED)
  find_path(GRAFT_BOOST_INCLUDE boost/beast.hpp REQUIRED)
  # Files that are embedded in the program as strings: pages, the server's OpenAPI document.
  foreach(embedded IN ITEMS "src/cli/page.html|graft::cli|kPage" "src/serve/openapi/paths.json|graft::serve|kOpenApiPaths"
                             "src/serve/openapi/schemas.json|graft::serve|kOpenApiSchemas"
                             "src/serve/page.html|graft::serve|kPage")
    string(REPLACE "|" ";" embedded "${embedded}")
    list(GET embedded 0 text_file)
    list(GET embedded 1 text_namespace)
    list(GET embedded 2 text_name)
    string(MAKE_C_IDENTIFIER "${text_file}" text_source)
    set(text_source "${GRAFT_GENERATED}/${text_source}.cpp")
    add_custom_command(OUTPUT "${text_source}"
      COMMAND "${CMAKE_COMMAND}" "-DINPUT=${CMAKE_CURRENT_SOURCE_DIR}/${text_file}" "-DOUTPUT=${text_source}"
              -DNAMESPACE=${text_namespace} -DNAME=${text_name} -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed_text.cmake"
      DEPENDS "${text_file}" cmake/embed_text.cmake VERBATIM)
    list(APPEND cli_sources "${text_source}")
  endforeach()
  if(GRAFT_SANITIZE MATCHES "thread")
    # It does not follow fences, which Asio puts around each handler; the queues of handlers are locked too.
    set_property(SOURCE ${cli_sources} APPEND PROPERTY COMPILE_DEFINITIONS BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
  # Compiled once for the program and for the tests.
  list(FILTER cli_sources EXCLUDE REGEX "/main\\.cpp$")
  add_library(graft_cli_objects OBJECT ${cli_sources})
  graft_target(graft_cli_objects)
  target_include_directories(graft_cli_objects PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}/include" "${CMAKE_CURRENT_SOURCE_DIR}/src")
  target_include_directories(graft_cli_objects SYSTEM PUBLIC "${GRAFT_ZIP_INCLUDE}" "${GRAFT_EDIT_INCLUDE}"
                                                             "${GRAFT_BOOST_INCLUDE}")
  target_link_libraries(graft_cli_objects PUBLIC CLI11::CLI11 nlohmann_json::nlohmann_json ${GRAFT_ZIP_LIBRARY}
                                                 ${GRAFT_EDIT_LIBRARY} Threads::Threads)
  # Some files at a time: most of what each of them costs is the headers of JSON.
  set_target_properties(graft_cli_objects PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  # GCC warns of a field whose type is local to a file, but in the file itself.
  set_source_files_properties(src/serve/http/server.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_precompile_headers(graft_cli_objects PRIVATE ${graft_std_headers} "${CMAKE_CURRENT_SOURCE_DIR}/src/base/json.h")

  add_executable(graft_cli src/cli/main.cpp $<TARGET_OBJECTS:graft_json>)
  graft_target(graft_cli)
  set_target_properties(graft_cli PROPERTIES
    OUTPUT_NAME graft
    # The C++ install, and the environment's bin next to the Python package.
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${python_lib_dirs}")
  target_link_libraries(graft_cli PRIVATE graft_cli_objects graft)

  # Unit tests of its sources are part of graft_tests; src/cli/cli_test.py tests the whole program.
  if(TARGET graft_tests)
    file(GLOB_RECURSE cli_test_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/cli/*_test.cpp"
         "${CMAKE_CURRENT_SOURCE_DIR}/src/serve/*_test.cpp" "${CMAKE_CURRENT_SOURCE_DIR}/src/batch/*_test.cpp")
    target_sources(graft_tests PRIVATE ${cli_test_sources})
    target_link_libraries(graft_tests PRIVATE graft_cli_objects)
  endif()
endif()

file(GLOB_RECURSE python_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/python/*.cpp")
list(FILTER python_sources EXCLUDE REGEX "_test\\.cpp$")
if(GRAFT_PYTHON AND python_sources)
  find_package(nanobind CONFIG QUIET HINTS "${GRAFT_SITE_PACKAGES}/nanobind/cmake")
  if(NOT nanobind_FOUND)
    execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
                    OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    find_package(nanobind CONFIG REQUIRED)
  endif()
  # The stable ABI where scikit-build-core builds a wheel of it (pyproject.toml: wheel.py-api).
  if(SKBUILD_SABI_VERSION)
    nanobind_add_module(_C NB_STATIC NOMINSIZE STABLE_ABI ${python_sources})
    set_target_properties(nanobind-static-abi3 PROPERTIES SYSTEM ON)  # no warnings from its headers
  else()
    nanobind_add_module(_C NB_STATIC NOMINSIZE ${python_sources})
    set_target_properties(nanobind-static PROPERTIES SYSTEM ON)
  endif()
  graft_target(_C)
  set_target_properties(_C PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/python/graft"
                                      INSTALL_RPATH "$ORIGIN/lib")
  target_include_directories(_C PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src")
  target_link_libraries(_C PRIVATE graft)
endif()

file(GLOB_RECURSE executorch_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/executorch/*.cpp")
list(FILTER executorch_sources EXCLUDE REGEX "_test\\.cpp$")
if(GRAFT_EXECUTORCH AND executorch_sources)
  find_package(executorch 1.5 CONFIG REQUIRED COMPONENTS runtime HINTS "${GRAFT_EXECUTORCH_ROOT}/share/cmake")
  # The package's target adds an rpath with this machine's absolute folder of the wheel. INSTALL_RPATH below finds the
  # library from the Python package instead, and in the build tree CMake adds what is needed.
  get_property(executorch_targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  list(FILTER executorch_targets INCLUDE REGEX "^executorch::")
  foreach(target IN LISTS executorch_targets)
    get_target_property(options ${target} INTERFACE_LINK_OPTIONS)
    if(options)
      list(FILTER options EXCLUDE REGEX "rpath")
      set_target_properties(${target} PROPERTIES INTERFACE_LINK_OPTIONS "${options}")
    endif()
  endforeach()
  add_library(graft_executorch SHARED ${executorch_sources})
  graft_target(graft_executorch)
  set_target_properties(graft_executorch PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../../executorch/lib")
  target_include_directories(graft_executorch PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src")
  target_link_libraries(graft_executorch PRIVATE graft executorch::runtime)
endif()

# What `make demo` builds: no tests, no measurements.
add_custom_target(graft_product)
foreach(part graft graft_cli _C graft_executorch)
  if(TARGET ${part})
    add_dependencies(graft_product ${part})
  endif()
endforeach()
