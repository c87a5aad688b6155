"""@local_cuda: the CUDA toolkit of this machine, in $CUDA_HOME or else /usr/local/cuda.

A build that does not ask for CUDA looks at nothing of it, so it is there without a toolkit, too: a
target of it then says what is missing, once it is asked for.
"""

_FOUND = """load("@//tools/cuda:defs.bzl", "cuda_toolkit")

package(default_visibility = ["@//tools/cuda:__pkg__"])

cuda_toolkit(name = "toolkit", home = {home}, nvcc = "bin/nvcc", version = {version})

# What the sources of the runtime include; nvcc has the headers of its own kernels by itself.
cc_library(
    name = "cudart",
    srcs = ["lib64/libcudart_static.a"],
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/cccl/nv/**",
        "include/crt/**",
        "include/nvtx3/**",
    ]),
    includes = ["include", "include/cccl"],
    linkopts = ["-ldl", "-lrt", "-lpthread"],
)
"""

_MISSING = """package(default_visibility = ["@//tools/cuda:__pkg__"])

[
    alias(
        name = name,
        actual = select({{"@//tools/cuda:never": ":BUILD.bazel"}}, no_match_error = {error}),
    )
    for name in ["toolkit", "cudart"]
]
"""

_CURE = "install the CUDA 13 toolkit, or set CUDA_HOME to the folder that it is in"

def _cuda_configure_impl(context):
    home = context.os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    nvcc = context.path(home + "/bin/nvcc")
    version, error = None, None
    if not nvcc.exists:
        error = "there is no nvcc in %s/bin: %s" % (home, _CURE)
    else:
        said = context.execute([nvcc, "--version"]).stdout
        version = said.partition(", V")[2].partition("\n")[0]
        if not version or int(version.partition(".")[0]) < 13:
            error = "the nvcc in %s/bin is of CUDA %s: %s" % (home, version or "?", _CURE)
    if error:
        context.file("BUILD.bazel", _MISSING.format(error = repr("--config=cuda: " + error)))
        return
    for entry in ["bin/nvcc", "include", "lib64"]:
        context.symlink(home + "/" + entry, entry)
    context.file("BUILD.bazel", _FOUND.format(home = repr(home), version = repr(version)))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
