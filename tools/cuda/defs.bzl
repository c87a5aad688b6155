"""CUDA in the build: .cu files are compiled under --config=cuda, and by nothing else."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def if_cuda(when, otherwise = []):
    """`when` under --config=cuda, `otherwise` in every other build."""
    return select({
        "//tools/cuda:with_cuda": when,
        "//conditions:default": otherwise,
    })

def _flag_impl(ctx):
    return _ValueInfo(value = ctx.build_setting_value)

_ValueInfo = provider(fields = ["value"])

bool_setting = rule(implementation = _flag_impl, build_setting = config.bool(flag = True))
list_setting = rule(implementation = _flag_impl, build_setting = config.string_list(flag = True))

_ToolkitInfo = provider(fields = {
    "home": "where it is, a path of this machine",
    "nvcc": "a File: another compiler compiles anew",
    "version": "13.0.88",
})

def _cuda_toolkit_impl(ctx):
    return _ToolkitInfo(home = ctx.attr.home, nvcc = ctx.file.nvcc, version = ctx.attr.version)

cuda_toolkit = rule(
    implementation = _cuda_toolkit_impl,
    attrs = {
        "home": attr.string(mandatory = True),
        "nvcc": attr.label(mandatory = True, allow_single_file = True),
        "version": attr.string(mandatory = True),
    },
)

def _gencode(arch):
    """sm_X: machine code for X. compute_X: PTX, which a driver compiles for later GPUs."""
    return "-gencode=arch=%s,code=%s" % (arch.replace("sm_", "compute_"), arch)

def _cuda_library_impl(ctx):
    cc_toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = cc_toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    toolkit = ctx.attr._toolkit[_ToolkitInfo]
    deps = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    headers = deps.compilation_context

    # The host's half is compiled as every other source is; subnormal floats are 0 on the GPU. The
    # seed stands for random numbers in names: the same code is to give the same object. Line tables
    # hold sizes and times of sources, so they are there for profilers alone.
    args = ctx.actions.args()
    args.add_all(["-std=c++20", "-O3", "-ftz=true"])
    args.add_all(["--Werror", "all-warnings", "--diag-suppress", "554"])
    if ctx.attr._line_tables[_ValueInfo].value:
        args.add("-lineinfo")
    args.add_all([_gencode(arch) for arch in ctx.attr._archs[_ValueInfo].value])
    args.add("-ccbin", cc_toolchain.compiler_executable)
    args.add_all(["-fPIC"] + ctx.fragments.cpp.copts, format_each = "-Xcompiler=%s")
    args.add_all(headers.quote_includes, before_each = "-I")
    args.add_all(headers.includes, before_each = "-I")
    args.add_all(headers.defines, before_each = "-D")
    outputs = []
    for src in ctx.files.srcs:
        object_path = "_objs/%s/%s" % (ctx.label.name, src.basename)
        output = ctx.actions.declare_file(object_path + ".o")
        outputs.append(output)

        # An edited header compiles anew what reads it, not all that might.
        unused = ctx.actions.declare_file(object_path + ".unused")
        declared = ctx.actions.args()
        declared.add_all(headers.headers)
        declared.use_param_file("%s", use_always = True)
        declared.set_param_file_format("multiline")
        ctx.actions.run(
            executable = ctx.file._compile,
            arguments = [
                declared,
                unused.path,
                toolkit.home + "/bin/nvcc",
                args,
                "--frandom-seed=" + src.path,
                "-c",
                src.path,
                "-o",
                output.path,
            ],
            inputs = depset(
                [src, ctx.file._compile, toolkit.nvcc],
                transitive = [headers.headers, cc_toolchain.all_files],
            ),
            outputs = [output, unused],
            unused_inputs_list = unused,
            # Line tables name files from here, as gcc's do, and not from where the sandbox was.
            env = {"PATH": toolkit.home + "/bin:/usr/bin:/bin", "PWD": "/proc/self/cwd"},
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s" % src.short_path,
        )

    # Always linked: the functions are weak, and a weak name alone takes nothing out of an archive.
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = cc_toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(outputs),
            pic_objects = depset(outputs),
        ),
        linking_contexts = [
            deps.linking_context,
            ctx.attr._cudart[CcInfo].linking_context,
        ],
        alwayslink = True,
        disallow_dynamic_library = True,
    )
    return [
        DefaultInfo(files = depset(outputs)),
        CcInfo(compilation_context = headers, linking_context = linking),
    ]

# .cu files, to be depended on like a cc_library.
cuda_library = rule(
    implementation = _cuda_library_impl,
    attrs = {
        "srcs": attr.label_list(mandatory = True, allow_files = [".cu"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "_archs": attr.label(default = "//tools/cuda:archs"),
        "_compile": attr.label(default = "//tools/cuda:compile", allow_single_file = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_cudart": attr.label(default = "//tools/cuda:cudart"),
        "_line_tables": attr.label(default = "//tools/cuda:line_tables"),
        "_toolkit": attr.label(default = "//tools/cuda:toolkit"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _cuda_description_impl(ctx):
    text = ""
    if ctx.attr.toolkit:
        archs = ctx.attr._archs[_ValueInfo].value
        text = "CUDA %s: %s" % (ctx.attr.toolkit[_ToolkitInfo].version, " ".join(archs))
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.write(header, "inline constexpr char kCuda[] = \"%s\";\n" % text)
    return DefaultInfo(files = depset([header]))

# A header with kCuda: "CUDA 13.0.88: sm_90a", or nothing where there is no toolkit.
cuda_description = rule(
    implementation = _cuda_description_impl,
    attrs = {
        "toolkit": attr.label(providers = [_ToolkitInfo]),
        "_archs": attr.label(default = "//tools/cuda:archs"),
    },
)

def cuda_sources(name, srcs, deps):
    """Sources that include the toolkit's headers: a library under --config=cuda.

    tests/emulated compiles the same files, of <name>_sources, with its own headers.

    Args:
      name: of the library.
      srcs: .cc files; their headers are the room's.
      deps: what they need beside CUDA.
    """
    native.filegroup(name = name + "_sources", srcs = srcs, visibility = ["//tests/emulated:__pkg__"])
    native.cc_library(
        name = name,
        srcs = srcs,
        linkstatic = True,
        tags = ["manual"],
        deps = deps + ["//tools/cuda:cudart"],
        alwayslink = True,
    )
