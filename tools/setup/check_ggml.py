"""Exit status 0 when the installed ggml was built without OpenMP, with RPC and for a CPU like this one."""

import ctypes
import pathlib
import re
import sys
import sysconfig

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


def problems(site: pathlib.Path) -> list[str]:
    config = (site / "lib/cmake/ggml/ggml-config.cmake").read_text()
    found = []
    if not re.search(r'set\(GGML_OPENMP_ENABLED "OFF"\)', config):
        found.append("it was built with OpenMP")
    if not (site / "llama_cpp/lib/libggml-rpc.so").exists():
        found.append("it was built without RPC")
    match = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    if match is None:  # not an x86 CPU
        return found
    here = set(match.group(1).split())
    ggml_cpu = ctypes.CDLL(str(site / "llama_cpp/lib/libggml-cpu.so"))
    for function, flags in FEATURES.items():
        missing = [flag for flag in flags if flag not in here]
        if getattr(ggml_cpu, function)() and missing:
            found.append(f"it needs {', '.join(missing)}, which this CPU lacks")
    return found


def main() -> int:
    found = problems(pathlib.Path(sysconfig.get_paths()["platlib"]))
    if found:
        print("== The installed ggml does not fit: " + "; ".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
