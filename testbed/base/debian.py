"""Packages of another suite of Debian than this machine's, without a change of its package sources."""

import re
from pathlib import Path

from testbed.base import host, process


def options(suite: str, work: Path, purpose: str) -> list[str]:
    """Return apt's options for SUITE, whose lists of packages are fetched into the empty folder WORK."""
    said = process.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI) $(RELEASE) $(COMPONENT)"],
        timeout=60,
    )
    (work / "sources.list").write_text(f"deb {repository(said.stdout, purpose)} {suite} main\n", encoding="ascii")
    for name in ("lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    settings = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    found = [f"-o{name}={value}" for name, value in settings.items()]
    host.apt_get([*found, "update"], work, purpose)
    return found


def repository(targets: str, purpose: str) -> str:
    """Return this machine's source of Debian packages; host.SetupError if it has none.

    TARGETS is the output of apt-get about its sources: origin, codename, address, release and component by line.
    """
    found = re.findall(r"^Debian (\w+) (\S+) \1 main$", targets, re.MULTILINE)
    host.need(
        found,
        f"{purpose} is made from Debian's packages, and this machine has no package sources of Debian",
        "use Debian; the node VM needs none of them on a machine with KVM",
    )
    return str(found[0][1])
