#!/bin/sh
# Prints the state of the tree, which a build records. Needs no network, and no git: then it is
# silent and the build says "unknown".
hash=$(git rev-parse HEAD 2>/dev/null) || exit 0
git diff --quiet HEAD 2>/dev/null || hash="$hash-dirty"
echo "STABLE_GIT_HASH $hash"
