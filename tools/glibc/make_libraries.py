#!/usr/bin/env python3
"""Makes libraries to link with that have glibc's symbols as they were in 2.28, and no code.

    make_libraries.py LINKER_COMPILER DIR

A program binds each function of glibc in the newest version that is there when it is linked, and then asks for
that version wherever it runs. Linked with these libraries, it asks for none above 2.28 (August 2018), and a
function that 2.28 lacks is an error of the linker's; compat.c defines those that are used. They are made of
this system's glibc, which keeps every version that a symbol ever had. Functions that glibc 2.34 moved into
libc.so.6 are offered there; a loader looks for a symbol by name and version alone, so an older glibc finds them
in its libpthread.so.0 and libdl.so.2, which the program names as well.
"""

import pathlib
import re
import subprocess
import sys

NEWEST = (2, 28)
# Name for the linker -> glibc's.
LIBRARIES = {
    "libglibc.so": "libc.so.6",
    "libm.so": "libm.so.6",
    "libpthread.so": "libpthread.so.0",
    "libdl.so": "libdl.so.2",
    "librt.so": "librt.so.1",
    "libloader.so": "ld-linux-x86-64.so.2",
}
# Name by which gcc asks for a library -> what it gets. The loader comes behind glibc, because an older loader
# has a malloc() of its own, for one thread.
SCRIPTS = {
    "libc.so": "-l:libglibc.so -l:libc_nonshared.a -l:libloader.so",
    "libstdc++.so": "-l:libstdc++.a",
}


def number(version):
    return tuple(int(part) for part in version.removeprefix("GLIBC_").split("."))


def symbols(library):
    """Name -> (version, type, size, binding) of its newest version up to NEWEST."""
    text = subprocess.run(["readelf", "--wide", "--dyn-syms", library], capture_output=True, text=True,
                          check=True).stdout
    found = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0][:-1].isdigit() or fields[6] in ("UND", "ABS"):
            continue
        size, kind, binding = int(fields[2], 0), fields[3], fields[4]
        name, _, version = fields[7].replace("@@", "@").partition("@")
        if not re.fullmatch(r"GLIBC_2(\.\d+)+", version) or number(version) > NEWEST:
            continue
        if name not in found or number(version) > number(found[name][0]):
            found[name] = version, kind, size, binding
    return found


def assembly(names):
    lines = []
    for name, (_, kind, size, binding) in sorted(names.items()):
        lines.append(f"{'.weak' if binding == 'WEAK' else '.globl'} {name}")
        if kind in ("OBJECT", "TLS"):
            section = '.section .tbss,"awT",@nobits' if kind == "TLS" else ".bss"
            lines += [section, ".balign 32", f".type {name},@object", f".size {name},{size}",
                      f"{name}: .zero {max(size, 1)}"]
        else:
            lines += [".text", f".type {name},@function", f"{name}:"]
    return "\n".join(lines + ['.section .note.GNU-stack,"",@progbits', ""])


def version_script(names):
    by_version = {}
    for name, (version, *_) in sorted(names.items()):
        by_version.setdefault(version, []).append(name)
    lines, before = [], ""
    for version in sorted(by_version, key=number):
        lines.append(f"{version} {{ global: {'; '.join(by_version[version])}; }} {before};\n")
        before = version
    return "".join(lines) or "GLIBC_2.2.5 { };\n"


def main():
    compiler, out = sys.argv[1], pathlib.Path(sys.argv[2])
    for name, soname in LIBRARIES.items():
        system = subprocess.run([compiler, f"-print-file-name={soname}"], capture_output=True, text=True,
                                check=True).stdout.strip()
        names = symbols(system)
        source, script = out / (name + ".s"), out / (name + ".map")
        source.write_text(assembly(names))
        script.write_text(version_script(names))
        subprocess.run([compiler, "-shared", "-nostdlib", "-fuse-ld=lld", "-Wl,--build-id=none",
                        f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}", "-o", out / name, source],
                       check=True)
        source.unlink()
        script.unlink()
    for name, libraries in SCRIPTS.items():
        (out / name).write_text(f"INPUT({libraries})\n")


if __name__ == "__main__":
    main()
