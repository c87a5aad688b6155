#!/usr/bin/env python3
"""tools/archive and tools/wheel: what is shipped runs on any Linux with glibc 2.28, and needs nothing else."""

import base64
import email
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(os.getcwd())  # The root of the repository, where Bazel starts a test.
PROGRAM = "cmd/fsdp-train"
TIME = "1700000000"
# PEP 600's manylinux_2_28 lets a wheel take these of the system, up to these versions (auditwheel's
# manylinux-policy.json has the same).
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
NEWEST = (2, 28)


def tool(name, *options):
    return subprocess.run([f"tools/{name}", *options], cwd=ROOT, capture_output=True, text=True)


def made(name, directory):
    result = tool(name, "--out", directory, "--binary", PROGRAM, "--time", TIME)
    assert result.returncode == 0, result.stderr
    return pathlib.Path(result.stdout.strip())


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


class Program(unittest.TestCase):
    """The symbols of the program that every other test runs."""

    def test_needs_glibc_alone(self):
        self.assertLessEqual(set(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", PROGRAM))), GLIBC)
        self.assertNotIn("RPATH", readelf("-d", PROGRAM))

    def test_takes_malloc_from_glibc(self):
        # Before glibc 2.32 or so the loader has one too, for one thread; who is named first is taken.
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", PROGRAM))
        self.assertLess(needed.index("libc.so.6"), needed.index("ld-linux-x86-64.so.2"))

    def test_needs_no_symbol_above_2_28(self):
        versions = re.findall(r"(\w+)@GLIBC_(\d+)\.(\d+)", readelf("--dyn-syms", PROGRAM))
        self.assertGreater(len(versions), 100)
        newer = [name for name, *version in versions if tuple(map(int, version)) > NEWEST]
        self.assertEqual(newer, [])
        # Versions that the loader asks for before it looks at any symbol.
        asked = [tuple(map(int, v)) for v in re.findall(r"GLIBC_(\d+)\.(\d+)", readelf("-V", PROGRAM))]
        self.assertLessEqual(max(asked), NEWEST)
        self.assertNotIn("GLIBCXX", readelf("-V", PROGRAM))

    def test_shows_no_function_to_libraries_that_are_loaded_later(self):
        # Among them a function of compat.c, which would take the system's place in NVIDIA's libraries.
        defined = [line.split()[7] for line in readelf("--dyn-syms", PROGRAM).splitlines()
                   if len(line.split()) > 7 and line.split()[4] in ("GLOBAL", "WEAK") and line.split()[6] != "UND"]
        # A variable of glibc's that is copied into the program (stderr) has glibc's version.
        self.assertEqual([name for name in defined if "@GLIBC_" not in name], [])


class Archive(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)
        cls.archive = made("archive", cls.scratch / "one")
        with tarfile.open(cls.archive) as tar:
            cls.entries = tar.getmembers()
            tar.extractall(cls.scratch)
        cls.top = cls.scratch / cls.entries[0].name.split("/")[0]

    def test_runs_with_an_empty_environment(self):
        binary = self.top / "bin/fsdp-train"
        result = subprocess.run([binary, "--version"], env={}, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.startswith("fsdp-train "), result.stdout)
        config = subprocess.run([binary, "config", "check", "--config", "configs/quickstart.yaml"],
                                cwd=self.top, env={}, capture_output=True, text=True)
        self.assertEqual(config.returncode, 0, config.stderr)

    def test_licences_recipes_and_data(self):
        names = {str(path.relative_to(self.top)) for path in self.top.rglob("*")}
        for name in ("LICENSE", "README.txt", "configs/quickstart.yaml", "configs/data/jargon.txt"):
            self.assertIn(name, names)
        packages = {pathlib.Path(name).parent.name for name in names if name.endswith("/copyright")}
        self.assertEqual(packages, {
            "libcli11-dev", "libfmt-dev", "libjpeg62-turbo-dev", "libpcre2-dev", "libpng-dev",
            "libsodium-dev", "libspdlog-dev", "libstdc++-12-dev", "libutf8proc-dev",
            "libxxhash-dev", "libyaml-cpp-dev", "libzstd-dev", "nlohmann-json3-dev", "sentencepiece", "zlib1g-dev"})

    def test_the_same_files_give_the_same_bytes(self):
        again = made("archive", self.scratch / "two")
        self.assertEqual(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in (self.archive, again)))
        self.assertEqual({(entry.mtime, entry.uid) for entry in self.entries}, {(int(TIME), 0)})
        names = [entry.name for entry in self.entries]
        self.assertEqual(names, sorted(names))

    def test_mistakes_are_named(self):
        missing = tool("archive", "--out", self.scratch, "--binary", "nothing", "--time", "1")
        self.assertIn("archive: there is no", missing.stderr)
        # Any program of Debian 12's.
        newer = tool("archive", "--out", self.scratch, "--binary", sys.executable, "--time", "1")
        self.assertRegex(newer.stderr, r"archive: .* needs ")
        self.assertEqual({missing.returncode, newer.returncode}, {1})


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)
        cls.wheel = made("wheel", cls.scratch / "one")
        with zipfile.ZipFile(cls.wheel) as wheel:
            cls.files = {entry.filename: (wheel.read(entry), entry.external_attr >> 16)
                         for entry in wheel.infolist()}

    def file(self, ending):
        (name,) = [name for name in self.files if name.endswith(ending)]
        return self.files[name][0]

    def test_name_tag_and_version_agree(self):
        name, version, *tag = self.wheel.name.removesuffix(".whl").split("-")
        metadata = email.message_from_bytes(self.file(".dist-info/METADATA"))
        self.assertEqual((metadata["Name"].replace("-", "_"), metadata["Version"]), (name, version))
        wheel = email.message_from_bytes(self.file(".dist-info/WHEEL"))
        self.assertEqual((wheel["Tag"], wheel["Root-Is-Purelib"]), ("-".join(tag), "false"))
        # A program without kernels for GPUs says so in its version, and asks for none of their libraries.
        cuda = "CUDA" in subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout
        self.assertEqual(version.endswith("+cpu"), not cuda)
        self.assertEqual(metadata.get_all("Requires-Dist", []) != [], cuda)

    def test_a_program_for_some_gpus_is_refused(self):
        program = self.scratch / "program"
        program.write_text("#!/bin/sh\necho 'fsdp-train 0.1.0 (abc, gcc 12, CUDA 13.0: sm_80 sm_90a)'\n")
        program.chmod(0o755)
        code = f"import sys; sys.path = ['tools'] + sys.path; import shipped; shipped.version_of('{program}', {{}})"
        for kernels, said in (("['sm_90a']", ""), ("shipped.KERNELS", "has no kernels for sm_100, compute_100")):
            result = subprocess.run([sys.executable, "-c", code.format(kernels)], cwd=ROOT, capture_output=True,
                                    text=True)
            self.assertIn(said, result.stderr)
            self.assertEqual(result.returncode != 0, bool(said), result.stderr)

    def test_the_readme_leads_to_pages_of_the_program(self):
        text = self.file(".dist-info/METADATA").decode()
        self.assertNotRegex(text, r"\]\((?!https:)")
        self.assertIn("docs/release.md", text)

    def test_the_record_has_every_file(self):
        recorded = {}
        for line in self.file(".dist-info/RECORD").decode().splitlines():
            name, digest, size = line.rsplit(",", 2)
            recorded[name] = digest, size
        self.assertEqual(set(recorded), set(self.files))
        for name, (data, _) in self.files.items():
            if name.endswith("/RECORD"):
                continue
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            self.assertEqual(recorded[name], (f"sha256={digest}", str(len(data))))

    def test_installed_as_pip_does_it_runs(self):
        # As pip puts it there (PEP 427): .data/scripts/ to bin/, .data/data/ to the prefix.
        prefix = self.scratch / "prefix"
        for name, (data, mode) in self.files.items():
            place = re.sub(r"^[^/]+\.data/data/|^[^/]+\.data/scripts/(?=)", lambda part: (
                "bin/" if "scripts" in part.group() else ""), name)
            path = prefix / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(mode & 0o777)
        python = dict(cwd=prefix, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
        direct = subprocess.run(["bin/fsdp-train", "--version"], **python)
        module = subprocess.run(["python3", "-m", "fsdp_train", "--version"], **python)
        self.assertEqual((module.returncode, module.stdout), (0, direct.stdout), module.stderr)
        self.assertTrue((prefix / "share/fsdp-train/configs/quickstart.yaml").exists())

        run = self.scratch / "run"
        run.mkdir()
        records = [{"kind": "step", "loss": 1.5}, {"kind": "end"}]
        lines = [json.dumps(record) + "\n" for record in records]
        read = ["python3", "-c", "import fsdp_train, sys; print(fsdp_train.metrics(sys.argv[1]))", run]
        (run / "metrics.jsonl").write_text("".join(lines) + '{"kind"')  # Cut off while it was written.
        self.assertEqual(subprocess.run(read, **python).stdout.strip(), str(records))
        (run / "metrics.jsonl").write_text(lines[0] + "nonsense\n")
        self.assertIn("metrics.jsonl:2: ", subprocess.run(read, **python).stderr)

    def test_the_package_is_for_every_python_3(self):
        sources = [data.decode() for name, (data, _) in self.files.items() if name.endswith(".py")]
        self.assertEqual(len(sources), 2)
        import ast
        for source in sources:
            ast.parse(source, feature_version=(3, 6))

    def test_each_library_of_the_extra_is_one_that_the_program_loads(self):
        asked = dict(re.findall(r'"(nvidia-[^"]+)": "([^"]+)"', (ROOT / "tools/wheel").read_text()))
        known = re.findall(r'\{"(lib[^"]+)"', (ROOT / "trainer/runtime/gpu_libraries.cc").read_text())
        self.assertEqual(sorted(asked.values()), sorted(known))

    def test_the_same_files_give_the_same_bytes(self):
        again = made("wheel", self.scratch / "two")
        self.assertEqual(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in (self.wheel, again)))


if __name__ == "__main__":
    unittest.main()
