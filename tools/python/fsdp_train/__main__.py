"""`python -m fsdp_train` is `fsdp-train`, the one that was installed with this package."""

import os
import sys
import sysconfig


def program():
    package = os.path.dirname(os.path.abspath(__file__))
    places = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", os.name + "_user"),
        os.path.join(os.path.dirname(package), "bin"),  # pip install --target
    ]
    for place in places:
        path = os.path.join(place, "fsdp-train")
        if os.access(path, os.X_OK):
            return path
    sys.exit("fsdp_train: there is no fsdp-train in " + ", ".join(places))


path = program()
os.execv(path, [path] + sys.argv[1:])
