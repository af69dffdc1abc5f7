"""Properties of the manifest."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxguard import manifest
from fluxguard.errors import StateUnusable
from fluxguard.manifest import Manifest
from tests.properties.values import json_of

TEXTS = ["attempt", "asked"]
NUMBERS = [field.name for field in fields(Manifest) if field.name not in ("files", *TEXTS)]
DIGESTS = st.text(alphabet="0123456789abcdef", min_size=64, max_size=64)
PLAIN = st.text(alphabet="abc_0.-", min_size=1, max_size=9).filter(lambda name: set(name) != {"."})
NAMES = st.lists(PLAIN, min_size=1, max_size=3).map("/".join)
FILES = st.dictionaries(NAMES, st.tuples(st.integers(min_value=0), DIGESTS), min_size=1, max_size=4)
MANIFESTS = st.builds(
    Manifest,
    files=FILES,
    **dict.fromkeys(NUMBERS, st.integers(min_value=0)),
    **dict.fromkeys(TEXTS, st.text(max_size=9)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


def judge(folder: Path, content: bytes) -> None:
    """Read and verify a state; it holds a manifest, or is unusable."""
    (folder / manifest.NAME).write_bytes(content)
    with contextlib.suppress(StateUnusable):
        assert isinstance(manifest.read(folder), Manifest)
    with contextlib.suppress(StateUnusable):
        manifest.verify(folder)


@given(made=MANIFESTS)
def test_what_is_written_is_read(folder: Path, made: Manifest) -> None:
    """Whatever numbers, texts and files it holds."""
    manifest.write(folder, made)
    assert manifest.read(folder) == made
    judge(folder, (folder / manifest.NAME).read_bytes())


@given(
    name=st.text(max_size=20) | st.sampled_from(["../x", "/etc/passwd", "a/../../x", "C:\\x", "a\0b", "./a", "a//b"])
)
def test_a_manifest_names_nothing_outside_its_state(folder: Path, name: str) -> None:
    """Whatever a name looks like: it is that of a file below the state, or the manifest is unusable."""
    made = Manifest(true_step=1, epoch=1, batch=1, world_size=1, batches_per_epoch=1, files={name: (0, "0" * 64)})
    manifest.write(folder, made)
    with contextlib.suppress(StateUnusable):
        assert folder.resolve() in (folder / next(iter(manifest.read(folder).files))).resolve().parents


@given(content=st.binary(max_size=60))
def test_arbitrary_bytes_are_unusable(folder: Path, content: bytes) -> None:
    """And no other error."""
    judge(folder, content)


@given(values=json_of(["version", "files", *NUMBERS]))
def test_whatever_json_says_is_a_manifest_or_unusable(folder: Path, values: Any) -> None:
    """Names that no file can have, numbers beyond all measure, and nothing that was expected."""
    judge(folder, json.dumps(values).encode())


@given(values=st.dictionaries(st.sampled_from(NUMBERS), json_of(NUMBERS)), files=json_of(["model.safetensors", "a\0b"]))
def test_a_manifest_with_wrong_values_is_unusable(folder: Path, values: dict[str, Any], files: Any) -> None:
    """One that is nearly right."""
    good = asdict(Manifest(true_step=1, epoch=1, batch=1, world_size=1, batches_per_epoch=1, files={}))
    judge(folder, json.dumps({"version": 1, **good, **values, "files": files}).encode())


@given(made=MANIFESTS, data=st.data())
def test_a_torn_manifest_is_unusable(folder: Path, made: Manifest, data: st.DataObject) -> None:
    """Wherever it ends."""
    manifest.write(folder, made)
    whole = (folder / manifest.NAME).read_bytes().rstrip()
    (folder / manifest.NAME).write_bytes(whole[: data.draw(st.integers(min_value=0, max_value=len(whole) - 1))])
    with pytest.raises(StateUnusable):
        manifest.read(folder)
