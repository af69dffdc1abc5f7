"""A dataset that cannot be trained on is refused before the training starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fluxguard.errors import InputError
from fluxguard.launch.dataset import check, images

FLUXGYM = """[general]
shuffle_caption = false
caption_extension = '.txt'
keep_tokens = 1

[[datasets]]
resolution = 512
batch_size = 1
keep_tokens = 1

  [[datasets.subsets]]
  image_dir = '{folder}'
  class_tokens = 'me'
  num_repeats = 10
"""


def folder_with(path: Path, *names: str) -> Path:
    path.mkdir(parents=True)
    for name in names:
        (path / name).touch()
    return path


def described(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "dataset.toml"
    path.write_text(text)
    return path


def test_images_are_counted_as_the_trainer_finds_them(tmp_path: Path) -> None:
    names = ["a.png", "b.JPG", "c.jpeg", "d.webp", "e.BMP", "f.jxl", "g.avif", "h.Png", "a.txt", "a.npz", "png", ".png"]
    folder = folder_with(tmp_path / "my images", *names)
    folder_with(folder / "sub.png", "z.png")
    config = described(tmp_path, FLUXGYM.format(folder=folder))
    check(config)
    assert images(config) == 7


def test_a_relative_folder_is_in_the_trainers_folder(tmp_path: Path) -> None:
    folder_with(tmp_path / "there" / "imgs", "a.png")
    config = described(tmp_path, FLUXGYM.format(folder="imgs"))
    assert images(config, tmp_path / "there") == 1


def test_one_empty_folder_among_others_is_no_error_and_all_empty_is(tmp_path: Path) -> None:
    full, empty = folder_with(tmp_path / "full", "a.png"), folder_with(tmp_path / "empty", "a.txt")
    subset = "[[datasets.subsets]]\nimage_dir = '{}'\n"
    check(described(tmp_path, "[[datasets]]\n" + subset.format(full) + subset.format(empty)))
    with pytest.raises(InputError, match="has no images"):
        check(described(tmp_path, "[[datasets]]\n" + subset.format(empty)))
    with pytest.raises(InputError, match="has no images"):
        check(described(tmp_path, "[[datasets]]\n" + subset.format(full) + "is_reg = true\n"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "datasets: is missing"),
        ("[general]\n", "datasets: is missing"),
        ("datasets = 3\n", r"datasets: must be written as \[\[datasets\]\]"),
        ("[datasets]\n", r"datasets: must be written as \[\[datasets\]\]"),
        ("[[datasets]]\n", r"datasets\[0\]\.subsets: is missing"),
        ("[[datasets]]\nsubsets = []\n", r"datasets\[0\]\.subsets: is missing"),
        ("[[datasets]]\nsubsets = 'a'\n", r"must be written as \[\[datasets.subsets\]\]"),
        ("[[datasets]]\n[[datasets.subsets]]\n", r"datasets\[0\]\.subsets\[0\]\.image_dir: must name a folder"),
        ("[[datasets]]\n[[datasets.subsets]]\nimage_dir = 3\n", "image_dir: must name a folder"),
        ("[[datasets]]\n[[datasets.subsets]]\nimage_dir = '/no/where'\n", "image_dir: /no/where does not exist"),
        ("[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'dataset.toml'\n", "is not a folder"),
        ("[[datasets]]\n[[datasets.subsets]]\nmetadata_file = 'm.json'\n", "metadata_file: .*cannot be read"),
        ("[datasets\n", "is not TOML: .* line 1 col"),
        ("a = 1\na = 2\n", "is not TOML: .* line 2 col"),
        ("a = \x00\n", "is not TOML"),
    ],
)
def test_what_cannot_be_trained_on_names_file_and_field(tmp_path: Path, text: str, says: str) -> None:
    config = described(tmp_path, text)
    with pytest.raises(InputError, match=says) as caught:
        check(config, tmp_path)
    assert caught.value.source == str(config)


def test_a_description_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "folder.toml").mkdir()
    for name in ("gone.toml", "gone.json", "binary.toml", "list.json", "broken.json", "folder.toml", "dataset.yaml"):
        with pytest.raises(InputError, match=name):
            check(tmp_path / name)


def test_json_and_metadata_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps({"a": {}, "b": {}}))
    config = tmp_path / "d.json"
    config.write_text(json.dumps({"datasets": [{"subsets": [{"metadata_file": "m.json"}]}]}))
    assert images(config, tmp_path) == 2
