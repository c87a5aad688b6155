"""A copy of the working tree, in which Bazel builds what the tree itself is not to have."""

import shutil
import subprocess


def copy_working_tree(root, tree):
    """Makes `tree` equal to the working tree `root`, as git sees it, touching only files that differ."""
    tree.mkdir(parents=True, exist_ok=True)
    listing = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=root,
                             check=True, capture_output=True).stdout.decode()
    wanted = {name for name in listing.split("\0") if name and (root / name).is_file()}
    for path in sorted(tree.rglob("*"), reverse=True):
        if path.relative_to(tree).parts[0].startswith("bazel-"):
            continue
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif str(path.relative_to(tree)) not in wanted:
            path.unlink()
    for name in wanted:
        source, copy = root / name, tree / name
        if copy.is_file() and copy.read_bytes() == source.read_bytes() and \
                copy.stat().st_mode == source.stat().st_mode:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)
