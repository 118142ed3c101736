# A backend of ggml as a module, for the projects in cmake/vulkan and cmake/cuda.
find_package(ggml CONFIG REQUIRED)

# Takes the place of ggml's own function: a module that links the installed ggml-base, which the CPU's backend links too.
function(ggml_add_backend_library backend)
  add_library(${backend} MODULE ${ARGN})
  target_compile_definitions(${backend} PRIVATE GGML_BACKEND_DL GGML_BACKEND_BUILD GGML_BACKEND_SHARED GGML_SHARED)
  target_include_directories(${backend} PRIVATE "${GRAFT_GGML_SOURCE}/src" "${GRAFT_GGML_SOURCE}/include")
  target_link_libraries(${backend} PRIVATE ggml::ggml-base)
  set_target_properties(${backend} PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS ${backend} LIBRARY DESTINATION lib)
endfunction()
