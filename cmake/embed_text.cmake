# Writes a text file as a C++ source: cmake -DINPUT=... -DOUTPUT=... -DNAMESPACE=graft::cli -DNAME=kPage -P embed_text.cmake
file(READ "${INPUT}" text)
file(WRITE "${OUTPUT}" "#include <string_view>\n\nnamespace ${NAMESPACE} {\nextern const std::string_view ${NAME};\n"
                       "const std::string_view ${NAME} = R\"embedded(${text})embedded\";\n}  // namespace ${NAMESPACE}\n")
