# Where the Python environment keeps the packages that ggml, executorch and nanobind come from. No module is imported:
# under pip's build isolation the packages exist but cannot be imported.
if(SKBUILD AND NOT Python_EXECUTABLE)
  message(FATAL_ERROR "scikit-build-core gave no Python_EXECUTABLE")
endif()
if(NOT Python_EXECUTABLE AND EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/.venv/bin/python")
  set(Python_EXECUTABLE "${CMAKE_CURRENT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "Python of the environment")
endif()
if(GRAFT_PYTHON)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
else()
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
endif()
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import sysconfig; print(sysconfig.get_paths()['platlib'])"
  OUTPUT_VARIABLE GRAFT_SITE_PACKAGES OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(GRAFT_EXECUTORCH_ROOT "${GRAFT_SITE_PACKAGES}/executorch" CACHE PATH "The executorch package's folder")
