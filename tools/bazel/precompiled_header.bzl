"""System headers that the compiler reads once for all sources instead of once for each.

    precompiled_header(
        name = "gtest_precompiled",
        header = "precompiled/gtest.h",
        includes = ["gtest/gtest.h", "gmock/gmock.h"],
        flags = {"O1": ["-O1"]},
    )

A source of a target that depends on it is compiled with `-include precompiled/gtest.h` (cc.bzl, and
.bazelrc for tests). gcc takes the compiled header only where all flags that matter are the same, so
`flags` has a list for each optimisation level of such sources; with other flags it reads the headers
themselves.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    root = ctx.label.name + ".dir"
    header = ctx.actions.declare_file("%s/%s" % (root, ctx.attr.header))
    ctx.actions.write(header, "".join(["#include <%s>\n" % name for name in ctx.attr.includes]))
    compiled = []
    for variant, flags in ctx.attr.flags.items():
        # gcc tries each file of a directory of this name.
        output = ctx.actions.declare_file("%s/%s.gch/%s" % (root, ctx.attr.header, variant))
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + flags,
            use_pic = True,
        )
        arguments = ctx.actions.args()
        arguments.add_all(cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ))
        arguments.add_all(["-x", "c++-header", header, "-o", output])
        ctx.actions.run(
            executable = cc_common.get_tool_for_action(
                feature_configuration = features,
                action_name = CPP_COMPILE_ACTION_NAME,
            ),
            arguments = [arguments],
            env = cc_common.get_environment_variables(
                feature_configuration = features,
                action_name = CPP_COMPILE_ACTION_NAME,
                variables = variables,
            ),
            inputs = depset([header], transitive = [toolchain.all_files]),
            outputs = [output],
            mnemonic = "PrecompileHeader",
            progress_message = "Precompiling %s (%s)" % (ctx.attr.header, variant),
        )
        compiled.append(output)
    directory = "/".join([part for part in [ctx.bin_dir.path, ctx.label.package, root] if part])
    context = cc_common.create_compilation_context(
        headers = depset([header] + compiled),
        system_includes = depset([directory]),
    )
    return [DefaultInfo(files = depset(compiled)), CcInfo(compilation_context = context)]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "flags": attr.string_list_dict(mandatory = True),
        "header": attr.string(mandatory = True),
        "includes": attr.string_list(mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
