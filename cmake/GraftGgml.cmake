# ggml 0.25: from the package llama-cpp-python, or from source (sanitizers, and wheels for all CPUs).
set(GRAFT_GGML_WANTED 0.25)
if(GRAFT_ALL_CPUS AND NOT GRAFT_GGML_SOURCE)
  message(FATAL_ERROR "GRAFT_ALL_CPUS needs ggml's source: give -DGRAFT_GGML_SOURCE=<folder>, or run `make wheel-all-cpus`.")
endif()
if(GRAFT_ALL_CPUS AND GRAFT_TESTS)
  message(FATAL_ERROR "graft_tests links ggml's CPU backend, which GRAFT_ALL_CPUS makes a module: give -DGRAFT_TESTS=OFF.")
endif()
if(GRAFT_GGML_SOURCE)
  include(GgmlFromSource)
  set(GGML_RPC ON CACHE BOOL "" FORCE)
  block()
    set(BUILD_SHARED_LIBS ON)
    if(GRAFT_ALL_CPUS)
      set(GGML_NATIVE OFF CACHE BOOL "" FORCE)
      set(GGML_BACKEND_DL ON CACHE BOOL "" FORCE)
      set(GGML_CPU_ALL_VARIANTS ON CACHE BOOL "" FORCE)
      set(GGML_LLAMAFILE ON CACHE BOOL "" FORCE)
      set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")  # where ggml puts modules: beside libgraft
      string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
    endif()
    add_subdirectory("${GRAFT_GGML_SOURCE}" "${CMAKE_BINARY_DIR}/ggml" EXCLUDE_FROM_ALL SYSTEM)
  endblock()
  if(GRAFT_ALL_CPUS)
    # SONAMEs of their own, so that a process that also loads llama-cpp-python's ggml does not mix the two.
    set_target_properties(ggml ggml-base PROPERTIES SOVERSION graft VERSION graft)
  endif()
  foreach(part ggml ggml-base ggml-cpu ggml-rpc ggml-cuda)
    if(TARGET ${part} AND NOT TARGET ggml::${part})
      add_library(ggml::${part} ALIAS ${part})
    endif()
  endforeach()
  set(GRAFT_GGML_LIB_DIR "")
  get_directory_property(GRAFT_GGML_RELEASE DIRECTORY "${GRAFT_GGML_SOURCE}" DEFINITION GGML_VERSION)
  get_directory_property(GRAFT_GGML_COMMIT DIRECTORY "${GRAFT_GGML_SOURCE}" DEFINITION GGML_BUILD_COMMIT)
else()
  list(PREPEND CMAKE_PREFIX_PATH "${GRAFT_SITE_PACKAGES}")
  find_package(ggml ${GRAFT_GGML_WANTED} CONFIG QUIET)
  if(NOT ggml_FOUND)
    message(FATAL_ERROR
      "No ggml ${GRAFT_GGML_WANTED} in ${GRAFT_SITE_PACKAGES}. It comes with llama-cpp-python; install that first:\n"
      "  CMAKE_ARGS=\"-DGGML_OPENMP=OFF -DGGML_RPC=ON -DLLAVA_BUILD=OFF\" pip install llama-cpp-python==0.3.36\n"
      "or give -DGRAFT_GGML_SOURCE=<folder of ggml's source>.")
  endif()
  if(GGML_OPENMP_ENABLED)
    message(FATAL_ERROR "The ggml in ${GRAFT_SITE_PACKAGES} was built with OpenMP: its thread pool would have no "
                        "threads. Build llama-cpp-python again with CMAKE_ARGS=\"-DGGML_OPENMP=OFF -DGGML_RPC=ON -DLLAVA_BUILD=OFF\".")
  endif()
  # Compared at load with the version and commit of the ggml that the process has loaded.
  set(GRAFT_GGML_RELEASE "${GGML_VERSION}")
  set(GRAFT_GGML_COMMIT "${GGML_BUILD_COMMIT}")
  get_target_property(ggml_location ggml::ggml IMPORTED_LOCATION)
  cmake_path(GET ggml_location PARENT_PATH GRAFT_GGML_LIB_DIR)
endif()

if(GRAFT_CUDA AND NOT TARGET ggml::ggml-cuda)
  message(FATAL_ERROR
    "GRAFT_CUDA is on, but this ggml has no CUDA backend. Build it with one first:\n"
    "  CMAKE_ARGS=\"-DGGML_OPENMP=OFF -DGGML_RPC=ON -DLLAVA_BUILD=OFF -DGGML_CUDA=ON\" pip install --force-reinstall --no-deps "
    "--no-binary :all: llama-cpp-python==0.3.36")
endif()
