# Dependencies of src/text: Unicode's tables, the regular expressions of tokenizer.json, JSON.
find_package(nlohmann_json CONFIG REQUIRED)
find_path(GRAFT_ONIG_INCLUDE oniguruma.h REQUIRED)
find_library(GRAFT_ONIG_LIBRARY onig REQUIRED)
find_path(GRAFT_UTF8PROC_INCLUDE utf8proc.h REQUIRED)
# The static archive where there is one: one library less to ship.
find_library(GRAFT_UTF8PROC_LIBRARY NAMES libutf8proc.a utf8proc REQUIRED)

# Distributions package no static Oniguruma: an install has the shared one beside libgraft, under the name that the
# loader looks for.
file(REAL_PATH "${GRAFT_ONIG_LIBRARY}" GRAFT_ONIG_FILE)
file(GLOB onig_links "${GRAFT_ONIG_LIBRARY}.[0-9]*")
list(FILTER onig_links INCLUDE REGEX "\\.so\\.[0-9]+$")
if(onig_links)
  list(GET onig_links 0 onig_link)
  cmake_path(GET onig_link FILENAME GRAFT_ONIG_SONAME)
else()
  cmake_path(GET GRAFT_ONIG_FILE FILENAME GRAFT_ONIG_SONAME)
endif()
