"""Paths in the work tree."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "operator"
CRDS = ROOT / "crds"
DOCS = ROOT / "docs"
CHART = ROOT / "deploy" / "helm" / "swapwarden"
BUILD = ROOT / "build"
MANIFESTS = BUILD / "manifests"
