#!/bin/sh
# Prints the state of the tree, which a build records, and which part of long grids its tests run
# (tests/testing/everything.h). Needs no network, and no git: then the build says "unknown", and the part is 0.
hash=$(git rev-parse HEAD 2>/dev/null)
part=${FSDP_TRAIN_TEST_PART:-$(printf '%d' "0x0$(printf %.7s "$hash")")}
echo "STABLE_TEST_PART $((part % 180))"
[ -n "$hash" ] || exit 0
git diff --quiet HEAD 2>/dev/null || hash="$hash-dirty"
echo "STABLE_GIT_HASH $hash"
