"""Exit status 0 when an installed ggml was built for a CPU like this one. usage: check_ggml.py PREFIX"""

import ctypes
import pathlib
import re
import sys

# ggml's compile-time answers and the flags of /proc/cpuinfo that they need.
FEATURES = {
    "ggml_cpu_has_avx": ["avx"],
    "ggml_cpu_has_avx2": ["avx2"],
    "ggml_cpu_has_fma": ["fma"],
    "ggml_cpu_has_f16c": ["f16c"],
    "ggml_cpu_has_bmi2": ["bmi2"],
    "ggml_cpu_has_avx_vnni": ["avx_vnni"],
    "ggml_cpu_has_avx512": ["avx512f", "avx512bw", "avx512dq", "avx512vl"],
    "ggml_cpu_has_avx512_vbmi": ["avx512vbmi"],
    "ggml_cpu_has_avx512_vnni": ["avx512_vnni"],
    "ggml_cpu_has_avx512_bf16": ["avx512_bf16"],
    "ggml_cpu_has_amx_int8": ["amx_int8"],
}


def problems(prefix: pathlib.Path) -> list[str]:
    match = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    if match is None:  # not an x86 CPU
        return []
    here = set(match.group(1).split())
    ggml_cpu = ctypes.CDLL(str(prefix / "lib/libggml-cpu.so"))
    found = []
    for function, flags in FEATURES.items():
        missing = [flag for flag in flags if flag not in here]
        if getattr(ggml_cpu, function)() and missing:
            found.append(f"it needs {', '.join(missing)}, which this CPU lacks")
    return found


def main(prefix: pathlib.Path) -> int:
    found = problems(prefix)
    if found:
        print("== The installed ggml does not fit: " + "; ".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
