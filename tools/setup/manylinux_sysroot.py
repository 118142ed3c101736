"""Makes a folder to compile against that has glibc 2.28 and the libstdc++ of its time, for wheels that run on every
distribution since 2019 (manylinux_2_28). usage: manylinux_sysroot.py OUT, with ziglang installed beside this Python.

Zig's package has the headers of every glibc and makes libraries that only say which symbols each version has. The
compiler stays the distribution's. Of libstdc++, symbols that the policy allows come from the shared library of the machine
that runs the program, as everything that throws and catches needs; newer ones are linked from libstdc++.a, the way of
the compilers of manylinux's own images.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile

GLIBC = 28
# The newest versions of the policy manylinux_2_28.
NEWEST = {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
# What a compiler for a newer glibc takes for granted: later functions of pthread and of random numbers.
LATER = ("_GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT", "_GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK",
         "_GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK", "_GLIBCXX_HAVE_ARC4RANDOM")  # fmt: skip
# Headers of libraries that the build links from the distribution, with their CMake packages.
HEADERS = ("boost", "nlohmann", "CLI", "flatbuffers", "oniguruma.h", "utf8proc.h", "histedit.h", "zlib.h", "zconf.h")
PACKAGES = ("share/cmake/nlohmann_json", "share/cmake/CLI11", "lib/cmake/CLI11", "lib/cmake/nlohmann_json")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def glibc(root: Path) -> None:
    zig = Path(sysconfig.get_path("platlib")) / "ziglang"
    include = root / "usr" / "include"
    for part in ("any-linux-any", "x86-linux-any", "generic-glibc", "x86-linux-gnu"):  # the later one counts
        shutil.copytree(zig / "lib" / "libc" / "include" / part, include, dirs_exist_ok=True)
    # libstdc++ would use a variable of glibc 2.32 where this header is.
    (include / "sys" / "single_threaded.h").unlink()

    cache = root / "zig"
    source = root / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    for kind in (["-fPIE", "-pie"], ["-fno-PIE", "-no-pie"]):
        subprocess.run([zig / "zig", "cc", "-target", f"x86_64-linux-gnu.2.{GLIBC}", *kind, source, "-o", root / "empty"],
                       check=True, env=environment)  # fmt: skip
    library = root / "usr" / "lib"
    library.mkdir()
    for name in ("Scrt1.o", "crt1.o", "libc_nonshared.a", "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2",
                 "librt.so.1", "libutil.so.1", "libresolv.so.2", "libld.so.2"):  # fmt: skip
        found = list(cache.rglob(name))
        if not found:
            raise SystemExit(f"manylinux_sysroot.py: expected {name} among what zig made in {cache}, found none")
        shutil.copy(found[0], library / name)
        if ".so." in name:
            (library / re.sub(r"\.so\..*", ".so", name)).symlink_to(name)
    shutil.rmtree(cache)
    (library / "libc.so").unlink()
    # The dynamic linker has thread-local variables.
    (library / "libc.so").write_text("INPUT(/usr/lib/libc.so.6 /usr/lib/libc_nonshared.a AS_NEEDED(/usr/lib/libld.so.2))\n")
    for name in ("crti.o", "crtn.o"):  # two empty functions, the same in every version
        shutil.copy(output("gcc", f"-print-file-name={name}"), library / name)


def symbols(library: str) -> Iterator[tuple[str, str, str, int]]:
    """Name, version, kind and size of each that the policy allows."""
    with open(library, "rb") as file:
        elf = ELFFile(file)
        table, versions = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
        names = {node["vd_ndx"]: next(iter(auxiliary)).name
                 for node, auxiliary in elf.get_section_by_name(".gnu.version_d").iter_versions()}  # fmt: skip
        newest: dict[str, tuple[tuple[int, ...], str, str, int]] = {}
        for i, symbol in enumerate(table.iter_symbols()):
            index = versions.get_symbol(i)["ndx"]
            if symbol["st_shndx"] in ("SHN_UNDEF", "SHN_ABS") or not isinstance(index, int):
                continue
            version = names[index & 0x7FFF]
            group, _, number = version.partition("_")
            if group not in NEWEST:
                continue
            # CXXABI_FLOAT128 and the like have no number and are as old as the policy.
            order = tuple(int(part) for part in number.split(".")) if number[0].isdigit() else (0,)
            if order <= NEWEST[group] and order >= newest.get(symbol.name, ((0,),))[0]:
                newest[symbol.name] = (order, version, symbol["st_info"]["type"], symbol["st_size"])
        for name, (_, version, kind, size) in newest.items():
            yield name, version, kind, size


def libstdcxx(root: Path) -> None:
    library = root / "usr" / "lib"
    sections = {"STT_FUNC": (".text", "function"), "STT_GNU_IFUNC": (".text", "function"),
                "STT_TLS": ('.section .tbss,"awT",@nobits', "tls_object")}  # fmt: skip
    lines, versions = [], {}
    for name, version, kind, size in symbols(output("g++", "-print-file-name=libstdc++.so.6")):
        section, type_ = sections.get(kind, (".data", "object"))
        lines += [section, f".globl {name}", f".type {name},@{type_}", f".size {name},{size}"]
        lines += [".balign 32", f"{name}: .zero {size if type_ != 'function' else 1}"]
        versions.setdefault(version, []).append(name)
    assembly, script = root / "libstdc++.s", root / "libstdc++.map"
    assembly.write_text("\n".join([*lines, '.section .note.GNU-stack,"",@progbits']) + "\n")
    script.write_text("".join(f"{version} {{ {' '.join(f'{n};' for n in names)} }};\n" for version, names in versions.items()))
    subprocess.run(["gcc", "-shared", "-nostdlib", "-Wl,-soname,libstdc++.so.6", f"-Wl,--version-script={script}", assembly,
                    "-o", library / "libstdc++.so.6"], check=True)  # fmt: skip
    # libstdc++.a reads a flag of glibc 2.32 that says whether there are no threads. It may always say that there are.
    flag = root / "single_threaded.s"
    flag.write_text(".data\n.globl __libc_single_threaded\n.hidden __libc_single_threaded\n__libc_single_threaded: .byte 0\n"
                    '.section .note.GNU-stack,"",@progbits\n')  # fmt: skip
    subprocess.run(["gcc", "-c", flag, "-o", root / "single_threaded.o"], check=True)
    subprocess.run(["ar", "rcsD", library / "libsingle_threaded.a", root / "single_threaded.o"], check=True)
    shutil.copy(output("g++", "-print-file-name=libstdc++.a"), library)
    # The linker reads these paths inside the folder.
    files = [f"/usr/lib/{name}" for name in ("libstdc++.so.6", "libstdc++.a", "libsingle_threaded.a")]
    (library / "libstdc++.so").write_text(f"INPUT({' '.join(files)})\n")

    version = output("g++", "-dumpversion")
    include = root / "usr" / "include"
    shutil.copytree(f"/usr/include/c++/{version}", include / "c++" / version)
    machine = output("g++", "-print-multiarch")
    shutil.copytree(f"/usr/include/{machine}/c++/{version}", include / machine / "c++" / version)
    config = include / machine / "c++" / version / "bits" / "c++config.h"
    text = config.read_text()
    for name in LATER:
        text = re.sub(rf"^#define {name}\b.*$", f"/* {name} */", text, flags=re.M)
    config.write_text(text)


def libraries(root: Path) -> None:
    for name in HEADERS:
        (root / "usr" / "include" / name).symlink_to(f"/usr/include/{name}")
    machine = Path("/usr/include", output("g++", "-print-multiarch"))
    for name in machine.glob("python3.*"):  # where Debian's Python.h finds its pyconfig.h
        (root / name.relative_to("/")).symlink_to(name)
    for package in PACKAGES:
        if Path("/usr", package).exists():
            (root / "usr" / package).parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(Path("/usr", package), root / "usr" / package)


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    glibc(out)
    libstdcxx(out)
    libraries(out)


main(Path(sys.argv[1]).resolve())
