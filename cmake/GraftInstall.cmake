# Components:
#   sdk            for C++ (the default of `cmake --install`): libgraft with ggml beside it, headers, graftConfig, graft
#   python         the binary part of the Python package with the SDK's headers, for wheels and for .venv
#   python_ggml    ggml's libraries beside it; in .venv they are links
#   python_source  its Python files, for .venv only (scikit-build-core takes them itself)
# Builds with ggml from source are for sanitizers and not installed, except those for all CPUs.
if(GRAFT_GGML_SOURCE AND NOT GRAFT_ALL_CPUS)
  return()
endif()
include(CMakePackageConfigHelpers)

# --- sdk ---
install(TARGETS graft EXPORT graftTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk)
install(DIRECTORY include/graft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT sdk FILES_MATCHING PATTERN "*.h")
if(TARGET graft_cli)
  install(TARGETS graft_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT sdk)
endif()
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/graft)
install(EXPORT graftTargets NAMESPACE graft:: DESTINATION ${config_dir} COMPONENT sdk)
configure_package_config_file(cmake/graftConfig.cmake.in "${CMAKE_BINARY_DIR}/graftConfig.cmake"
                              INSTALL_DESTINATION ${config_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/graftConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/graftConfig.cmake" "${CMAKE_BINARY_DIR}/graftConfigVersion.cmake"
        DESTINATION ${config_dir} COMPONENT sdk)
install(FILES LICENSE THIRD_PARTY_LICENSES.md DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/graft COMPONENT sdk)

# A ggml for all CPUs is installed beside libgraft in both: its libraries and its backends, which are modules.
if(GRAFT_ALL_CPUS)
  set(ggml_targets ggml ggml-base ${GGML_AVAILABLE_BACKENDS})
  set_target_properties(${ggml_targets} PROPERTIES INSTALL_RPATH "$ORIGIN")
  # libgraft's export names the libraries that it needs.
  install(TARGETS ggml ggml-base EXPORT graftTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP COMPONENT sdk)
  install(TARGETS ${GGML_AVAILABLE_BACKENDS} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk)
  install(TARGETS ${ggml_targets} LIBRARY DESTINATION graft/lib NAMELINK_SKIP COMPONENT python_ggml EXCLUDE_FROM_ALL)
endif()

# Where `make vulkan` and `make cuda` have built them: modules, loaded from beside ggml's libraries.
if(GRAFT_GGML_LIB_DIR)
  foreach(module vulkan cuda)
    set(file "${GRAFT_GGML_LIB_DIR}/libggml-${module}.so")
    install(FILES "${file}" DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk OPTIONAL)
    install(FILES "${file}" DESTINATION graft/lib COMPONENT python_ggml OPTIONAL EXCLUDE_FROM_ALL)
  endforeach()
endif()
# The libraries of an installed ggml, under the names that the loader looks for. They find each other through $ORIGIN.
foreach(part ggml ggml-base ggml-cpu ggml-rpc)
  if(TARGET ggml::${part} AND NOT GRAFT_ALL_CPUS)
    get_target_property(location ggml::${part} IMPORTED_LOCATION)
    file(GLOB by_soname "${location}.*")
    list(FILTER by_soname INCLUDE REGEX "\\.so\\.[a-z0-9]+$")
    foreach(link IN LISTS by_soname)
      cmake_path(GET link FILENAME name)
      file(REAL_PATH "${link}" real)
      install(FILES "${real}" DESTINATION ${CMAKE_INSTALL_LIBDIR} RENAME "${name}" COMPONENT sdk)
      install(FILES "${real}" DESTINATION graft/lib RENAME "${name}" COMPONENT python_ggml EXCLUDE_FROM_ALL)
    endforeach()
  endif()
endforeach()

install(FILES "${GRAFT_ONIG_FILE}" DESTINATION ${CMAKE_INSTALL_LIBDIR} RENAME "${GRAFT_ONIG_SONAME}" COMPONENT sdk)

# --- python ---
set(package_dir graft)
if(SKBUILD)
  set(scripts_dir "${SKBUILD_SCRIPTS_DIR}")
else()
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import sysconfig; print(sysconfig.get_paths()['scripts'])"
    OUTPUT_VARIABLE scripts_dir OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
install(TARGETS graft LIBRARY DESTINATION ${package_dir}/lib COMPONENT python EXCLUDE_FROM_ALL)
install(FILES "${GRAFT_ONIG_FILE}" DESTINATION ${package_dir}/lib RENAME "${GRAFT_ONIG_SONAME}" COMPONENT python EXCLUDE_FROM_ALL)
if(TARGET graft_executorch)
  install(TARGETS graft_executorch LIBRARY DESTINATION ${package_dir}/lib COMPONENT python EXCLUDE_FROM_ALL)
endif()
if(TARGET _C)
  install(TARGETS _C LIBRARY DESTINATION ${package_dir} COMPONENT python EXCLUDE_FROM_ALL)
endif()
if(TARGET graft_cli)
  install(TARGETS graft_cli RUNTIME DESTINATION "${scripts_dir}" COMPONENT python EXCLUDE_FROM_ALL)
endif()
install(DIRECTORY "${GRAFT_GENERATED_PYTHON}/graft/_fb" DESTINATION ${package_dir} COMPONENT python EXCLUDE_FROM_ALL
        PATTERN "__pycache__" EXCLUDE)

# The SDK for C++ is in the package, too: `python -m graft --cmake-prefix`.
install(DIRECTORY include/graft DESTINATION ${package_dir}/include COMPONENT python EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.h")
install(FILES cmake/wheel/graftConfig.cmake "${CMAKE_BINARY_DIR}/graftConfigVersion.cmake"
        DESTINATION ${package_dir}/lib/cmake/graft COMPONENT python EXCLUDE_FROM_ALL)

install(DIRECTORY python/graft/ DESTINATION ${package_dir} COMPONENT python_source EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
