#!/usr/bin/env python3
"""Puts empty stand-ins for the CUDA libraries beside torch's own, so that it loads on a CPU.

Run with the python of the environment that has torch installed without its dependencies. A library
that torch needs and nothing provides gets one with the same name, the symbols torch asks for
and their versions; a call into it stops the process (no call is made without a GPU).
"""
import collections
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec

PREFIXES = ("cu", "nccl", "nv")


def run(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def main():
    lib = os.path.join(os.path.dirname(find_spec("torch").origin), "lib")
    site = os.path.dirname(os.path.dirname(lib))
    for real in glob.glob(os.path.join(site, "nvidia", "*", "lib", "libcudart.so.*")):
        shutil.copy(real, lib)
    have = {os.path.basename(p) for p in glob.glob(lib + "/*.so*")}
    needed, wanted, loose, defined = set(), collections.defaultdict(set), set(), set()
    for so in sorted(have):
        path = os.path.join(lib, so)
        needed |= set(re.findall(r"NEEDED.*\[(.*?)\]", run("readelf", "-d", path)))
        for line in run("nm", "-D", "--with-symbol-versions", path).splitlines():
            part = line.split()
            if len(part) == 2 and part[0] == "U":
                name, _, version = part[1].partition("@")
                (wanted[version.lstrip("@")].add(name) if version else loose.add(name))
            elif len(part) == 3:
                defined.add(part[2].split("@")[0])
    missing = sorted(n for n in needed - have if n.startswith(("libcu", "libnccl", "libnv")))
    loose = sorted(n for n in loose - defined if n.startswith(PREFIXES))
    with tempfile.TemporaryDirectory() as tmp:
        for so in missing:
            # A version is named after its library, but for nvshmem.
            version = "NVSHMEM" if "nvshmem" in so else so
            symbols = sorted(wanted.get(version, ()))
            if so.startswith("libnccl"):  # the unversioned ones all live in one stand-in
                symbols += loose
            asm, script = os.path.join(tmp, "s.s"), os.path.join(tmp, "v.map")
            with open(asm, "w") as f:
                f.write(".text\n")
                f.writelines(f".globl {s}\n.type {s},@function\n{s}:\n" for s in symbols)
                f.write('ud2\n.section .note.GNU-stack,"",@progbits\n')
            cmd = ["cc", "-shared", "-nostdlib", f"-Wl,-soname,{so}", "-o", os.path.join(lib, so), asm]
            if version in wanted:
                with open(script, "w") as f:
                    f.write(version + " { global: *; };\n")
                cmd.append(f"-Wl,--version-script={script}")
            run(*cmd)
    print(f"cuda_stubs: {len(missing)} libraries", file=sys.stderr)


if __name__ == "__main__":
    main()
