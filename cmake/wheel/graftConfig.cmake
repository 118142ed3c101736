# The C++ SDK inside the Python package, whose folder `python -m graft --cmake-prefix` prints.
cmake_path(SET graft_package NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../..")
foreach(graft_target IN ITEMS graft executorch)
  if(NOT TARGET graft::${graft_target})
    add_library(graft::${graft_target} SHARED IMPORTED)
    set_target_properties(graft::${graft_target} PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${graft_package}/include" INTERFACE_COMPILE_FEATURES cxx_std_20)
  endif()
endforeach()
set_target_properties(graft::graft PROPERTIES IMPORTED_LOCATION "${graft_package}/lib/libgraft.so")
# The ExecuTorch delegate, which registers itself; it needs the libraries of the package `executorch`.
set_target_properties(graft::executorch PROPERTIES IMPORTED_LOCATION "${graft_package}/lib/libgraft_executorch.so")
unset(graft_package)
unset(graft_target)
