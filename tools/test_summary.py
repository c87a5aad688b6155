"""Counts test cases over the parts of tools/test and prints the closing line.

    test_summary.py DIR PART...

DIR holds, for each part, PART.status (exit status of its command) and either PART.json (Bazel's
build events), PART.xml (JUnit), or neither: then the part counts as one case. A part that was
cut off has the status "skipped", and counts with what it found before. Every case of a test.xml
counts. A target whose XML shows no failure although it failed (a crash, a timeout), a target that
was not built, and a part that failed in no other way count as one failure. Exit status 1 if
anything failed or nothing ran.
"""

import json
import pathlib
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


class Counts:
    def __init__(self):
        self.passed = 0
        self.skipped = 0
        self.failures = []

    def add_xml(self, path, prefix):
        """Adds the cases of one file. False if it cannot be read."""
        try:
            root = ElementTree.parse(path).getroot()
        except (OSError, ElementTree.ParseError):
            return False
        for case in root.iter("testcase"):
            name = f"{prefix} {case.get('classname', '')}.{case.get('name', '')}"
            if case.find("failure") is not None or case.find("error") is not None:
                self.failures.append(name)
            elif case.find("skipped") is not None or case.get("result") == "skipped":
                self.skipped += 1
            elif case.get("status") != "notrun":  # DISABLED_ or filtered out.
                self.passed += 1
        return True

    def add_bazel(self, path, part, whole=True):
        """Adds the cases of a part; not `whole`: it was cut off, so some targets have no result."""
        results = {}  # (label, run, shard): the last attempt's result.
        expected = set()
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError:
            lines = []
        for line in lines:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                if whole:
                    raise
                break  # Cut off, too.
            event_id = event["id"]
            if "testResult" in event_id and "testResult" in event:
                key = event_id["testResult"]
                results[key["label"], key.get("run"), key.get("shard")] = event["testResult"]
            elif "targetConfigured" in event_id and "testSize" in event.get("configured", {}):
                expected.add(event_id["targetConfigured"]["label"])
        for (label, _, _), result in sorted(results.items(), key=lambda item: item[0][0]):
            before = len(self.failures)
            if not whole and result.get("status") in ("INCOMPLETE", "NO_STATUS"):
                continue
            passed = result.get("status") == "PASSED"
            read = any(
                self.add_xml(urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path),
                             f"[{part}] {label}")
                for output in result.get("testActionOutput", [])
                if output["name"] == "test.xml")
            if not passed and len(self.failures) == before:
                self.failures.append(f"[{part}] {label}: {result.get('status', 'no status')}")
            elif passed and not read:
                self.passed += 1
        for label in sorted(expected - {label for label, _, _ in results}) if whole else ():
            self.failures.append(f"[{part}] {label}: not built, or not run")


def main(directory, parts):
    counts = Counts()
    for part in parts:
        before = len(counts.failures)
        status = (directory / f"{part}.status").read_text(encoding="utf-8").strip()
        if status == "skipped":
            counts.skipped += 1
            counts.add_bazel(directory / f"{part}.json", part, whole=False)
        elif (directory / f"{part}.json").exists():
            counts.add_bazel(directory / f"{part}.json", part)
        elif (directory / f"{part}.xml").exists():
            counts.add_xml(directory / f"{part}.xml", f"[{part}]")
        elif status == "0":
            counts.passed += 1
        if status not in ("0", "skipped") and len(counts.failures) == before:
            counts.failures.append(f"[{part}] exit status {status}")
    for failure in counts.failures:
        print("FAILED", failure)
    print(f"{counts.passed} passed, {len(counts.failures)} failed, {counts.skipped} skipped")
    return 1 if counts.failures or counts.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
