# How graft builds ggml's source: graft's thread pool instead of OpenMP, and only the CPU backend by default.
set(GGML_OPENMP OFF CACHE BOOL "" FORCE)
set(GGML_BUILD_TESTS OFF CACHE BOOL "" FORCE)
set(GGML_BUILD_EXAMPLES OFF CACHE BOOL "" FORCE)
set(GGML_CCACHE OFF CACHE BOOL "" FORCE)  # graft sets the launcher itself
# The source has no git history: git would name the commit of the enclosing tree.
set(GIT_EXE OFF CACHE FILEPATH "Names ggml's commit")

# SONAMEs of graft's own, so that a process that also loads another ggml (llama-cpp-python's, say) does not mix the two.
function(ggml_sonames)
  foreach(part ggml ggml-base ggml-cpu ggml-rpc ggml-cuda)
    if(TARGET ${part})
      get_target_property(type ${part} TYPE)
      if(type STREQUAL "SHARED_LIBRARY")
        set_target_properties(${part} PROPERTIES SOVERSION graft VERSION graft)
      endif()
    endif()
  endforeach()
endfunction()

# GCC before 12.4, 13.3 and 14 takes _tile_loadconfig to read 8 bytes of the 64 (GCC bug 114098), so it drops the stores of
# the other 56, and products on AMX end in a fault. The header makes it read all memory.
function(ggml_tile_configuration)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14.1)
    file(GLOB_RECURSE sources "${GRAFT_GGML_SOURCE}/src/ggml-cpu/amx/*.cpp")
    set_source_files_properties(${sources} DIRECTORY "${GRAFT_GGML_SOURCE}/src" PROPERTIES
      COMPILE_OPTIONS "-include;${CMAKE_CURRENT_FUNCTION_LIST_DIR}/ggml/tile_loadconfig.h")
  endif()
endfunction()
