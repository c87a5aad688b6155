"""clang-tidy as an aspect: one action a source file, cached like its compilation.

    bazel build --config=tidy //trainer/... //models/... //cmd/...

.clang-tidy lists the checks, all of them errors. Headers of ours are looked at in each source that
includes them.
"""

# Flags that clang 14 needs beside gcc's (_Float16 in immintrin.h), and silence about gcc's that it
# does not know.
_CLANG = ["-Wno-everything", "-mavx512fp16"]

# Passes of gcc's, which clang does not have, and its precompiled headers: a source includes what it uses.
_GCC = ("-fno-tree-", "-fno-thread-jumps", "--include=precompiled/")

def _tidy_aspect_impl(target, ctx):
    # Tests, and what stands outside the tree, have their own.
    if ctx.rule.kind not in ("cc_library", "cc_binary") or target.label.workspace_name:
        return []
    sources = [
        file
        for source in ctx.rule.attr.srcs
        for file in source.files.to_list()
        if file.is_source and file.extension == "cc"
    ]
    # A binary shows no compilation context of its own: it is what its dependencies show.
    contexts = [
        dep[CcInfo].compilation_context
        for dep in ctx.rule.attr.deps
        if CcInfo in dep
    ]
    if CcInfo in target:
        contexts.append(target[CcInfo].compilation_context)
    headers = depset(
        [file for source in ctx.rule.attr.srcs for file in source.files.to_list()],
        transitive = [context.headers for context in contexts],
    )
    outputs = []
    for source in sources:
        output = ctx.actions.declare_file(ctx.rule.attr.name + "." + source.basename + ".tidy")
        arguments = ctx.actions.args()
        arguments.add(output)
        arguments.add(source)
        arguments.add_all(ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts)
        arguments.add_all([flag for flag in ctx.rule.attr.copts if not flag.startswith(_GCC)])
        arguments.add_all(_CLANG)
        arguments.add_all(["-iquote", ".", "-iquote", ctx.bin_dir.path])
        ctx.actions.run_shell(
            command = 'out=$1 source=$2; shift 2; ' +
                      'clang-tidy --quiet "$source" -- "$@" >"$out" 2>&1 || ' +
                      '{ grep -v "warnings\\? generated" "$out" >&2; exit 1; }',
            arguments = [arguments],
            inputs = depset([source, ctx.file._config], transitive = [headers]),
            outputs = [output],
            mnemonic = "ClangTidy",
            progress_message = "Reading %s" % source.short_path,
            use_default_shell_env = True,
        )
        outputs.append(output)
    return [OutputGroupInfo(tidy = depset(outputs))]

tidy = aspect(
    implementation = _tidy_aspect_impl,
    attrs = {
        "_config": attr.label(
            default = "//:.clang-tidy",
            allow_single_file = True,
        ),
    },
    fragments = ["cpp"],
)
