"""The content of a wheel and an archive: the program, recipes, and licences of all that is linked into it."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).absolute().parents[1]  # In a test: that of the links to the files.
PROGRAM = "//cmd:fsdp-train"
# The program may need these, and of them no symbol that is newer: tools/glibc.
NEWEST_GLIBC = (2, 28)
GLIBC = {"ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"}
# Debian packages whose headers alone are compiled in.
HEADERS = ("libcli11-dev", "libfmt-dev", "libspdlog-dev", "nlohmann-json3-dev")
# Built from Debian's source packages, which Bazel downloads (tools/bazel/debian_source.bzl).
BUILT = ("sentencepiece",)
# The targets of a wheel with kernels for GPUs: //tools/cuda:archs.
KERNELS = ("sm_80", "sm_90a", "sm_100", "compute_100")
# Where the archives are named that the program is linked with.
LIBRARIES = "tools/bazel/system_libraries.bzl"


def leave(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def run(*command):
    result = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        leave(f"{' '.join(map(str, command))} failed:\n{result.stderr}")
    return result.stdout


def bazel(*arguments):
    result = subprocess.run(["bazel", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        leave(f"bazel {' '.join(arguments)} failed")
    return result.stdout


def add_options(parser):
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), metavar="DIR")
    parser.add_argument("--binary", type=pathlib.Path, metavar="FILE", help="builds nothing")
    parser.add_argument("--time", type=int, metavar="SECONDS",
                        help="of every file, since 1970 (default: that of the last commit)")
    parser.add_argument("--bazel-option", action="append", default=[], metavar="OPTION")


def program_and_time(parser, args):
    """The program's file, built unless --binary names one, and the time of all files."""
    if args.bazel_option and args.binary:
        parser.error("--bazel-option does not go with --binary")
    if args.binary:
        program = args.binary.absolute()
    else:
        bazel("build", *args.bazel_option, PROGRAM)
        outputs = bazel("info", *args.bazel_option, "bazel-bin").strip()
        program = pathlib.Path(outputs) / PROGRAM.removeprefix("//").replace(":", "/")
    if not program.exists():
        leave(f"there is no {program}")
    check_needs(program)
    args.out.mkdir(parents=True, exist_ok=True)
    return program, args.time if args.time is not None else int(run("git", "log", "-1", "--format=%ct"))


def check_needs(program):
    """Ends the script where the program needs more than glibc 2.28."""
    foreign = set(re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-dW", program))) - GLIBC
    if foreign:
        leave(f"{program} needs {', '.join(sorted(foreign))}: link it statically")
    for symbol, *version in re.findall(r" (\w+)@GLIBC_(\d+)\.(\d+)", run("readelf", "-W", "--dyn-syms", program)):
        if tuple(map(int, version)) > NEWEST_GLIBC:
            leave(f"{program} needs {symbol} of glibc {'.'.join(version)}, and 2.28 is the newest that "
                  "every system has: tools/glibc/compat.c defines what is missing there")


def version_of(program, kernels=()):
    """The version, as PyPI spells it: a program without CUDA's kernels has another. One that has some of them ends
    the script if it lacks one of `kernels`."""
    version, rest = re.match(r"fsdp-train (\S+) \((.*)\)", run(program, "--version")).groups()
    lacking = [target for target in kernels if "CUDA" in rest and target not in rest.split()]
    if lacking:
        leave(f"{program} has no kernels for {', '.join(lacking)}: build it with --config=cuda")
    return version if "CUDA" in rest else version + "+cpu"


def package_of(path):
    # Debian's /lib is a link to /usr/lib: the database knows a file by either name.
    for name in (str(path), str(path).removeprefix("/usr"), str(pathlib.Path(path).resolve())):
        result = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        if result.returncode == 0:
            return result.stdout.split(":")[0]
    return leave(f"no package owns {path}, so its licence is not known")


def licences():
    """Package -> its file of copyright, of all that is compiled or linked in."""
    names = re.findall(r'_archive\("([\w-]+)"\)', (ROOT / LIBRARIES).read_text())
    archives = [f"/usr/lib/x86_64-linux-gnu/lib{name}.a" for name in names]
    archives.append(os.path.realpath(run("gcc", "-print-file-name=libstdc++.a").strip()))
    packages = {package_of(path) for path in archives} | set(HEADERS)
    found = {}
    for package in BUILT:
        name = f"external/{package}/debian/copyright"
        found[package] = pathlib.Path(name).absolute()  # Where a test starts.
        if not found[package].exists():
            bazel("build", f"@{package}//:debian/copyright")
            found[package] = pathlib.Path(bazel("info", "output_base").strip()) / name
    for package in sorted(packages):
        path = pathlib.Path("/usr/share/doc") / package / "copyright"
        if not path.exists():
            leave(f"{package} has no {path}")
        found[package] = path.resolve()
    return found


def stripped(program, directory):
    out = pathlib.Path(directory) / program.name
    run("strip", "--strip-unneeded", "-o", out, program)
    return out


def recipes():
    """Name below the root -> file."""
    return {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "configs").rglob("*"))
            if path.is_file() and path.name != "BUILD.bazel"}
