# Script: writes the package graft/_fb under OUT from SCHEMA.
file(READ "${SCHEMA}" text)
string(REPLACE "namespace graft.fb;" "namespace graft._fb;" text "${text}")
file(WRITE "${RENAMED}" "${text}")
file(REMOVE_RECURSE "${OUT}/graft")
execute_process(COMMAND "${FLATC}" --python -o "${OUT}" "${RENAMED}" COMMAND_ERROR_IS_FATAL ANY)
