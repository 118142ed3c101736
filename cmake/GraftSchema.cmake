# C++ and Python code from the FlatBuffers schemas. The distribution's flatc is called by its absolute path: the
# executorch wheel puts another version first on PATH, and generated code must match the distribution's headers.
find_program(GRAFT_FLATC flatc PATHS /usr/bin /usr/local/bin /opt/homebrew/bin NO_DEFAULT_PATH REQUIRED)
find_path(GRAFT_FLATBUFFERS_INCLUDE flatbuffers/flatbuffers.h PATHS /usr/include /usr/local/include /opt/homebrew/include
          NO_DEFAULT_PATH REQUIRED)

set(GRAFT_GENERATED "${CMAKE_BINARY_DIR}/generated")
set(GRAFT_GENERATED_PYTHON "${GRAFT_GENERATED}/python")
file(MAKE_DIRECTORY "${GRAFT_GENERATED}")

set(program_schema "${GRAFT_EXECUTORCH_ROOT}/schema/program.fbs")
set(flat_tensor_schema "${GRAFT_EXECUTORCH_ROOT}/extension/flat_tensor/serialize/flat_tensor.fbs")
foreach(schema IN ITEMS "${program_schema}" "${flat_tensor_schema}")
  if(NOT EXISTS "${schema}")
    message(FATAL_ERROR "${schema} is missing: graft reads ExecuTorch's container format by the schemas of the "
                        "executorch 1.5.1 wheel. Install it, or set GRAFT_EXECUTORCH_ROOT to its folder.")
  endif()
endforeach()

set(GRAFT_GENERATED_HEADERS "")
function(graft_flatbuffers_header schema)
  cmake_path(GET schema STEM stem)
  set(header "${GRAFT_GENERATED}/${stem}_generated.h")
  add_custom_command(
    OUTPUT "${header}"
    COMMAND "${GRAFT_FLATC}" --cpp --scoped-enums --gen-object-api -o "${GRAFT_GENERATED}" "${schema}"
    DEPENDS "${schema}" COMMENT "flatc ${stem}.fbs" VERBATIM)
  set(GRAFT_GENERATED_HEADERS "${GRAFT_GENERATED_HEADERS};${header}" PARENT_SCOPE)
endfunction()
graft_flatbuffers_header("${CMAKE_CURRENT_SOURCE_DIR}/schema/graft.fbs")
graft_flatbuffers_header("${GRAFT_EXECUTORCH_ROOT}/schema/scalar_type.fbs")
graft_flatbuffers_header("${program_schema}")
graft_flatbuffers_header("${flat_tensor_schema}")

# In Python the generated modules are private: graft._fb, and graft._fb.executorch of ExecuTorch's container.
add_custom_command(
  OUTPUT "${GRAFT_GENERATED_PYTHON}/graft/_fb/Program.py"
  COMMAND "${CMAKE_COMMAND}" -DFLATC=${GRAFT_FLATC} -DSCHEMA=${CMAKE_CURRENT_SOURCE_DIR}/schema/graft.fbs
          -DEXECUTORCH_SCHEMAS=${GRAFT_EXECUTORCH_ROOT}/schema -DRENAMED=${GRAFT_GENERATED}/python_schema
          -DOUT=${GRAFT_GENERATED_PYTHON} -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/flatc_python.cmake"
  DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/schema/graft.fbs" "${program_schema}"
          "${CMAKE_CURRENT_SOURCE_DIR}/cmake/flatc_python.cmake"
  COMMENT "flatc graft.fbs, program.fbs (Python)" VERBATIM)

add_custom_target(graft_schema ALL DEPENDS ${GRAFT_GENERATED_HEADERS} "${GRAFT_GENERATED_PYTHON}/graft/_fb/Program.py")
