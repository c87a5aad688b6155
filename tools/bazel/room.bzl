"""A room of docs/design.md is one library of all that lies in its folder.

tests/tools:floors_test reads who may include whom: `users`, `private`, `for_tests` and `only_for` are
for it. Bazel links rooms, and lets nobody depend on a room that is not shown to him.
"""

load("//tools/bazel:cc.bzl", "cc_library")
load("//tools/bazel:planted_mistakes.bzl", "planted_mistakes")

def room(
        name,
        deps = [],
        users = [],
        private = [],
        for_tests = [],
        only_for = {},
        folders = [],
        without = [],
        flags = {},
        json = [],
        srcs = [],
        **kwargs):
    """The library <name> of the folder's sources, and <name>_headers of its headers alone.

    Args:
      name: the folder's.
      deps: rooms and libraries that its sources include.
      users: folders that, with those below them, may include its headers. Tests always may.
      private: headers, without their ending, that only the room may include, and no test.
      for_tests: headers that only the room and tests may include.
      only_for: header -> folders that may include it, in place of `users`.
      folders: sub-folders that belong to the room.
      without: sources that other targets compile.
      flags: source -> compiler flags of its own.
      json: sources that include nlohmann/json.hpp, which is precompiled for them.
      srcs: generated sources.
      **kwargs: passed on to cc_library.
    """
    places = [""] + [folder + "/" for folder in folders]
    headers = native.glob([place + "*.h" for place in places])
    for header in private + for_tests + only_for.keys():
        if header + ".h" not in headers:
            fail("%s.h is not a header of %s" % (header, native.package_name()))
    shown = ["//tests:__subpackages__", "//%s:__subpackages__" % native.package_name()]
    for user in depset(users + [user for guests in only_for.values() for user in guests]).to_list():
        shown.append("//%s:__subpackages__" % user)
    native.cc_library(name = name + "_headers", hdrs = headers, visibility = shown)

    # Sources by their flags; the linker takes calls between these parts in either direction.
    parts = []
    for source, own in flags.items():
        parts.append(name + "_" + source.rsplit("/", 1)[-1].rsplit(".", 1)[0])
        native.cc_library(
            name = parts[-1],
            srcs = [source],
            hdrs = headers,
            copts = own,
            linkstatic = True,
            deps = deps,
        )
    if json:
        parts.append(name + "_json")
        cc_library(
            name = parts[-1],
            srcs = json,
            hdrs = headers,
            linkstatic = True,
            precompiled = "json",
            deps = deps,
        )
    cc_library(
        name = name,
        srcs = native.glob(
            [place + "*.cc" for place in places],
            exclude = without + flags.keys() + json,
        ) + srcs,
        hdrs = headers,
        linkstatic = True,
        visibility = shown,
        deps = deps + [":" + part for part in parts],
        **kwargs
    )
    planted_mistakes()
