"""Kernels for GPUs, compiled for the emulator."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _emulated_kernels_impl(ctx):
    cc_toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = cc_toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    deps = [dep[CcInfo] for dep in ctx.attr.deps]
    outputs = []
    for kernel in ctx.files.srcs:
        name = kernel.basename.rsplit(".", 1)[0]
        if name in ctx.attr.without or (ctx.attr.only and name not in ctx.attr.only):
            continue
        source, text = kernel, cc_common.create_compilation_context()
        if kernel.extension == "cu":
            source = ctx.actions.declare_file("_%s/%s.cc" % (ctx.label.name, name))
            text = cc_common.create_compilation_context(headers = depset([kernel]))
            ctx.actions.write(source, '#include "%s"\n' % kernel.short_path)
        _, compiled = cc_common.compile(
            # Its list of headers goes by this name.
            name = "%s_%s" % (ctx.label.name, name),
            actions = ctx.actions,
            cc_toolchain = cc_toolchain,
            compilation_contexts = [dep.compilation_context for dep in deps] + [text],
            feature_configuration = features,
            private_hdrs = ctx.files.hdrs,
            srcs = [source],
            user_compile_flags = ctx.attr.copts,
        )
        outputs.append(compiled)
    library = cc_common.link(
        name = ctx.label.name,
        actions = ctx.actions,
        cc_toolchain = cc_toolchain,
        compilation_outputs = cc_common.merge_compilation_outputs(compilation_outputs = outputs),
        feature_configuration = features,
        output_type = "dynamic_library",
    ).library_to_link
    linking = cc_common.create_linking_context(linker_inputs = depset([
        cc_common.create_linker_input(owner = ctx.label, libraries = depset([library])),
    ], transitive = [dep.linking_context.linker_inputs for dep in deps]))
    headers = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs))
    return [
        DefaultInfo(files = depset(transitive = [depset(out.pic_objects) for out in outputs])),
        CcInfo(compilation_context = headers, linking_context = linking),
    ]

# A shared library of kernels, whose thread-local variables are their __shared__ arrays and nothing else
# (shared_arrays.h): of the files that `only` names, or of all that `without` does not. A .cu file is compiled
# as a .cc file of its name that includes it.
emulated_kernels = rule(
    _emulated_kernels_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "only": attr.string_list(),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "srcs": attr.label_list(allow_files = [".cc", ".cu"]),
        "without": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
