# How graft builds ggml's source: threads of graft's own, the CPU backend alone unless more is asked for.
set(GGML_OPENMP OFF CACHE BOOL "" FORCE)
set(GGML_BUILD_TESTS OFF CACHE BOOL "" FORCE)
set(GGML_BUILD_EXAMPLES OFF CACHE BOOL "" FORCE)
set(GGML_CCACHE OFF CACHE BOOL "" FORCE)  # ours is set already
# The source has no history of its own: git would name the commit of the tree around it.
set(GIT_EXE OFF CACHE FILEPATH "Names ggml's commit")
