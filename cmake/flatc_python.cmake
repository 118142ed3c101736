# Script: writes the package graft/_fb under OUT from SCHEMA, and graft/_fb/executorch from the schemas of ExecuTorch's
# container in EXECUTORCH_SCHEMAS, with an object API. flatc takes the packages' names from the namespaces; RENAMED is
# a folder for schemas with others.
file(REMOVE_RECURSE "${OUT}/graft")
function(write_python schema from to)
  file(READ "${schema}" text)
  string(REPLACE "namespace ${from};" "namespace ${to};" text "${text}")
  cmake_path(GET schema FILENAME name)
  file(WRITE "${RENAMED}/${name}" "${text}")
  execute_process(COMMAND "${FLATC}" --python ${ARGN} -o "${OUT}" "${RENAMED}/${name}" COMMAND_ERROR_IS_FATAL ANY)
endfunction()
foreach(name IN ITEMS scalar_type program)
  write_python("${EXECUTORCH_SCHEMAS}/${name}.fbs" executorch_flatbuffer graft._fb.executorch --gen-object-api)
endforeach()
write_python("${SCHEMA}" graft.fb graft._fb)
