"""A source package of Debian 12, with Debian's patches, for libraries that it has in no static form."""

def _debian_source(repository):
    attr = repository.attr
    for part, sha256 in [(".orig.tar.gz", attr.orig_sha256), ("-%s.debian.tar.xz" % attr.revision, attr.debian_sha256)]:
        name = "%s_%s%s" % (attr.package, attr.version, part)
        path = "/pool/main/%s/%s/%s" % (attr.package[0], attr.package, name)
        repository.download_and_extract(
            ["http://deb.debian.org/debian" + path, "https://deb.debian.org/debian" + path],
            sha256 = sha256,
            # Debian's own folder, debian/, lies in the source's.
            stripPrefix = "%s-%s" % (attr.package, attr.version) if "orig" in part else "",
        )
    patched = repository.execute(["sh", "-euc", """
sed '/^#/d' debian/patches/series | while read -r name; do
  patch --strip=1 --silent --input "debian/patches/$name"
done"""])
    if patched.return_code:
        fail("%s's patches: %s" % (attr.package, patched.stdout + patched.stderr))
    repository.symlink(attr.build_file, "BUILD.bazel")

debian_source = repository_rule(
    _debian_source,
    attrs = {
        "package": attr.string(mandatory = True),
        "version": attr.string(mandatory = True),
        "revision": attr.string(mandatory = True),
        "orig_sha256": attr.string(mandatory = True),
        "debian_sha256": attr.string(mandatory = True),
        "build_file": attr.label(mandatory = True),
    },
)
