"""What must agree before a release: versions, addresses, workflows."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import gossamer as gs

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

pytestmark = pytest.mark.skipif(not (ROOT / ".github").exists(), reason="not in a clone")


def test_one_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == gs.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == gs.__version__


def test_metadata_is_complete():
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(PROJECT["urls"])
    assert all(PROJECT[key] for key in ("authors", "keywords", "description", "readme", "license"))
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]


def test_one_address_everywhere():
    owner = PROJECT["urls"]["Source"].removeprefix("https://github.com/")
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.cff"), *ROOT.glob(".github/**/*.yml"), *ROOT.glob("docs/**/*.md")]
    for file in files:
        for found in re.findall(r"https://github\.com/([\w.-]+/gossamer)\b", file.read_text(encoding="utf-8")):
            assert found == owner, file


@pytest.mark.parametrize("file", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.name)
def test_workflows_are_read_only_unless_a_job_says_so(file):
    flow = yaml.safe_load(file.read_text())
    assert flow["permissions"] == {"contents": "read"}
    for name, job in flow["jobs"].items():
        if "permissions" in job:
            assert set(job["permissions"]) <= {"pages", "id-token"}, name
        for step in job["steps"]:
            assert "secrets." not in str(step)  # trusted publishing: there is no token


@pytest.mark.parametrize("file", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.name)
def test_issue_templates_can_be_read(file):
    form = yaml.safe_load(file.read_text())
    assert file.name == "config.yml" or {"name", "description", "body"} <= set(form)


def test_the_release_tools_do_not_depend_on_torch():
    assert not any("torch" in tool for tool in PROJECT["optional-dependencies"]["release"])
