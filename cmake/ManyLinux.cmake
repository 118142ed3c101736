# Toolchain of `make wheels`: the machine's own compiler with the glibc and libstdc++ of the folder that
# tools/setup/manylinux_sysroot.py made. It also names the libraries that are linked as archives: the shared ones of the
# distribution need its glibc.
#   GRAFT_SYSROOT   that folder
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES GRAFT_SYSROOT)
set(CMAKE_SYSROOT "${GRAFT_SYSROOT}")
set(graft_multiarch x86_64-linux-gnu)
file(GLOB graft_cxx_headers "${GRAFT_SYSROOT}/usr/include/c++/*")
get_filename_component(graft_cxx_version "${graft_cxx_headers}" NAME)
# Assertions name files relative to the project's root: the same bytes wherever it is built.
get_filename_component(graft_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(graft_flags "-D__GLIBC_MINOR__=28 -ffile-prefix-map=${graft_root}/=")
set(CMAKE_C_FLAGS_INIT "${graft_flags}")
string(CONCAT CMAKE_CXX_FLAGS_INIT "${graft_flags} -nostdinc++ -isystem ${graft_cxx_headers}"
       " -isystem ${GRAFT_SYSROOT}/usr/include/${graft_multiarch}/c++/${graft_cxx_version}"
       " -isystem ${graft_cxx_headers}/backward")
# The distribution's libgcc_s needs a newer glibc than what is linked here; where the program runs there is another one.
set(graft_link "-L${GRAFT_SYSROOT}/usr/lib -Wl,--allow-shlib-undefined -Wl,--exclude-libs,ALL -Wl,--as-needed")
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "${graft_link}")
endforeach()
# Before 2.34 these were libraries of their own.
set(CMAKE_C_STANDARD_LIBRARIES "-lpthread -ldl -lrt -lm")
set(CMAKE_CXX_STANDARD_LIBRARIES "-lpthread -ldl -lrt -lm")

set(graft_archives "/usr/lib/${graft_multiarch}")
set(GRAFT_ZIP_INCLUDE "${GRAFT_SYSROOT}/usr/include" CACHE PATH "")
set(GRAFT_ZIP_LIBRARY "${GRAFT_SYSROOT}/usr/lib/libzip.a;${graft_archives}/libz.a" CACHE STRING "")
set(GRAFT_EDIT_LIBRARY
    "${graft_archives}/libedit.a;${graft_archives}/libbsd.a;${graft_archives}/libmd.a;${graft_archives}/libtinfo.a"
    CACHE STRING "")
