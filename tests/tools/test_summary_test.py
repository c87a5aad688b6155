#!/usr/bin/env python3
"""The closing line of tools/test, from build events as Bazel writes them."""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, os.getcwd())  # The root of the repository, where Bazel starts a test.
from tools import test_summary  # noqa: E402

GTEST = """<testsuites><testsuite name="A">
  <testcase name="x" status="run" result="completed" classname="A" />
  <testcase name="y" status="run" result="completed" classname="A"><failure message="a"/>
    <failure message="b"/></testcase>
  <testcase name="z" status="run" result="skipped" classname="A"><skipped message=""/></testcase>
  <testcase name="w" status="notrun" result="suppressed" classname="A" />
</testsuite></testsuites>"""
PASSING = '<testsuite><testcase name="x" status="run" classname="A"/></testsuite>'
# Bazel's XML for a test that leaves none of its own.
SCRIPT = '<testsuites><testsuite><testcase name="t" status="run"></testcase></testsuite></testsuites>'


class TestSummary(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.events = []

    def target(self, label, status=None, xml=None, attempt=1):
        self.events.append({"id": {"targetConfigured": {"label": label}},
                            "configured": {"testSize": "SMALL"}})
        if status is None:
            return
        result = {"status": status, "testActionOutput": [{"name": "test.log", "uri": "file:///x"}]}
        if xml is not None:
            path = self.directory / f"with space {len(self.events)}.xml"
            path.write_text(xml)
            result["testActionOutput"].append({"name": "test.xml", "uri": path.as_uri()})
        self.events.append({"id": {"testResult": {"label": label, "run": 1, "attempt": attempt}},
                            "testResult": result})

    def close(self, status=0):
        """Exit status and lines of a run with the one part `opt`."""
        (self.directory / "opt.json").write_text("\n".join(map(json.dumps, self.events)))
        (self.directory / "opt.status").write_text(f"{status}\n")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = test_summary.main(self.directory, ["opt"])
        return code, out.getvalue().splitlines()

    def test_counts_cases(self):
        self.target("//a:gtest", "FAILED", GTEST)
        self.target("//a:script", "PASSED", SCRIPT)
        code, lines = self.close(3)
        self.assertEqual(code, 1)
        self.assertEqual(lines, ["FAILED [opt] //a:gtest A.y", "2 passed, 1 failed, 1 skipped"])

    def test_all_passed(self):
        self.target("//a:one", "PASSED", PASSING)
        self.events.append({"id": {"targetConfigured": {"label": "//a:library"}},
                            "configured": {"targetKind": "cc_library rule"}})
        self.assertEqual(self.close(), (0, ["1 passed, 0 failed, 0 skipped"]))

    def test_crash_is_a_failure(self):
        for xml in (None, PASSING, "<testsuite><testca"):
            self.events = []
            self.target("//a:one", "FAILED", xml)
            code, lines = self.close(3)
            self.assertEqual(code, 1)
            self.assertIn("1 failed", lines[-1])

    def test_passing_target_without_xml_is_one(self):
        self.target("//a:one", "PASSED")
        self.assertEqual(self.close(), (0, ["1 passed, 0 failed, 0 skipped"]))

    def test_target_that_was_not_built_is_a_failure(self):
        self.target("//a:one", "PASSED", PASSING)
        self.target("//a:two")
        self.assertEqual(self.close(1), (1, ["FAILED [opt] //a:two: not built, or not run",
                                             "1 passed, 1 failed, 0 skipped"]))

    def test_last_attempt_counts(self):
        self.target("//a:one", "FAILED", GTEST, attempt=1)
        self.target("//a:one", "PASSED", PASSING, attempt=2)
        self.assertEqual(self.close(), (0, ["1 passed, 0 failed, 0 skipped"]))

    def test_broken_build_without_a_test_is_a_failure(self):
        self.target("//a:one", "PASSED", PASSING)
        self.assertEqual(self.close(1), (1, ["FAILED [opt] exit status 1",
                                             "1 passed, 1 failed, 0 skipped"]))

    def test_nothing_is_no_success(self):
        self.assertEqual(self.close()[0], 1)

    def test_part_with_xml_of_its_own(self):
        (self.directory / "mutations.xml").write_text(GTEST)
        (self.directory / "mutations.status").write_text("1")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = test_summary.main(self.directory, ["mutations"])
        self.assertEqual((code, out.getvalue().splitlines()[-1]),
                         (1, "1 passed, 1 failed, 1 skipped"))

    def test_part_whose_time_was_over_is_skipped_but_for_what_it_found(self):
        self.target("//a:passed", "PASSED", PASSING)
        self.target("//a:missing")
        self.target("//a:cut_off", "INCOMPLETE")
        self.assertEqual(self.close("skipped"), (0, ["1 passed, 0 failed, 1 skipped"]))
        self.target("//a:failed", "FAILED", GTEST)
        code, lines = self.close("skipped")
        self.assertEqual((code, lines[-1]), (1, "2 passed, 1 failed, 2 skipped"))
        events = (self.directory / "opt.json").read_text()
        (self.directory / "opt.json").write_text(events + '\n{"id": {"testRes')
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(test_summary.main(self.directory, ["opt"]), 1)
        self.assertTrue(out.getvalue().endswith("2 passed, 1 failed, 2 skipped\n"))

    def test_part_that_did_not_begin_is_no_success(self):
        (self.directory / "tidy.status").write_text("skipped")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = test_summary.main(self.directory, ["tidy"])
        self.assertEqual((code, out.getvalue()), (1, "0 passed, 0 failed, 1 skipped\n"))

    def test_part_without_cases_is_one(self):
        for status, want in (("0", (0, "1 passed, 0 failed, 0 skipped")),
                             ("2", (1, "0 passed, 1 failed, 0 skipped"))):
            (self.directory / "format.status").write_text(status)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                code = test_summary.main(self.directory, ["format"])
            self.assertEqual((code, out.getvalue().splitlines()[-1]), want)


if __name__ == "__main__":
    unittest.main()
