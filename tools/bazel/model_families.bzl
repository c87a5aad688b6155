"""The list of model families, as a library that knows them all.

A family is a package with a library of its own name, which defines `const ModelFamily& Family()` in
a namespace of that name.
"""

load("//tools/bazel:cc.bzl", "cc_library")

# The rooms that a family is made of.
FAMILY_DEPS = [
    "//models:family",
    "//trainer/autograd",
    "//trainer/core",
    "//trainer/data",
    "//trainer/nn",
    "//trainer/ops",
]

def _linked_impl(ctx):
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).linking_context
    return [CcInfo(linking_context = context)]

# Links `deps` without showing their headers to anybody: a new family compiles nothing anew.
_linked = rule(implementation = _linked_impl, attrs = {"deps": attr.label_list(providers = [CcInfo])})

def model_families(name, families):
    """`name`: of the library, which implements models/family.h.

    Args:
      name: the library's.
      families: folders of this package, in the order in which they are to be listed.
    """
    lines = ["#include \"models/family.h\"", "", "namespace fsdp {"]
    for family in families:
        lines.append("namespace %s {" % family)
        lines.append("const ModelFamily& Family();")
        lines.append("}")
    lines.append("std::span<const ModelFamily* const> Families() {")
    lines.append("  static const ModelFamily* const all[] = {%s};" %
                 ", ".join(["&%s::Family()" % family for family in families]))
    lines += ["  return all;", "}", "}  // namespace fsdp"]
    source = name + ".cc"
    native.genrule(
        name = name + "_source",
        outs = [source],
        cmd = "cat > $@ <<'END'\n" + "\n".join(lines) + "\nEND",
    )
    _linked(
        name = name + "_linked",
        deps = ["//%s/%s" % (native.package_name(), family) for family in families],
    )
    cc_library(
        name = name,
        srcs = [source],
        linkstatic = True,
        deps = [":family", ":%s_linked" % name],
    )
